"""V, S and A, and gradients of u, of many matrices by one launch each, where a block's shared memory holds S."""

from math import prod
from typing import Any

import numpy as np

from householder._cuda import instances, kernels
from householder._cuda.instances import Launch, SquareKernel
from householder._cuda.library import Library


def form(library: Library, u: Any, k: int, wide: Any) -> tuple[Any, ...] | None:
    """Give V, T, S, A and norms of ``u (..., n, m)`` with k reflections; None where no kernel does that."""
    *many, n, m = u.shape
    found = _kernel("factors", library, u, n, k)
    if found is None:
        return None
    u = library.contiguous(u)
    v, a = (library.empty((*many, n, k), u) for _ in range(2))
    t, s = (library.empty((*many, k, k), u, wide) for _ in range(2))
    norm = library.empty((*many, 1, k), u, library.real(u))
    pointers = (library.pointer(array) for array in (u, v, a, s, t, norm))
    with library.current(u):
        kernels.launch(library.device(u), "factors", *found, (*pointers, *map(np.int32, (n, m, k))))
    return v, t, s, a, norm


def gradient(library: Library, v: Any, s: Any, c1: Any, c2: Any, norm: Any) -> Any:
    """Give the gradient of u's reflections, ``(..., n, k)``, in the names of ``cuda/gradients.cu``; None as above."""
    n, k = v.shape[-2:]
    found = _kernel("gradients", library, v, n, k)
    if found is None:
        return None
    grad_u = library.empty(v.shape, v)
    arrays = (*map(library.contiguous, (v, s, c1, c2, norm)), grad_u)
    with library.current(v):
        arguments = (*map(library.pointer, arrays), np.int32(n), np.int32(k))
        kernels.launch(library.device(v), "gradients", *found, arguments)
    return grad_u


def _kernel(kernel: SquareKernel, library: Library, like: Any, n: int, k: int) -> tuple[str, Launch] | None:
    """Give name and launch of the kernel for as many matrices as ``like (..., n, m)`` has, or None."""
    if not kernels.available():
        return None
    capability = kernels.device_of(library.device(like)).capability
    return instances.square(kernel, n, k, prod(like.shape[:-2]), library.name(like.dtype), capability)
