"""The setting ``HOUSEHOLDER_KERNELS``, and the warning or error where kernels are not used.

=============  ==================================================================================
not set        kernels where they can be used, torch operations elsewhere, one warning per reason
``require``    an error where kernels cannot be used
``off``        torch operations on every device but the CPU
=============  ==================================================================================
"""

import os
import warnings

VARIABLE = "HOUSEHOLDER_KERNELS"
COST = "falling back to torch operations, which take more launches. Results are the same."

_said: dict[tuple[str, str], object] = {}


def kernel_mode() -> str:
    """Return the setting: ``""``, ``"require"`` or ``"off"``.

    Raises
    ------
    ValueError
        It has another value.
    """
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "require", "off"):
        raise ValueError(f"{VARIABLE} is {value!r}, expected 'require' or 'off', or no such variable")
    return value


def warn_once(device: str, reason: str) -> None:
    """Warn that a device does not use kernels, once for each device and reason.

    Raises
    ------
    RuntimeError
        ``HOUSEHOLDER_KERNELS`` is ``require``.
    """
    if kernel_mode() == "require":
        raise RuntimeError(f"{VARIABLE} is 'require', but on {device} {reason}")
    mine = object()
    if _said.setdefault((device, reason), mine) is not mine:  # no lock, which a fork could copy while it is held
        return
    warnings.warn(
        f"householder has no native kernel on {device} ({reason}): {COST} "
        f"{VARIABLE}=off silences this, {VARIABLE}=require makes it an error.",
        stacklevel=3,
    )
