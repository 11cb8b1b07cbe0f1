"""What stands in for CuPy and a device: the Python side of the CUDA path runs on host memory, kernels in the emulator.

The emulator compiles the very sources that CuPy would be given, and unpacks the very arguments.
"""

import sys
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from householder._cuda import device, kernels, library
from householder._cuda.arrays import Arrays

sys.path.insert(0, str(Path(__file__).parent / "cuda"))
import emulation

HAS_COMPILER = emulation.compiler() is not None


@cache
def emulated(name):
    """The emulator with one kernel."""
    return emulation.build([name])


class RawModule:
    """CuPy's class of that name."""

    made = 0

    def __init__(self, *, code, options, name_expressions):
        assert code in {kernels.source(kernel) for kernel in kernels.SOURCES if kernel != "application"}
        assert options == ("-std=c++17",)
        self.names = name_expressions
        RawModule.made += 1

    def get_function(self, name):
        assert name in self.names
        return Function(name)


class Function:
    """CuPy's ``RawKernel``."""

    num_regs = 64

    def __init__(self, name):
        self.name = name

    def __call__(self, grid, block, args, *, shared_mem):
        assert all(type(arg) is int or isinstance(arg, np.generic) for arg in args)
        emulated(self.name).launch(self.name, *grid, *block, shared_mem, args)


class Device(nullcontext):
    """CuPy's device; class attributes are those of the device under test."""

    compute_capability = "90"
    multiprocessors = 3

    def __init__(self, index):
        super().__init__()
        self.index = index

    @property
    def attributes(self):
        return {"MultiProcessorCount": self.multiprocessors}


class Stream(nullcontext):
    """CuPy's stream."""

    capturing = False

    @classmethod
    def from_external(cls, stream):
        version, address = stream.__cuda_stream__()
        assert (version, address) == (0, 42)
        return cls()

    def is_capturing(self):
        return Stream.capturing


class Cupy:
    """CuPy."""

    RawModule = RawModule
    cuda = SimpleNamespace(Device=Device, Stream=Stream, get_current_stream=Stream)


def install(monkeypatch, *, capability=90):
    """Put CuPy, and a device of that compute capability, in their places; give the backend of NumPy arrays."""
    monkeypatch.setattr(device, "cupy", lambda: Cupy)
    monkeypatch.setattr(library, "cupy", lambda: Cupy)
    monkeypatch.setattr(Device, "compute_capability", str(capability))
    monkeypatch.setattr(kernels, "_compiled", {})
    kernels.device_of.cache_clear()
    return Arrays(np)
