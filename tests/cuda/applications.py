"""Factors and applications for the kernels to compute, against explicit reflections in double precision."""

from typing import Any, NamedTuple

import numpy as np

from householder import reference
from householder._cuda import instances
from tests.cuda.sequences import SCHEDULES

TOLERANCE = {"float32": 2e-6, "complex64": 2e-6, "float64": 4e-15, "complex128": 4e-15}
"""Largest error, relative to the largest entry: a few roundings."""


class Case(NamedTuple):
    """Matrices ``u (count, n, m)``, and ``rows`` vectors for each; without rows: their factors."""

    n: int
    m: int
    dtype: str = "float32"
    rows: int = 0
    transpose: bool = False
    count: int = 5

    @property
    def k(self) -> int:
        return self.m - (self.m == self.n and not self.dtype.startswith("complex"))

    @property
    def wide(self) -> Any:
        return np.complex128 if self.dtype.startswith("complex") else np.float64

    @property
    def launches(self) -> list[tuple[str, instances.Launch]]:
        """Names and launches of the kernels."""
        if not self.rows:
            sizes = self.n, self.k, self.count, self.dtype, 90
            found = [instances.square(kernel, *sizes) for kernel in ("factors", "gradients")]
        else:
            sizes = self.n, self.m, self.count, self.rows, self.dtype
            found = [instances.application(d, *sizes) for d in ("forward", "backward")]
        assert None not in found, self
        return found

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.launches]

    def numbers(self, *shape: int) -> Any:
        rng = np.random.default_rng([self.n, self.m, len(shape)])
        real = rng.standard_normal(shape)
        return (real if self.wide is np.float64 else real + 1j * rng.standard_normal(shape)).astype(self.dtype)

    @property
    def u(self) -> Any:
        """Columns of any length, one of them zero; above the diagonal what is to be ignored."""
        u = self.numbers(self.count, self.n, self.m)
        u[0] *= 1e-30 if self.n > 1 and self.m < self.n else 1
        u[-1] *= 1e30 if self.n > 1 and self.m < self.n else 1
        u[1, :, self.k // 2 : self.k // 2 + (self.k > 1)] = 0
        u[:, *np.triu_indices(self.n, 1, self.m)] = np.nan
        return u


class Spoiled(Case):
    """One entry of matrix 2 is not a number."""

    @property
    def u(self) -> Any:
        u = super().u
        u[2, -1, 0] = np.nan
        return u


def check(case: Case, library: Any, schedules: tuple[int, ...] = SCHEDULES) -> str:
    """Run the case under every schedule; a description of what is wrong, empty if nothing is."""
    run, exact = (apply, applied) if case.rows else (form, formed)
    results = []
    for schedule in schedules:
        library.set_schedule(schedule)
        results.append(run(case, library))
    for name, expected in exact(case).items():
        largest = np.abs(expected).max(axis=tuple(range(1, expected.ndim)), keepdims=True)
        error = (np.abs(results[0][name] - expected) / np.where(largest == 0, 1, largest)).max()
        if not error <= TOLERANCE[case.dtype]:
            return f"{case}: {name} differs by {error:.2g}"
    for result in results[1:]:
        for name, a in results[0].items():
            if a.tobytes() != result[name].tobytes():
                return f"{case}: {name} depends on the order of the threads"
    return ""


def form(case: Case, library: Any) -> dict[str, Any]:
    """V, A, S, T, norms of nonzero columns, and the gradient for given sums, by the kernels."""
    (name, launch), (gradient, gradient_launch) = case.launches
    count, n, m, k = case.count, case.n, case.m, case.k
    u = case.u
    v, a = (np.full((count, n, k), np.nan, case.dtype) for _ in range(2))
    s, t = (np.full((count, k, k), np.nan, case.wide) for _ in range(2))
    norm = np.full((count, k), np.nan, v.real.dtype)
    library.launch(name, launch, [u, v, a, s, t, norm, *map(np.int32, (n, m, k))])
    assert (np.isinf(norm) == ~v.any(axis=1)).all()
    grad_u, s_narrow = np.full(v.shape, np.nan, case.dtype), s.astype(case.dtype)
    arrays = [v, s_narrow, *_sums(case), norm, grad_u]
    library.launch(gradient, gradient_launch, [*arrays, *map(np.int32, (n, k))])
    norm = np.where(np.isinf(norm), 0, norm)
    return {"v": v, "a": a, "s": s, "t": t, "norm": norm, "u": grad_u * norm[:, None]}


def formed(case: Case) -> dict[str, Any]:
    """The same by the reference."""
    u = np.tril(case.u.astype(case.wide))
    v, t, s = map(np.stack, zip(*map(reference.wy, u), strict=True))
    norm = np.linalg.norm(u, axis=1)[:, : case.k]
    c1, c2 = (a.astype(case.wide) for a in _sums(case))
    lower = np.tril(s @ (v.conj().mT @ c2)) * (1 - np.eye(case.k) / 2)
    grad_u = np.tril(v @ (lower + lower.conj().mT) - c1 @ s.conj().mT - c2)
    return {"v": v, "a": v @ s, "s": s, "t": t, "norm": norm, "u": np.where(norm == 0, 0, 1)[:, None] * grad_u}


def _sums(case: Case) -> Any:
    return case.numbers(2, case.count, case.n, case.k)


def apply(case: Case, library: Any) -> dict[str, Any]:
    """Products, and gradients of u and h, by the kernels."""
    u, h, g = _operands(case)
    c, grad_u, grad_h = (np.full(a.shape, np.nan, a.dtype) for a in (h, u, h))
    sizes = [*map(np.int32, (case.count, case.n, case.m, case.rows, case.transpose))]
    (forward, forward_launch), (backward, backward_launch) = case.launches
    library.launch(forward, forward_launch, [u, h, c, *sizes])
    library.launch(backward, backward_launch, [u, h, g, grad_u, grad_h, *sizes])
    return {"c": c, "u": grad_u * _lengths(u), "h": grad_h}


def applied(case: Case) -> dict[str, Any]:
    """The same by the reference."""
    u, h, g = (a.astype(case.wide) for a in _operands(case))
    u, lengths = np.tril(u), _lengths(u)
    c = [reference.forward(a, b, transpose=case.transpose) for a, b in zip(u, h, strict=True)]
    grads = [reference.backward(*each, transpose=case.transpose) for each in zip(u, h, g, strict=True)]
    return {"c": np.stack(c), "u": np.stack([a[0] for a in grads]) * lengths, "h": np.stack([a[1] for a in grads])}


def _operands(case: Case) -> tuple[Any, Any, Any]:
    h, g = case.numbers(2, case.count, case.rows, case.n)
    return case.u, h, g


def _lengths(u: Any) -> Any:
    """Norms of columns, by which gradients are multiplied so that they are of one size."""
    lengths = np.linalg.norm(np.tril(u).astype(np.result_type(u, np.float64)), axis=1, keepdims=True)
    return np.where((lengths == 0) | (u.shape[1] == u.shape[2]), 1, lengths)
