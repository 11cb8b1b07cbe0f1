"""CuPy and the devices it sees. Only this module imports CuPy."""

import importlib
import sys
from types import ModuleType


def cupy() -> ModuleType:
    """Return CuPy, which compiles and launches the kernels.

    Raises
    ------
    ImportError
        CuPy is not installed; the message says what to install.
    RuntimeError
        It is CuPy for ROCm, or there is no driver or no device.
    """
    module = imported()
    if getattr(module.cuda.runtime, "is_hip", False):
        raise RuntimeError("this CuPy is built for ROCm, and there are kernels for CUDA only")
    try:
        count = module.cuda.runtime.getDeviceCount()
    except module.cuda.runtime.CUDARuntimeError as error:
        raise RuntimeError(f"no CUDA device can be used: {error}") from None
    if not count:
        raise RuntimeError("no CUDA device can be used: the driver reports none")
    return module


def imported() -> ModuleType:
    """Import CuPy, or say how to install it."""
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise ImportError(f"the kernels need CuPy: {install_command()} ({error})") from None


def install_command() -> str:
    """Return the command that installs CuPy, for torch's CUDA version if torch is loaded."""
    torch = sys.modules.get("torch")
    cuda = (torch.version.cuda or "") if torch is not None else ""
    if cuda:
        return f"pip install 'cupy-cuda{max(12, int(cuda.partition('.')[0]))}x[ctk]>=14.2'"
    return "pip install 'cupy-cuda13x[ctk]>=14.2' (CUDA 12: 'cupy-cuda12x[ctk]>=14.2')"
