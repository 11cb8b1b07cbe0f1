"""``libhouseholder_torch``: the kernels, and torch's operators of this package without Python."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ctypes import CDLL

_loaded: CDLL | None = None


def path() -> Path | None:
    """Return the path of the library, or None on systems without it."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    file = Path(__file__).parents[1] / "lib" / f"libhouseholder_torch.{suffix}"  # beside modules it would look like one
    return file if file.exists() else None


def register_kernels() -> None:
    """Register its kernels with the torch of this process, if there is a library.

    Raises
    ------
    ImportError
        This torch lacks a function of its stable C interface.
    """
    global _loaded
    from ctypes import CDLL, c_char_p

    file = path()
    if file is None:
        return
    library = CDLL(str(file))
    register = library.householder_torch_register_kernels
    register.restype = c_char_p
    if reason := register():
        raise ImportError(reason.decode())
    _loaded = library


def is_loaded() -> bool:
    """Return whether this process has the library, which has a kernel for each operator."""
    return _loaded is not None


def can_save() -> bool:
    """Return whether its forward operators can save: they then also return a tensor for what they saved."""
    return _loaded is not None and bool(_loaded.householder_torch_can_save())


def original(error: RuntimeError) -> Exception:
    """Return the exception that a kernel meant; all exceptions of C++ arrive as RuntimeError."""
    text = str(error)
    kind = 0 if _loaded is None else _loaded.householder_torch_kind_of(text.encode())
    return (error, ValueError(text), TypeError(text), MemoryError(text))[kind]
