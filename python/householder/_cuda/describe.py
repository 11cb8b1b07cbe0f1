"""A description of the CUDA path on this machine."""

import os
from pathlib import Path

from householder._cuda import device, kernels


def describe() -> dict[str, str]:
    """Say what the CUDA path finds here, or why it cannot be used, as ``{heading: text}``.

    Examples
    --------
    >>> from householder import _cuda
    >>> "CUDA" in _cuda.describe()
    True
    """
    try:
        module = device.imported()
    except ImportError as error:
        return {"CUDA": f"unavailable: {error}"}
    description = {
        "CuPy": module.__version__,
        "CUDA runtime of CuPy": _version(module.cuda.runtime.runtimeGetVersion()),
    }
    try:
        device.cupy()
    except RuntimeError as error:
        return {"CUDA": f"unavailable: {error}"} | description
    runtime = module.cuda.runtime
    description["CUDA driver"] = _version(runtime.driverGetVersion())
    for index in range(runtime.getDeviceCount()):
        properties = runtime.getDeviceProperties(index)
        memory = properties["totalGlobalMem"] / 2**30
        description[f"device {index}"] = (
            f"{properties['name'].decode()}, compute capability {properties['major']}.{properties['minor']}, "
            f"{properties['multiProcessorCount']} multiprocessors, {memory:.0f} GiB"
        )
    cache = Path(os.environ.get("CUPY_CACHE_DIR", "~/.cupy/kernel_cache")).expanduser()
    description["kernels in use"] = "; ".join(kernels.compiled()) or "none so far"
    return {"CUDA": "available"} | description | {"kernel cache": str(cache)}


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
