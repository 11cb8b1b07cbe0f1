"""CuPy and the devices it sees: the only place that imports it."""

import importlib
import os
from pathlib import Path
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
    module = _import()
    try:
        count = module.cuda.runtime.getDeviceCount()
    except module.cuda.runtime.CUDARuntimeError as error:
        raise RuntimeError(f"no CUDA device can be used: {error}") from None
    if not count:
        raise RuntimeError("no CUDA device can be used: the driver reports none")
    return module


def _import() -> Any:
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise ImportError(f"CUDA arrays and sequences of CUDA tensors need CuPy: {INSTALL} ({error})") from None


def describe() -> dict[str, str]:
    """Say what the CUDA path finds here, or why it cannot be used, as ``{heading: text}``.

    Examples
    --------
    >>> from householder import _cuda
    >>> "CUDA" in _cuda.describe()
    True
    """
    try:
        module = _import()
    except ImportError as error:
        return {"CUDA": f"unavailable: {error}"}
    found = {"CuPy": module.__version__, "CUDA runtime of CuPy": _version(module.cuda.runtime.runtimeGetVersion())}
    try:
        cupy()
    except RuntimeError as error:
        return {"CUDA": f"unavailable: {error}"} | found
    runtime = module.cuda.runtime
    found["CUDA driver"] = _version(runtime.driverGetVersion())
    for index in range(runtime.getDeviceCount()):
        properties = runtime.getDeviceProperties(index)
        memory = properties["totalGlobalMem"] / 2**30
        found[f"device {index}"] = (
            f"{properties['name'].decode()}, compute capability {properties['major']}.{properties['minor']}, "
            f"{properties['multiProcessorCount']} multiprocessors, {memory:.0f} GiB"
        )
    cache = Path(os.environ.get("CUPY_CACHE_DIR", "~/.cupy/kernel_cache")).expanduser()
    from householder._cuda import kernels

    found["kernels in use"] = "; ".join(kernels.compiled()) or "none so far"
    return {"CUDA": "available"} | found | {"kernel cache": str(cache)}


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
