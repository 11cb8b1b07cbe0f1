"""NVRTC without a driver: compiles kernels for any architecture and reports what ptxas says about them."""

import ctypes
import importlib.util
import os
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

CUDA = Path(__file__).resolve().parents[2] / "cuda"


class CompilationError(RuntimeError):
    """The compiler's log."""


class Resources(NamedTuple):
    registers: int
    spilled_bytes: int
    stack_bytes: int


@cache
def library() -> ctypes.CDLL | None:
    """Load the library of the package ``nvidia-cuda-nvrtc`` (or ``-cu12``); None if it is not installed.

    ``HOUSEHOLDER_NVRTC`` names a folder where another version of the package is (``pip install --target``).
    """
    package = importlib.util.find_spec("nvidia")
    folders = list(package.submodule_search_locations or []) if package else []
    if elsewhere := os.environ.get("HOUSEHOLDER_NVRTC"):
        folders = [f"{elsewhere}/nvidia"]
    for folder in map(Path, folders):
        for path in sorted(folder.glob("*/lib/libnvrtc.so.1?"), reverse=True):
            for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
                ctypes.CDLL(str(builtins))  # some releases do not look for it beside themselves
            nvrtc = ctypes.CDLL(str(path))
            nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
            return nvrtc
    return None


def source(files: tuple[str, ...]) -> str:
    return "".join((CUDA / name).read_text() for name in files)


def compile_kernels(code: str, names: list[str], architecture: str, *options: str) -> dict[str, Resources]:
    """Compile the instances ``names`` for ``architecture`` ("sm_90"); what each of them takes."""
    nvrtc = library()
    assert nvrtc is not None
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), code.encode(), b"kernels.cu", 0, None, None)
    try:
        for name in names:
            nvrtc.nvrtcAddNameExpression(program, name.encode())
        flags = ["-std=c++17", "-ftz=true", f"-arch={architecture}", "--ptxas-options=-v"]
        flags += ["--device-as-default-execution-space", *options]  # as CuPy does
        array = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        failed = nvrtc.nvrtcCompileProgram(program, len(flags), array)
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        text = log.value.decode()
        if failed or "warning" in text:
            raise CompilationError(text)
        return {name: _resources(text, _lowered(nvrtc, program, name)) for name in names}
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _lowered(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, name: str) -> str:
    lowered = ctypes.c_char_p()
    failed = nvrtc.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered))
    assert not failed, name
    assert lowered.value is not None
    return lowered.value.decode()


def _resources(log: str, entry: str) -> Resources:
    report = re.search(
        rf"Compiling entry function '{re.escape(entry)}'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
        r"(\d+) bytes spill loads.*?Used (\d+) registers",
        log,
        re.DOTALL,
    )
    assert report, log
    stack, stores, loads, registers = map(int, report.groups())
    return Resources(registers, stores + loads, stack)
