"""The few operations for which NumPy, CuPy and torch have different names or different best ways.

The backend is written for CuPy arrays and torch tensors; NumPy arrays take the same way in tests without a device.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from householder._cuda.device import cupy

LARGEST_SOLVE = 512
"""Size up to which torch solves a triangular system without MAGMA, which would wait for the device."""


@dataclass(frozen=True)
class Numpy:
    """NumPy."""

    xp: Any
    has_steps: ClassVar[bool] = False
    """Whether sequences can run without kernels, in torch operations."""

    def cast(self, a: Any, dtype: Any) -> Any:
        """Convert to a dtype; return the same array if it already has it."""
        return self.xp.asarray(a, dtype)

    def empty(self, shape: tuple[int, ...], like: Any, dtype: Any = None) -> Any:
        """Allocate, by default of the dtype of another array, on its device."""
        return self.xp.empty(shape, like.dtype if dtype is None else dtype)

    def zeros(self, shape: tuple[int, ...], like: Any) -> Any:
        """Allocate zeros of the dtype of another array."""
        return self.xp.zeros(shape, like.dtype)

    def eye(self, k: int, like: Any) -> Any:
        """Give the identity in the dtype of another array."""
        return self.xp.eye(k, dtype=like.dtype)

    def to_host(self, a: Any) -> np.ndarray[Any, Any]:
        """Bring an array to the host."""
        return np.asarray(a)

    def from_host(self, a: np.ndarray[Any, Any], like: Any, dtype: Any) -> Any:  # noqa: ARG002
        """Bring an array to the device of another one, in a dtype."""
        return self.xp.asarray(a, dtype)

    def contiguous(self, a: Any) -> Any:
        """Lay out row by row, at an address that is a multiple of a number's size; the same array where it is so."""
        a = self.xp.ascontiguousarray(a)
        return a.copy() if self.pointer(a) % a.itemsize else a

    def name(self, dtype: Any) -> str:
        """Give the name of a dtype."""
        return str(dtype).rpartition(".")[2]

    def dtype(self, name: str) -> Any:
        """Give the dtype of a name."""
        return getattr(self.xp, name)

    def real(self, a: Any) -> Any:
        """Give the dtype of the real and imaginary parts of an array."""
        return a.real.dtype

    def pointer(self, a: Any) -> int:
        """Give the address of an array; 0 for None."""
        return 0 if a is None else int(a.ctypes.data)

    def device(self, a: Any) -> int:  # noqa: ARG002
        """Give the number of the device an array is on."""
        return 0

    def current(self, a: Any) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Make the device of an array, and the current stream of its library, CuPy's current ones."""
        return nullcontext()

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """Compute ``x weight^T + bias``; ``weight`` and ``bias`` may be None."""
        a = x if weight is None else x @ weight.T
        return a if bias is None else a + bias

    def allows_tf32(self) -> bool:
        """Whether float32 products may round their factors to 11 bits."""
        return os.environ.get("CUPY_TF32") == "1"

    def minus_product(self, c: Any, a: Any, b: Any) -> Any:
        """Compute ``c - a b``."""
        return c - a @ b

    def inverse_upper(self, t: Any) -> Any:
        """Invert upper-triangular matrices ``(..., k, k)``: diagonal blocks, of twice the size in each round.

        ``[[A, B], [0, D]]^-1 = [[A^-1, -A^-1 B D^-1], [0, D^-1]]``
        """
        xp, k, batch = self.xp, t.shape[-1], t.shape[:-2]
        rounds = max(k - 1, 0).bit_length()
        size = 1 << rounds
        padded = xp.zeros((*batch, size, size), t.dtype)
        padded[...] = xp.eye(size, dtype=t.dtype)
        padded[..., :k, :k] = t
        inverse = 1 / xp.diagonal(padded, 0, -2, -1)[..., None, None]  # (..., blocks, 1, 1)
        for done in range(rounds):
            block, pairs = 1 << done, size >> (done + 1)
            split = padded.reshape(*batch, pairs, 2, block, pairs, 2, block)[..., :, 0, :, :, 1, :]
            above = xp.moveaxis(xp.diagonal(split, 0, -4, -2), -1, -3)  # B of every pair
            first, second = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
            corner = -(first @ above @ second)
            upper = xp.concatenate([first, corner], axis=-1)
            lower = xp.concatenate([xp.zeros_like(corner), second], axis=-1)
            inverse = xp.concatenate([upper, lower], axis=-2)
        return inverse[..., 0, :k, :k]


