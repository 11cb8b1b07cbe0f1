"""V, S and A, and gradients of u, for many matrices in one launch each, if a block's shared memory holds S."""

from functools import lru_cache
from math import prod

import numpy as np

from householder import reference
from householder._base.types import AnyArray
from householder._cuda import instances, kernels, trials, verdicts
from householder._cuda.instances import SquareKernel
from householder._cuda.kernels import LaunchPlan
from householder._cuda.library import KernelLibrary


def form(library: KernelLibrary, u: AnyArray, k: int, with_t: bool = False) -> tuple[AnyArray, ...] | None:
    """Return V, T if asked, S, A and norms of ``u (..., n, m)`` with k reflections; None if no kernel serves them."""
    *batch_shape, n, m = u.shape
    index = library.device(u)
    plan = _usable_plan("factors", index, library, u, n, m, k)
    if plan is None:
        return None
    u, empty = library.contiguous(u), library.empty
    v, a = empty((*batch_shape, n, k), u), empty((*batch_shape, n, k), u)
    wide = library.wide(u)
    s = empty((*batch_shape, k, k), u, wide)
    t = empty((*batch_shape, k, k), u, wide) if with_t else None
    norm = empty((*batch_shape, 1, k), u, u.real.dtype)
    arguments = (*library.pointers(u, v, a, s, t, norm), *plan.sizes)
    kernels.launch(index, "factors", plan.name, plan.config, arguments)
    return v, t, s, a, norm


def gradient(library: KernelLibrary, v: AnyArray, s: AnyArray, c1: AnyArray, c2: AnyArray, norm: AnyArray) -> AnyArray:
    """Return the gradient of u's reflections, ``(..., n, k)``, or None if no kernel serves them.

    Names are those of ``cuda/gradients.cu``.
    """
    n, k = v.shape[-2:]
    index = library.device(v)
    plan = _usable_plan("gradients", index, library, v, n, k, k)
    if plan is None:
        return None
    grad_u = library.empty(v.shape, v)
    arrays = (*map(library.contiguous, (v, s, c1, c2, norm)), grad_u)
    kernels.launch(index, "gradients", plan.name, plan.config, (*library.pointers(*arrays), *plan.sizes))
    return grad_u


def _usable_plan(
    kernel: SquareKernel, index: int, library: KernelLibrary, like: AnyArray, n: int, m: int, k: int
) -> LaunchPlan | None:
    """Return the plan of the kernel for as many matrices as ``like (..., n, m)`` has, or None."""
    if not kernels.available():
        return None
    plan = _plan(kernel, index, n, m, k, prod(like.shape[:-2]), library.name(like.dtype))
    if plan is None or not verdicts.usable(index, plan.name, _try, kernel, library, like, min(n, 2 * k + 1), k):
        return None
    return plan


@lru_cache(kernels.PLANS)
def _plan(kernel: SquareKernel, index: int, n: int, m: int, k: int, count: int, dtype: str) -> LaunchPlan | None:
    chosen = instances.square(kernel, n, k, count, dtype, kernels.device_of(index).capability)
    sizes = (n, m, k) if kernel == "factors" else (n, k)
    return None if chosen is None else LaunchPlan(*chosen, tuple(map(np.int32, sizes)))


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
