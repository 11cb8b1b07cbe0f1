"""Kernels on demand: compiled once for each device and instance, from sources inside the compiled core."""

import sys
import threading
import warnings
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from householder import _core
from householder._base import notices
from householder._cuda import device, instances
from householder._cuda.instances import OPTIONS, PROBE, SOURCES, Launch

CompiledKernel = Any
"""A function of CuPy's ``RawModule``."""
KernelArgument = Any
"""A pointer as an integer, or a scalar or record of NumPy of the type in C."""

PLANS = 1024
"""The number of plans that each kind of call keeps; the one that was not used for longest goes first."""

_lock = threading.Lock()
_compiled: dict[tuple[int, str], CompiledKernel] = {}
_registers: dict[tuple[int, str], int] = {}
"""Registers of a thread, as the kernel's own device reports them."""


class CaptureError(RuntimeError):
    """A CUDA graph is being captured, which must see neither a compilation nor a first use."""


class Device(NamedTuple):
    """The properties of a device on which the choice of a kernel depends."""

    number: int
    capability: int
    """Compute capability, 90 for 9.0."""
    multiprocessors: int


class LaunchPlan(NamedTuple):
    """What a launch takes from the shapes, types and device of a call."""

    name: str
    config: Launch
    sizes: tuple[np.int32, ...]
    """The arguments that follow the arrays."""


@cache
def device_of(index: int) -> Device:
    """Ask CuPy about a device."""
    cuda_device = device.cupy().cuda.Device(index)
    return Device(index, int(cuda_device.compute_capability), int(cuda_device.attributes["MultiProcessorCount"]))


@cache
def takes_clusters(index: int) -> bool:
    """Try to launch a cluster on a device that should accept it, because some drivers and shared devices refuse."""
    cuda = device.cupy().cuda
    with cuda.Device(index):
        get(index, *PROBE)  # an error here is not about clusters
        try:
            with cuda.Stream(non_blocking=True):
                launch(index, *PROBE, ())
        except cuda.driver.CUDADriverError as error:
            warnings.warn(f"device {index} refuses clusters of blocks, other kernels are used: {error}", stacklevel=2)
            return False
    return True


@cache
def missing() -> str:
    """Name the missing requirement without which no kernel can run, if there is one."""
    try:
        device.cupy()
    except (ImportError, RuntimeError) as error:
        return str(error)
    return ""


def available() -> bool:
    """Return whether to use kernels; otherwise operations use matrix products or torch operations if they can."""
    return not missing() and notices.kernel_mode() != "off"


def source(kernel: str) -> str:
    """Return the translation unit of a kernel: one string without includes, as it is the key of CuPy's disk cache."""
    files = _core.cuda_sources()
    return "\n".join(files[name] for name in SOURCES[kernel])


def get(index: int, kernel: str, name: str, config: Launch) -> CompiledKernel:
    """Return a kernel by its C++ name expression, compiled for the current device, whose number is ``index``.

    Its launches use the clusters of ``config``, and at most its shared memory or the default, whichever is larger.

    Raises
    ------
    CaptureError
        It has not been compiled yet and a CUDA graph is being captured.
    """
    function = _compiled.get((index, name))
    if function is None:
        with _lock:
            function = _compiled.get((index, name))
            if function is None:
                function = _compiled[index, name] = _compile(index, kernel, name, config)
    return function


def _compile(index: int, kernel: str, name: str, config: Launch) -> CompiledKernel:
    cupy = device.cupy()
    refuse_capture(name)
    options = (*OPTIONS, *instances.CLUSTERS) if config.cluster > 1 else OPTIONS
    module = cupy.RawModule(code=source(kernel), options=options, name_expressions=(name,))
    function = module.get_function(name)
    _registers[index, name] = function.num_regs  # loads the kernel, which a lazy driver would do at its first launch
    if config.shared_bytes > instances.DEFAULT_SHARED_BYTES:
        function.max_dynamic_shared_size_bytes = config.shared_bytes
    return function


def refuse_capture(name: str) -> None:
    """Raise a CaptureError if a CUDA graph is being captured."""
    torch = sys.modules.get("torch")  # its current stream is not CuPy's
    captured = torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    if captured or device.cupy().cuda.get_current_stream().is_capturing():
        raise CaptureError(
            f"{name} is not compiled yet, and a CUDA graph is being captured: make the same calls, forward and "
            "backward, once before. householder._cuda.warm_up compiles, but does not warm autograd's thread"
        )


def launch(index: int, kernel: str, name: str, config: Launch, arguments: tuple[KernelArgument, ...]) -> None:
    """Launch on CuPy's current stream; pointers are integers, other arguments NumPy scalars of the C types."""
    get(index, kernel, name, config)((config.grid,), (config.block,), arguments, shared_mem=config.shared_bytes)


def compiled() -> list[str]:
    """List what has been compiled or loaded in this process."""
    return [f"{name} on device {index}, {_registers[index, name]} registers" for index, name in _compiled]