class Cupy(Numpy):
    """CuPy, on its current device and stream."""

    def to_host(self, a: Any) -> np.ndarray[Any, Any]:
        host: np.ndarray[Any, Any] = a.get()
        return host

    def pointer(self, a: Any) -> int:
        return 0 if a is None else int(a.data.ptr)

    def device(self, a: Any) -> int:
        return int(a.device.id)

    def current(self, a: Any) -> AbstractContextManager[Any]:
        device: AbstractContextManager[Any] = a.device
        return device


class _Stream(NamedTuple):
    """A stream as CuPy takes it from other libraries."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


class Torch(Numpy):
    """torch, on its current stream, allocating from its cache."""

    has_steps: ClassVar[bool] = True

    def cast(self, a: Any, dtype: Any) -> Any:
        return a.to(dtype)

    def empty(self, shape: tuple[int, ...], like: Any, dtype: Any = None) -> Any:
        return like.new_empty(shape, dtype=dtype)

    def zeros(self, shape: tuple[int, ...], like: Any) -> Any:
        return like.new_zeros(shape)

    def eye(self, k: int, like: Any) -> Any:
        return self.xp.eye(k, dtype=like.dtype, device=like.device)

    def to_host(self, a: Any) -> np.ndarray[Any, Any]:
        host: np.ndarray[Any, Any] = a.detach().cpu().numpy()
        return host

    def from_host(self, a: np.ndarray[Any, Any], like: Any, dtype: Any) -> Any:
        return self.xp.from_numpy(a).to(like.device, dtype)

    def contiguous(self, a: Any) -> Any:
        a = a.resolve_conj().resolve_neg().contiguous()
        return a.clone() if self.pointer(a) % a.itemsize else a

    def pointer(self, a: Any) -> int:
        return 0 if a is None else int(a.data_ptr())

    def device(self, a: Any) -> int:
        return int(a.get_device())

    def current(self, a: Any) -> AbstractContextManager[Any]:
        return self._current(self.device(a))

    @contextmanager
    def _current(self, index: int) -> Iterator[None]:
        cuda = cupy().cuda
        stream = _Stream(self.xp.cuda.current_stream(index).cuda_stream)
        with cuda.Device(index), cuda.Stream.from_external(stream):
            yield

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return super().linear(x, weight, bias) if weight is None else self.xp.nn.functional.linear(x, weight, bias)

    def allows_tf32(self) -> bool:
        try:
            return bool(self.xp.backends.cuda.matmul.allow_tf32)
        except RuntimeError:  # the user has set it by torch's newer names
            return True

    def minus_product(self, c: Any, a: Any, b: Any) -> Any:
        product = self.xp.addmm if c.ndim == 2 else self.xp.baddbmm
        return product(c, a, b, alpha=-1)

    def inverse_upper(self, t: Any) -> Any:
        k = t.shape[-1]
        if k <= LARGEST_SOLVE:
            return self.xp.linalg.solve_triangular(t, self.eye(k, t), upper=True)
        inverse = self.zeros(tuple(t.shape), t)
        first, second = slice(k // 2), slice(k // 2, k)
        for half in (first, second):
            inverse[..., half, half] = self.inverse_upper(t[..., half, half])
        corner = inverse[..., first, first] @ t[..., first, second] @ inverse[..., second, second]
        inverse[..., first, second] = -corner
        return inverse


Library = Numpy
_KNOWN = {"numpy": Numpy, "cupy": Cupy, "torch": Torch}


@cache
def _library(name: str) -> Library:
    return _KNOWN[name](sys.modules[name])


def library_of(a: Any) -> Library:
    """Choose the library by the type of an array or its base types."""
    modules = (base.__module__.partition(".")[0] for base in type(a).__mro__)
    return _library(next(name for name in modules if name in _KNOWN))
