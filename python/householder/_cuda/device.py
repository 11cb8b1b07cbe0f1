"""CuPy and the devices it sees: the only place that imports it."""

import importlib
from typing import Any

INSTALL = "pip install 'householder[cuda13]' (CUDA 12: 'householder[cuda12]')"


def cupy() -> Any:
    """Give CuPy, which compiles and launches the kernels.

    Raises
    ------
    ImportError
        CuPy is not installed; the message says what to install.
    RuntimeError
        There is no driver or no device.
    """
    module = imported()
    try:
        count = module.cuda.runtime.getDeviceCount()
    except module.cuda.runtime.CUDARuntimeError as error:
        raise RuntimeError(f"no CUDA device can be used: {error}") from None
    if not count:
        raise RuntimeError("no CUDA device can be used: the driver reports none")
    return module


def imported() -> Any:
    """Import CuPy, or say how to install it."""
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise ImportError(f"CUDA arrays and sequences of CUDA tensors need CuPy: {INSTALL} ({error})") from None
