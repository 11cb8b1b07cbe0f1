"""V, S and A, and gradients of u, for many matrices in one launch each, if a block's shared memory holds S."""

from functools import partial
from math import prod

import numpy as np

from householder import reference
from householder._base.types import AnyArray
from householder._cuda import instances, kernels, trials, verdicts
from householder._cuda.instances import Launch, SquareKernel
from householder._cuda.library import KernelLibrary


def form(library: KernelLibrary, u: AnyArray, k: int) -> tuple[AnyArray, ...] | None:
    """Return V, T, S, A and norms of ``u (..., n, m)`` with k reflections; None if no kernel serves the shape."""
    *batch_shape, n, m = u.shape
    kernel = _kernel("factors", library, u, n, k)
    if kernel is None:
        return None
    u = library.contiguous(u)
    v, a = (library.empty((*batch_shape, n, k), u) for _ in range(2))
    t, s = (library.empty((*batch_shape, k, k), u, library.wide(u)) for _ in range(2))
    norm = library.empty((*batch_shape, 1, k), u, u.real.dtype)
    pointers = (library.pointer(array) for array in (u, v, a, s, t, norm))
    kernels.launch(library.device(u), "factors", *kernel, (*pointers, *map(np.int32, (n, m, k))))
    return v, t, s, a, norm


def gradient(library: KernelLibrary, v: AnyArray, s: AnyArray, c1: AnyArray, c2: AnyArray, norm: AnyArray) -> AnyArray:
    """Return the gradient of u's reflections, ``(..., n, k)``, or None if no kernel serves them.

    Names are those of ``cuda/gradients.cu``.
    """
    n, k = v.shape[-2:]
    kernel = _kernel("gradients", library, v, n, k)
    if kernel is None:
        return None
    grad_u = library.empty(v.shape, v)
    arrays = (*map(library.contiguous, (v, s, c1, c2, norm)), grad_u)
    arguments = (*map(library.pointer, arrays), np.int32(n), np.int32(k))
    kernels.launch(library.device(v), "gradients", *kernel, arguments)
    return grad_u


def _kernel(kernel: SquareKernel, library: KernelLibrary, like: AnyArray, n: int, k: int) -> tuple[str, Launch] | None:
    """Return name and launch of the kernel for as many matrices as ``like (..., n, m)`` has, or None."""
    if not kernels.available():
        return None
    index = library.device(like)
    capability = kernels.device_of(index).capability
    chosen = instances.square(kernel, n, k, prod(like.shape[:-2]), library.name(like.dtype), capability)
    trial = partial(_try, kernel, library, like, min(n, 2 * k + 1), k)
    return chosen if chosen is not None and verdicts.usable(index, chosen[0], trial) else None


def _try(kernel: SquareKernel, library: KernelLibrary, like: AnyArray, n: int, k: int) -> None:
    """Compare two matrices, or the gradients of their reflections, with the reference."""
    dtype = library.name(like.dtype)
    u, p, g = (trials.numbers((2, *shape), dtype, i) for i, shape in enumerate(((n, k), (3, n), (3, n))))
    if kernel == "factors":
        results = form(library, library.from_host(u, like, like.dtype), k)
        assert results is not None  # the kernel on trial
        v, _, _, a, _ = results
        w = library.eye(n, v) - a @ library.xp.swapaxes(v, -1, -2).conj()
        trials.compare(library, [w], [np.stack([*map(reference.matrix, u)])], dtype)
        return
    v, _, s = (np.stack(parts) for parts in zip(*map(reference.wy, u), strict=True))
    c1 = g.swapaxes(1, 2) @ (p @ v.conj()).conj()
    c2 = p.swapaxes(1, 2) @ (g @ (v @ s).conj()).conj()
    norm = np.linalg.norm(np.tril(u), axis=1, keepdims=True)
    v, s, c1, c2 = (library.from_host(a, like, like.dtype) for a in (v, s, c1, c2))
    results = gradient(library, v, s, c1, c2, library.from_host(norm, like, like.real.dtype))
    expected = np.stack([reference.backward(*one)[0] for one in zip(u, p, g, strict=True)])
    trials.compare(library, [results], [expected], dtype)
