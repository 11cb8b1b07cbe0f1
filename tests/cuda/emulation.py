"""Kernels compiled for the CPU, launched with the arguments that a GPU's driver takes. See ``cuda/README.md``."""

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from householder._cuda import instances

HERE = Path(__file__).resolve().parent
CUDA = HERE.parents[1] / "cuda"
HEADERS = ("emulator.hpp", "library.hpp")
SOURCES = tuple(dict.fromkeys(chain.from_iterable(instances.SOURCES.values())))
OPTIMISED = ("-O1", "-march=native")
SANITIZED = ("-O1", "-g", "-march=native", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")

Edit = tuple[str, str, str, int]
"""A planted fault: in that file, the given text's occurrence of that number is replaced. (file, text, by, number)"""


class EmulationError(RuntimeError):
    """What went wrong in a launch."""


class Library:
    """A build of the emulator with some kernels. Builds share nothing: each may run in a thread of its own."""

    def __init__(self, path: Path):
        self._library = ctypes.CDLL(str(path))
        self._library.householder_emulated_error.restype = ctypes.c_char_p
        self._omitted = ("", -1)

    def set_schedule(self, order: int) -> None:
        """Order of the threads: 0 forward, 1 in reverse, 2 block by block, others random."""
        self._library.householder_emulated_schedule(order)

    def omit(self, kernel: str, wait: int) -> None:
        """Leave out a wait of every block of a module's kernels, counted as it runs; -1 for none."""
        self._omitted = (f"::{kernel}_", wait)

    def launch(self, name: str, how: instances.Launch, args: Sequence[Any]) -> None:
        """Run a kernel; ``args``: NumPy scalars, structures, arrays, ctypes values, addresses (int), None for null."""
        values = [_value(arg) for arg in args]
        packed = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self.launch_packed(name, how.grid, how.block, how.shared_bytes, ctypes.addressof(packed))

    def launch_packed(self, name: str, grid: int, block: int, shared_bytes: int, args: int) -> None:
        """Run a kernel; ``args`` is the address of a ``void**`` as ``cuLaunchKernel`` takes it."""
        kernel, wait = self._omitted
        self._library.householder_emulated_omit(wait if kernel in name else -1)
        failed = self._library.householder_emulated_launch(
            name.encode(), grid, block, shared_bytes, ctypes.c_void_p(args)
        )
        if failed:
            raise EmulationError(f"{name}: {self._library.householder_emulated_error().decode()}")


def _value(arg: Any) -> Any:
    """What one entry of the ``void**`` points to."""
    if isinstance(arg, np.generic):
        return np.ctypeslib.as_ctypes_type(arg.dtype)(arg.item())
    if isinstance(arg, np.ndarray) and arg.dtype.fields:
        return (ctypes.c_char * arg.nbytes).from_buffer_copy(arg)
    if isinstance(arg, np.ndarray):
        return ctypes.c_void_p(arg.ctypes.data)
    if arg is None or isinstance(arg, int):
        return ctypes.c_void_p(arg)
    return arg


def compiler() -> str | None:
    """The C++ compiler, if there is one."""
    return shutil.which(os.environ.get("CXX", "g++"))


def build(names: Iterable[str], *, sanitize: bool = False, edit: Edit | None = None) -> Library:
    """Compile the kernels of these name expressions, or find them compiled."""
    return Library(build_path(names, sanitize=sanitize, edit=edit))


def build_path(names: Iterable[str], *, sanitize: bool = False, edit: Edit | None = None) -> Path:
    """Return the path of the shared library of :func:`build`."""
    texts = {name: (CUDA / name).read_text() for name in SOURCES}
    if edit is not None:
        texts[edit[0]] = _edited(texts[edit[0]], *edit[1:])
    texts |= {name: (HERE / name).read_text() for name in HEADERS}
    texts["kernels.cpp"] = _table(SOURCES, sorted(set(names)))
    flags = SANITIZED if sanitize else OPTIMISED
    key = hashlib.sha256(repr((sorted(texts.items()), flags)).encode()).hexdigest()[:20]
    folder = Path(tempfile.gettempdir()) / f"householder-emulation-{os.getuid()}" / key
    path = folder / "libhouseholder_emulated.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
        unfinished = folder / f"{os.getpid()}.so"
        command = [compiler() or "g++", "-std=c++17", "-shared", "-fPIC", "-Wall", "-Wextra", "-Wno-unknown-pragmas"]
        command += ["-fvisibility=hidden", *flags, "-o", str(unfinished), str(folder / "kernels.cpp")]
        subprocess.run(command, check=True)
        unfinished.replace(path)
    return path


def _edited(text: str, old: str, new: str, number: int) -> str:
    parts = text.split(old)
    assert len(parts) > number + 1, f"{old!r} occurs {len(parts) - 1} times"
    return old.join(parts[: number + 1]) + new + old.join(parts[number + 1 :])


def _table(sources: Sequence[str], names: list[str]) -> str:
    includes = "\n".join(f'#include "{name}"' for name in ("library.hpp", *sources))
    rows = "\n".join(f'    {{"{name}", {_extent(name)}, run<{name}>}},' for name in names)
    return f"""{includes}

namespace library {{
template <auto KERNEL>
void run(void** arguments) {{
  call(KERNEL, arguments);
}}

const Kernel KERNELS[] = {{
{rows}
    {{nullptr, 0, 0, nullptr}},
}};
}}  // namespace library
"""


def _extent(name: str) -> str:
    """Threads of a block and blocks of a cluster, from the template arguments."""
    sizes = [int(size) for size in re.findall(r"[<,] *(\d+)", name)]
    kernel = name.removeprefix("householder::").partition("_")[0]
    if kernel in ("lowrank", "dense"):
        return f"{sizes[-2]}, {sizes[-1]}"
    if kernel == "probe":
        return "32, 8"
    threads = {"factors": sizes[-1:], "gradients": sizes[-1:], "application": [32]}.get(kernel) or [256]
    return f"{threads[0]}, 1"
