"""A pytest plugin: the real CuPy, with its real compiler, on a driver whose device is this host.

CuPy's wheel brings its CUDA runtime inside of one module, whose C functions the others find in a table when they are
imported. The plugin puts its own functions into the table first. The driver is ``libcuda.c``, whose launches go to the
emulator of CUDA threads. Kernels are compiled by NVRTC as on a device, and CuPy unpacks the arguments.
"""

import ctypes
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent


class _State(SimpleNamespace):
    @property
    def current(self):
        return _DRIVER.getDevice(0)


State = _State(
    capabilities=[(9, 0), (9, 0)],
    multiprocessors=3,
    capturing=0,
    loads=0,
    load_status=0,
    refused=(),
    launched=[],
)
"""The devices, and the faults that a test plants: ``refused`` has parts of names of kernels, and their status."""
COUNTS: Counter = Counter()
"""Launches of each kernel of ours."""
STREAMS: set = set()


def _driver():
    path = Path(tempfile.mkdtemp()) / "libcuda.so.1"
    command = [
        "g++",
        "-x",
        "c",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        "-o",
        str(path),
        str(HERE / "libcuda.c"),
    ]
    subprocess.run(command, check=True)
    driver = ctypes.PyDLL(str(path), ctypes.RTLD_GLOBAL)
    driver.setDevice.restype = ctypes.py_object
    return driver


_DRIVER = _driver()


def _attribute(attribute, device):
    known = {75: State.capabilities[device][0], 76: State.capabilities[device][1], 16: State.multiprocessors}
    return known.get(attribute, 1)


def _copy(to, source, size):
    ctypes.memmove(to, source, size)


def _allocate(size):
    address = _libc.aligned_alloc(512, max(512, -(-size // 512) * 512))
    assert address
    return address


_libc = ctypes.CDLL(None)
_libc.aligned_alloc.restype = ctypes.c_void_p
_libc.aligned_alloc.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
_libc.free.argtypes = (ctypes.c_void_p,)


RUNTIME = {
    "_ensure_context": lambda: None,
    "_getCUDAMajorVersion": lambda: 13,
    "check_status": lambda _: None,
    "deviceGetAttribute": _attribute,
    "deviceSynchronize": lambda: None,
    "driverGetVersion": lambda: 13020,
    "free": lambda address: _libc.free(address),
    "getDevice": lambda: _DRIVER.getDevice(0),
    "getDeviceCount": lambda: len(State.capabilities),
    "malloc": _allocate,
    "memGetInfo": lambda: (1 << 33, 1 << 34),
    "memcpy": lambda to, source, size, _: _copy(to, source, size),
    "memcpyAsync": lambda to, source, size, *_: _copy(to, source, size),
    "memset": lambda to, value, size: ctypes.memset(to, value, size) and None,
    "memsetAsync": lambda to, value, size, _: ctypes.memset(to, value, size) and None,
    "runtimeGetVersion": lambda: 13020,
    "setDevice": lambda number: _DRIVER.setDevice(number, 0),
    "streamCreateWithFlags": lambda _: 1 << 20,
    "streamCreateWithPriority": lambda *_: 1 << 20,
    "streamDestroy": lambda _: None,
    "streamGetFlags": lambda _: 0,
    "streamGetPriority": lambda _: 0,
    "streamIsCapturing": lambda _: State.capturing,
    "streamSynchronize": lambda _: None,
}
"""What takes the place of CUDA's runtime, by the names in CuPy's table."""

OF_DRIVER = ("getDevice", "setDevice")
"""Functions of which the driver has the C functions too."""

TYPES = {
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "size_t": ctypes.c_size_t,
    "intptr_t": ctypes.c_ssize_t,
    "PyObject *": ctypes.py_object,
    "void": None,
}

_kept = []
"""What C code has the addresses of."""


def _replace_runtime():
    """Put the functions into the table of C functions, and those that Python code calls into the module."""
    from cupy_backends.cuda.api import runtime

    new, name_of, pointer = ctypes.pythonapi.PyCapsule_New, ctypes.pythonapi.PyCapsule_GetName, ctypes.py_object
    new.restype, new.argtypes = pointer, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    name_of.restype, name_of.argtypes = ctypes.c_char_p, (pointer,)
    for name, function in RUNTIME.items():
        signature = name_of(runtime.__pyx_capi__[name])
        result, _, arguments = signature.decode().rstrip(")").partition("(")
        types = [TYPES[kind.strip()] for kind in arguments.replace("__pyx_skip_dispatch", "").split(",")]
        types = [kind for kind in types if kind is not None]
        own = slice(-1 if "__pyx_skip_dispatch" in arguments else None)

        def call(*given, function=function, own=own):
            return function(*given[own])

        made = getattr(_DRIVER, name) if name in OF_DRIVER else ctypes.PYFUNCTYPE(TYPES[result.strip()], *types)(call)
        _kept.extend([made, signature])
        runtime.__pyx_capi__[name] = new(ctypes.cast(made, ctypes.c_void_p), signature, None)
        if hasattr(runtime, name):
            setattr(runtime, name, function)
    runtime.getDeviceProperties = lambda device: {
        "name": b"Emulated",
        "major": State.capabilities[device][0],
        "minor": State.capabilities[device][1],
        "multiProcessorCount": State.multiprocessors,
        "totalGlobalMem": 2**31,
    }


def _name_kernels():
    """Remember the name expression of every lowered name that the compiler gives."""
    from cupy.cuda import compiler

    names, compile_ = {}, compiler._NVRTCProgram.compile

    def compiled(self, *arguments, **options):
        code, mapping = compile_(self, *arguments, **options)
        names.update({lowered: name for name, lowered in (mapping or {}).items()})
        return code, mapping

    compiler._NVRTCProgram.compile = compiled
    return names


def _load():
    State.loads += 1
    return State.load_status


def _launch_by(names):
    from tests.cuda import cuda_standin

    def launch(name, grid, block, shared_bytes, stream, args):
        expression = names.get(name.decode())
        if expression is None:  # a kernel of CuPy's own
            return 0
        COUNTS[expression] += 1
        State.launched.append(expression)
        STREAMS.add(stream or 0)
        for part, status in State.refused:
            if part in expression:
                return status
        cuda_standin.emulated(expression).launch_packed(expression, grid, block, shared_bytes, args)
        return 0

    return launch


def load():
    """Load CuPy on the driver, whose launches return at once."""
    _replace_runtime()
    import cupy

    from householder._cuda import library
    from tests.cuda import cuda_standin

    cuda_standin.cupy_module = lambda devices=2: cupy  # noqa: ARG005
    library.Torch.device = lambda self, a: 0  # noqa: ARG005


def pytest_configure():
    """Load CuPy, with launches that run in the emulator."""
    load()
    names = _name_kernels()
    signature = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, *[ctypes.c_uint] * 3, ctypes.c_void_p, ctypes.c_void_p)
    functions = signature(_launch_by(names)), ctypes.CFUNCTYPE(ctypes.c_int)(_load)
    _DRIVER.on_launch(functions[0])
    _DRIVER.on_load(functions[1])
    _kept.extend(functions)


def pytest_sessionfinish():
    """Say what was launched."""
    import cupy

    print(f"\ncupy {cupy.__version__}: {COUNTS.total()} launches of {len(COUNTS)} kernels, streams {sorted(STREAMS)}")
