"""What stands in for CuPy and a device: the Python side of the CUDA path runs on host memory, kernels in the emulator.

The emulator compiles the very sources that CuPy would be given, and unpacks the very arguments.

The real CuPy of ``real_cupy`` does not replace this: on a driver without a device its arrays compute nothing, because
each of their operations is a CUDA kernel of CuPy's own, and it needs Linux, NVRTC and a process of its own.
"""

import re
import sys
from contextlib import nullcontext
from functools import cache, partial
from itertools import product
from types import ModuleType, SimpleNamespace

import array_api_compat.numpy
import numpy as np

from householder._base import notices
from householder._cuda import application, factors, instances, kernels, library, recurrence, verdicts
from householder._cuda.arrays import Arrays
from householder._cuda.instances import CLUSTERS, OPTIONS, PHI, PROBE, SOURCES, Launch
from tests.cuda import emulation

HAS_COMPILER = emulation.compiler() is not None


def emulated(name):
    """The emulator with a kernel and those that go with it: its other direction, its other nonlinearities."""
    kernel, rest = re.fullmatch(r"householder::([a-z]+)_(.*)", name).groups()
    if kernel not in ("lowrank", "dense", "fallback"):
        return _build(tuple(f"householder::{kernel}_{other}" for other in _directions(rest)))
    arguments = re.fullmatch(r".*ward<(.*), householder::\w+>", rest).group(1)
    names = product(("forward", "backward"), PHI.values())
    return _build(tuple(f"householder::{kernel}_{direction}<{arguments}, {phi}>" for direction, phi in names))


def _directions(name):
    return sorted({name, name.replace("backward", "forward"), name.replace("forward", "backward")})


@cache
def _build(names):
    return emulation.build(names)


def _cluster(name):
    """Blocks that form a cluster, by the name of a kernel."""
    if name == PROBE[1]:
        return PROBE[2].cluster
    sizes = re.findall(r"\b\d+\b", name)
    return int(sizes[-1]) if re.match(r"householder::(lowrank|dense)_", name) else 1


class RawModule:
    """CuPy's class of that name."""

    made = 0

    def __init__(self, *, code, options, name_expressions):
        kernel = re.match(r"householder::([a-z]+)_", name_expressions[0]).group(1)
        assert code == kernels.source(kernel)
        assert kernel in SOURCES
        assert options == (*OPTIONS, *(CLUSTERS if _cluster(name_expressions[0]) > 1 else ()))
        self.names = name_expressions
        RawModule.made += 1

    def get_function(self, name):
        assert name in self.names
        return Function(name)


class Function:
    """CuPy's ``RawKernel``."""

    num_regs = 64
    max_dynamic_shared_size_bytes = 48 << 10

    def __init__(self, name):
        self.name = name

    def __call__(self, grid, block, args, *, shared_mem):
        if Device.refuses_clusters and self.name == PROBE[1]:
            raise DriverError("CUDA_ERROR_INVALID_CLUSTER_SIZE")
        if shared_mem > self.max_dynamic_shared_size_bytes:
            raise DriverError("CUDA_ERROR_INVALID_VALUE")
        for arg in args:  # CuPy passes arrays by value if they are of one entry, which may be a structure
            assert type(arg) is int or isinstance(arg, np.generic) or (type(arg) is np.ndarray and arg.size == 1)
        emulated(self.name).launch(self.name, Launch(*grid, *block, shared_mem), args)


class Device(nullcontext):
    """CuPy's device; class attributes are those of the device under test."""

    compute_capability = "90"
    multiprocessors = 3
    refuses_clusters = False

    def __init__(self, index):
        super().__init__()
        self.index = index

    @property
    def attributes(self):
        return {"MultiProcessorCount": self.multiprocessors}


class Stream(nullcontext):
    """CuPy's stream."""

    capturing = False

    def __init__(self, *, non_blocking=False):  # noqa: ARG002
        super().__init__()

    @classmethod
    def from_external(cls, stream):
        version, address = stream.__cuda_stream__()
        assert (version, address) == (0, 42)
        return cls()

    def is_capturing(self):
        return Stream.capturing


