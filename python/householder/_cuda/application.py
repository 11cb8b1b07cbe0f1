"""Applications and their gradients: one launch for many small matrices with few vectors each, else matrix products.

Shapes are those of :mod:`householder._cuda.algebra`.
"""

from functools import lru_cache
from math import prod

import numpy as np

from householder import reference
from householder._base.types import AnyArray
from householder._cuda import algebra, instances, kernels, trials, verdicts
from householder._cuda.algebra import Form
from householder._cuda.instances import Direction
from householder._cuda.kernels import LaunchPlan
from householder._cuda.library import library_of


def canonical(u: AnyArray, *vectors: AnyArray) -> list[AnyArray]:
    """Return ``u (n, m)`` with rows ``(r, n)``, or ``u (c, n, m)`` with rows ``(c, r, n)``."""
    *batch_shape, n, m = u.shape
    count = prod(batch_shape)
    shape = *[count] * bool(batch_shape), prod(vectors[0].shape) // (count * n or 1), n
    return [u.reshape(count, n, m) if batch_shape else u, *(a.reshape(shape) for a in vectors)]


def forward(
    u: AnyArray, rows: AnyArray, phases: AnyArray, transpose: bool, method: str
) -> tuple[AnyArray, Form | None]:
    """Return ``W h`` or ``W* h`` for each row h, and, for ``backward``, the form of u if matrix products formed it."""
    plan = _usable_plan("forward", u, rows, phases, transpose, method)
    if plan is None:
        f = algebra.form_for(u, phases, rows.shape[-2], method)
        return algebra.by_method(f, rows, transpose, method), f
    c = library_of(u).empty(rows.shape, u)
    _launch(plan, u, rows, (c,))
    return c, None


def backward(
    u: AnyArray,
    rows: AnyArray,
    grads: AnyArray,
    phases: AnyArray,
    transpose: bool,
    method: str,
    *,
    needs_h: bool = True,
    form: Form | None = None,
) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Return the gradients of u, of the rows if ``needs_h``, and of phases, from those of ``forward``'s result."""
    plan = _usable_plan("backward", u, rows, phases, transpose, method)
    if plan is None:
        f = form if form is not None else algebra.form_for(u, phases, rows.shape[-2], method if needs_h else "wy")
        grad_u, grad_phases = algebra.gradients(f, rows, grads, transpose, phases is not None)
        return grad_u, algebra.by_method(f, grads, not transpose, method) if needs_h else None, grad_phases
    library = library_of(u)
    grad_u, grad_h = library.empty(u.shape, u), library.empty(rows.shape, u) if needs_h else None
    _launch(plan, u, rows, (library.contiguous(grads), grad_u, grad_h))
    return grad_u, grad_h, None


def _usable_plan(
    direction: Direction, u: AnyArray, rows: AnyArray, phases: AnyArray, transpose: bool, method: str
) -> LaunchPlan | None:
    """Return the plan of the kernel for this shape and method, or None."""
    if phases is not None or method not in ("auto", "reflections"):
        return None
    if not kernels.available():
        return None
    n, m = u.shape[-2:]
    library = library_of(u)
    plan = _plan(direction, n, m, u.shape[0] if u.ndim == 3 else 1, rows.shape[-2], transpose, library.name(u.dtype))
    if plan is None or not verdicts.usable(library.device(u), plan.name, _try, direction, u, n):
        return None
    return plan


@lru_cache(kernels.PLANS)
def _plan(
    direction: Direction, n: int, m: int, count: int, rows: int, transpose: bool, dtype: str
) -> LaunchPlan | None:
    chosen = instances.application(direction, n, m, count, rows, dtype)
    return None if chosen is None else LaunchPlan(*chosen, tuple(map(np.int32, (count, n, m, rows, transpose))))


def _try(direction: Direction, like: AnyArray, n: int) -> None:
    """Compare more matrices than a warp takes with the reference, two vectors each."""
    library, count, m, rows = library_of(like), 9, min(n, 3), 2
    m -= m == n and library.is_complex(like)
    dtype = library.name(like.dtype)
    host = [trials.numbers(shape, dtype, i) for i, shape in enumerate(((count, n, m), *[(count, rows, n)] * 2))]
    u, h, g = (library.from_host(a, like, like.dtype) for a in host)
    if direction == "forward":
        results = [forward(u, h, None, False, "auto")[0]]
        expected = [np.stack([reference.forward(*one) for one in zip(*host[:2], strict=True)])]
    else:
        results = list(backward(u, h, g, None, False, "auto")[:2])
        gradients = [reference.backward(*one) for one in zip(*host, strict=True)]
        expected = [np.stack([one[0] for one in gradients]), np.stack([one[1] for one in gradients])]
    trials.compare(library, results, expected, dtype)


def _launch(plan: LaunchPlan, u: AnyArray, rows: AnyArray, others: tuple[AnyArray, ...]) -> None:
    library = library_of(u)
    arrays = (library.contiguous(u), library.contiguous(rows), *others)  # which live until the launch is queued
    arguments = (*library.pointers(*arrays), *plan.sizes)
    kernels.launch(library.device(u), "application", plan.name, plan.config, arguments)
