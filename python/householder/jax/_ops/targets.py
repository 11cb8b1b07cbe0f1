"""The kernels as foreign functions of XLA: registered once, when ``householder.jax`` is imported."""

from importlib.metadata import version

import jax

from householder import _core


def register() -> None:
    """Register the handlers of the core with XLA on CPU.

    Raises
    ------
    ImportError
        This jaxlib does not accept handlers of the interface versions that the core supports.
    """
    for name, capsule in _core.xla_handlers().items():
        try:
            jax.ffi.register_ffi_target(name, capsule, platform="cpu")
        except Exception as error:  # XLA has no exception of its own for this
            reason = " ".join(str(error).split())
            raise ImportError(
                f"householder.jax: jaxlib {version('jaxlib')} refuses the handler {name!r}; install a version of jax "
                f"that this version of householder is made for, see its extra 'jax'. XLA says: {reason}"
            ) from error