class CupyArray(np.ndarray):
    """CuPy's ``ndarray``: memory with an address, a device, and a way to the host."""

    __module__ = "cupy"
    number = 0

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)

    @property
    def device(self):
        device = Device(self.number)
        device.id = self.number
        return device

    def get(self):
        return np.asarray(self).view(np.ndarray)

    def max(self, axis=None, out=None, keepdims=False):
        return super().max(axis, out, keepdims)


def _as_cupy(source, name):
    """The function of a module of NumPy's arrays, or its submodule, for CuPy's arrays."""
    value = getattr(source, name)
    if isinstance(value, ModuleType):
        return _module_as_cupy(f"{source.__name__}.{name}", value)
    if isinstance(value, type) or not callable(value):
        return value

    def function(*args, **kwargs):
        assert not kwargs.keys() & {"initial", "where"}, "arguments that CuPy's reductions lack"
        result = value(*args, **kwargs)
        if not isinstance(result, np.ndarray):
            return result
        result = result.view(CupyArray)
        result.number = getattr(args[0], "number", 0)
        return result

    return function


def _module_as_cupy(name, source):
    module = ModuleType(name)
    module.__getattr__ = partial(_as_cupy, source)
    return module


class CudaError(Exception):
    """CuPy's ``CUDARuntimeError``."""


class DriverError(Exception):
    """CuPy's ``CUDADriverError``."""


def cupy_module(devices=2):
    """CuPy; ``devices`` is their number, or the error that asking for it raises."""

    def count():
        if isinstance(devices, str):
            raise CudaError(devices)
        return devices

    runtime = SimpleNamespace(
        CUDARuntimeError=CudaError,
        getDeviceCount=count,
        runtimeGetVersion=lambda: 13020,
        driverGetVersion=lambda: 13010,
        getDeviceProperties=lambda _: {
            "name": b"Emulated",
            "major": 9,
            "minor": 0,
            "multiProcessorCount": Device.multiprocessors,
            "totalGlobalMem": 2**31,
        },
    )
    module = _module_as_cupy("cupy", np)
    module.__version__ = "14.0"
    module.RawModule = RawModule
    module.ndarray = CupyArray
    driver = SimpleNamespace(CUDADriverError=DriverError)
    module.cuda = SimpleNamespace(
        Device=Device, Stream=Stream, get_current_stream=Stream, runtime=runtime, driver=driver
    )
    return module


def note_pointers(monkeypatch):
    """Return a list that grows by the addresses that each launch gets."""
    launch, pointers = Function.__call__, []

    def noted(self, grid, block, args, *, shared_mem):
        pointers.extend(arg for arg in args if type(arg) is int)
        launch(self, grid, block, args, shared_mem=shared_mem)

    monkeypatch.setattr(Function, "__call__", noted)
    return pointers


class Trusted(dict):
    """Verdicts by which every kernel is usable, so that tests of other things run no trials."""

    def get(self, key):  # noqa: ARG002
        return ""


def install(monkeypatch, *, capability=90, trials=False):
    """Put CuPy, and two devices of that compute capability, in their places; give the backend of NumPy arrays."""
    monkeypatch.setattr(verdicts, "_verdicts", {} if trials else Trusted())
    monkeypatch.setattr(notices, "_said", {})
    monkeypatch.setitem(sys.modules, "cupy", cupy_module())
    compatible = _module_as_cupy("array_api_compat.cupy", array_api_compat.numpy)
    monkeypatch.setitem(sys.modules, "array_api_compat.cupy", compatible)
    monkeypatch.setattr(Device, "compute_capability", str(capability))
    monkeypatch.setattr(kernels, "_compiled", {})
    monkeypatch.setattr(instances, "FACTOR_COLUMNS", dict.fromkeys(instances.NUMBERS, (16,)))  # few to compile
    monkeypatch.setattr(instances, "APPLICATION_LANES", (8,))
    of_kernels = ((kernels, name) for name in ("device_of", "takes_clusters", "missing"))
    plans = *((owner, "_plan") for owner in (factors, application, recurrence)), (recurrence, "candidates")
    cached = *of_kernels, (library, "_library"), *plans
    for owner, name in cached:
        monkeypatch.setattr(owner, name, cache(getattr(owner, name).__wrapped__))
    return Arrays(np)
