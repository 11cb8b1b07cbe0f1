"""Array libraries as kernels need them: addresses, devices and streams of the arrays of NumPy, CuPy and torch.

The backend is written for CuPy arrays and torch tensors; NumPy arrays serve tests without a device.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from typing import ClassVar, NamedTuple

import numpy as np

from householder._base.types import AnyArray, AnyDtype, Array
from householder._cuda.device import imported
from householder._mathematics import library as libraries

LARGEST_SOLVE = 512
"""Size up to which torch solves a triangular system without MAGMA, which would wait for the device."""


class KernelLibrary(libraries.Library):
    """An array library as kernels need it; as it stands, NumPy."""

    has_steps: ClassVar[bool] = False
    """Whether sequences can run without kernels, in torch operations."""

    def empty(self, shape: tuple[int, ...], like: AnyArray, dtype: AnyDtype = None) -> AnyArray:
        """Allocate, by default of the dtype of another array, on its device."""
        return self.xp.empty(shape, dtype=like.dtype if dtype is None else dtype)

    def to_host(self, a: AnyArray) -> Array:
        """Bring an array to the host."""
        return np.asarray(a)

    def from_host(self, a: Array, like: AnyArray, dtype: AnyDtype) -> AnyArray:  # noqa: ARG002
        """Bring an array to the device of another one, in a dtype."""
        return self.xp.asarray(a, dtype=dtype)

    def contiguous(self, a: AnyArray) -> AnyArray:
        """Return a C-contiguous, aligned array; ``a`` itself if it already is."""
        a = self.xp.ascontiguousarray(a)
        return a.copy() if self.pointer(a) % a.itemsize else a

    def name(self, dtype: AnyDtype) -> str:
        """Return the name of a dtype."""
        return _dtype_name(dtype)

    def pointer(self, a: AnyArray) -> int:
        """Return the address of an array; 0 for None."""
        return 0 if a is None else int(a.ctypes.data)

    def pointers(self, *arrays: AnyArray) -> list[int]:
        """Return the addresses of arrays."""
        return [*map(self.pointer, arrays)]

    def device(self, a: AnyArray) -> int:  # noqa: ARG002
        """Return the number of the device an array is on."""
        return 0

    def current(self, a: AnyArray) -> AbstractContextManager[object]:  # noqa: ARG002
        """Return a context in which CuPy's device and stream are those of the array; launches need it."""
        return nullcontext()

    def linear(self, x: AnyArray, weight: AnyArray, bias: AnyArray) -> AnyArray:
        """Compute ``x weight^T + bias``; ``weight`` and ``bias`` may be None."""
        a = x if weight is None else x @ weight.T
        return a if bias is None else a + bias

    def allows_tf32(self) -> bool:
        """Return whether float32 products may round their factors to 11 bits."""
        return os.environ.get("CUPY_TF32") == "1"

    def minus_product(self, c: AnyArray, a: AnyArray, b: AnyArray) -> AnyArray:
        """Compute ``c - a b``."""
        return c - a @ b


class Cupy(KernelLibrary):
    """CuPy, on its current device and stream."""

    def to_host(self, a: AnyArray) -> Array:
        host: Array = a.get()
        return host

    def pointer(self, a: AnyArray) -> int:
        return 0 if a is None else int(a.data.ptr)

    def device(self, a: AnyArray) -> int:
        return int(a.device.id)

    def current(self, a: AnyArray) -> AbstractContextManager[object]:
        device: AbstractContextManager[object] = a.device
        return device


class _Stream(NamedTuple):
    """A stream as CuPy takes it from other libraries."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


class Torch(libraries.TorchLibrary, KernelLibrary):
    """torch, on its current stream, allocating from its cache."""

    has_steps: ClassVar[bool] = True

    # Methods of tensors take less of the host's time than the standard's functions around them.

    def is_complex(self, a: AnyArray) -> bool:
        return bool(a.is_complex())

    def cast(self, a: AnyArray, dtype: AnyDtype) -> AnyArray:
        return a if a.dtype is dtype else a.to(dtype)

    def empty(self, shape: tuple[int, ...], like: AnyArray, dtype: AnyDtype = None) -> AnyArray:
        return like.new_empty(shape) if dtype is None else like.new_empty(shape, dtype=dtype)

    def to_host(self, a: AnyArray) -> Array:
        host: Array = a.detach().cpu().numpy()
        return host

    def from_host(self, a: Array, like: AnyArray, dtype: AnyDtype) -> AnyArray:
        return self.xp.from_numpy(a).to(like.device, dtype)

    def contiguous(self, a: AnyArray) -> AnyArray:
        if not a.is_contiguous() or a.is_conj() or a.is_neg():
            a = a.resolve_conj().resolve_neg().contiguous()
        return a.clone() if a.data_ptr() % a.itemsize else a

    def pointer(self, a: AnyArray) -> int:
        return 0 if a is None else int(a.data_ptr())

    def pointers(self, *arrays: AnyArray) -> list[int]:
        return [0 if a is None else a.data_ptr() for a in arrays]

    def device(self, a: AnyArray) -> int:
        return int(a.get_device())

    @contextmanager
    def current(self, a: AnyArray) -> Iterator[None]:
        cuda, index = imported().cuda, self.device(a)
        stream = _Stream(self.xp.cuda.current_stream(index).cuda_stream)
        with cuda.Device(index), cuda.Stream.from_external(stream):
            yield

    def linear(self, x: AnyArray, weight: AnyArray, bias: AnyArray) -> AnyArray:
        return super().linear(x, weight, bias) if weight is None else self.xp.nn.functional.linear(x, weight, bias)

    def allows_tf32(self) -> bool:
        try:
            return bool(self.xp.backends.cuda.matmul.allow_tf32)
        except RuntimeError:  # the user has set it by torch's newer names
            return True

    def minus_product(self, c: AnyArray, a: AnyArray, b: AnyArray) -> AnyArray:
        product = self.xp.addmm if c.ndim == 2 else self.xp.baddbmm
        return product(c, a, b, alpha=-1)

    def inverse(self, triangle: AnyArray) -> AnyArray:
        """Invert as the base class does, but by a triangular solve where that does not wait for the device."""
        k = triangle.shape[-1]
        if k <= LARGEST_SOLVE:
            return self.solve(triangle, self.eye(k, triangle), upper=True)
        inverse = self.zeros(triangle.shape, triangle)
        first, second = slice(k // 2), slice(k // 2, k)
        for half in (first, second):
            inverse[..., half, half] = self.inverse(triangle[..., half, half])
        corner = inverse[..., first, first] @ triangle[..., first, second] @ inverse[..., second, second]
        inverse[..., first, second] = -corner
        return inverse


_KNOWN = {"numpy": KernelLibrary, "cupy": Cupy, "torch": Torch}


@cache
def _library(name: str) -> KernelLibrary:
    return _KNOWN[name](import_module(f"array_api_compat.{name}"))


def library_of(a: AnyArray) -> KernelLibrary:
    """Choose the library by the type of an array or its base types."""
    return _library(_name(a.__class__))


@cache
def _dtype_name(dtype: AnyDtype) -> str:
    return str(dtype).rpartition(".")[2]


@cache
def _name(kind: type[object]) -> str:
    modules = (base.__module__.partition(".")[0] for base in kind.__mro__)
    return next(name for name in modules if name in _KNOWN)
