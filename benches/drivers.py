"""Programs of ours in C++ that call other libraries: each is built once, where its library is found."""

import ctypes
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path


@cache
def driver(name: str, *options: str) -> ctypes.CDLL | None:
    """Return ``native/NAME.cpp`` built with these options of the compiler, or None with a line that says why.

    ``NAME_ROOT``, in capitals, is the prefix of an installation that the compiler does not find by itself.
    """
    source = Path(__file__).with_name("native") / f"{name}.cpp"
    library = Path(tempfile.mkdtemp()) / f"{name}.so"
    command = ["c++", "-std=c++17", "-O2", "-shared", "-fPIC", str(source), "-o", str(library)]
    if root := os.environ.get(f"{name.upper()}_ROOT"):
        command += [f"-I{root}/include", f"-L{root}/lib", f"-Wl,-rpath,{root}/lib"]
    try:
        subprocess.run([*command, *options], check=True, capture_output=True, text=True)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        print(f"left out {name}: {reason.strip().splitlines()[0]}", file=sys.stderr)
        return None


def pointers(tensors) -> list[ctypes.c_void_p]:
    """Return where the numbers of tensors lie, which the caller keeps alive."""
    return [ctypes.c_void_p(t.data_ptr()) for t in tensors]
