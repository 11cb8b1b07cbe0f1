"""Reflections of a given orthogonal or unitary matrix (Theorem 1)."""

from types import ModuleType
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from householder._base import validate
from householder._base.linear_map import Columns
from householder._base.types import Array, ArrayLike, Backend
from householder._functions.apply import backend_and_array, backward, matrix
from householder._functions.tangent import jvp

POLISHED = 0.05
"""The largest error by rounding after the first factorisation of a product."""
STEPS = 300
"""Steps of conjugate gradients before the reflections move and the Jacobian is computed again."""


@overload
def factor(q: NDArray[np.floating[Any]], m: int | None = None) -> Array: ...
@overload
def factor(q: NDArray[np.complexfloating[Any, Any]], m: int | None = None) -> tuple[Array, Array]: ...
@overload
def factor(q: ArrayLike, m: int | None = None) -> Array | tuple[Array, Array]: ...
def factor(q: ArrayLike, m: int | None = None) -> Array | tuple[Array, Array]:
    r"""Find reflections whose product is a given orthogonal or unitary matrix (Theorem 1): ``matrix(factor(q)) == q``.

    Parameters
    ----------
    q : array, shape (..., n, n)
        Orthogonal, or unitary with ``n >= 2``. :func:`nearest` finds the nearest such matrix.
    m : int, optional
        Number of reflections. By default it suffices for every matrix: n (real; the last column is the sign ``u_1``) or
        ``n - 1`` (complex).

    Returns
    -------
    u : array, shape (..., n, m)
        Unit columns. If a real q is a product of m reflections, along any vectors, then m reflections are found.
    phases : array, shape (..., n)
        Only for complex q.

    Raises
    ------
    TypeError
        As in :func:`apply`.
    ValueError
        q is not orthogonal (the message has ``max |q* q - I|``), or no product of m reflections was found (the message
        has the remaining difference). For real q, no such product exists then: ``q - I`` has a rank above m, or the
        determinant is not ``(-1) ** m``.

    Notes
    -----
    Fewer than ``n - 1`` complex reflections reach fewer matrices than one might expect. Column j of u begins with
    ``j - 1`` zeros, so ``W = H_n .. H_{n-m+1} diag(exp(i phases))`` has :math:`2nm - m^2 - m + n` real parameters. The
    unitary matrices with ``rank(q - D) <= m`` for a diagonal D of phases have m more. A matrix of this kind can be
    reached if its reflections, taken column by column, need no other phases than D. A product of one reflection can be
    reached for any vector. A product of two or more along vectors without these zeros cannot, except by chance.

    If ``2 m < n``, the entries outside the diagonal determine the phases, so every matrix that can be reached is found.
    If ``2 m >= n``, each of the first ``2 m - n + 1`` columns leaves the sign of its phase open. For up to 14 signs and
    ``n - m <= 12``, all choices are tried. Otherwise only the likelier choices are, so a matrix that can be reached may
    be refused. Rounding grows with m: at n = 33, double precision finds products of up to 22 dense reflections, and few
    of 23 to 31.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> swap = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> np.allclose(hh.matrix(hh.factor(swap)), swap), np.allclose(hh.matrix(hh.factor(swap, m=1)), swap)
    (True, True)
    """
    backend, q = backend_and_array("q", q)
    unitary = q.dtype.kind == "c"
    if q.ndim < 2 or q.shape[-2] != q.shape[-1] or q.shape[-1] < 1 + unitary:
        raise ValueError(f"q has shape {q.shape}, expected (..., n, n) with n >= {1 + unitary}")
    n = q.shape[-1]
    m = n - unitary if m is None else validate.integer("m", m, 1, n - unitary)
    if q.ndim == 2:
        u, phases = _factor_one(backend, q, m, "q")
    else:
        u = backend.xp.empty((*q.shape[:-2], n, m), q.dtype)
        phases = backend.xp.empty(q.shape[:-1], q.real.dtype) if unitary else None
        for i in np.ndindex(q.shape[:-2]):
            u[i], of_one = _factor_one(backend, q[i], m, f"q[{', '.join(map(str, i))}]")
            if phases is not None:
                phases[i] = of_one
    return u if phases is None else (u, phases)


def _factor_one(backend: Backend, q: Array, m: int, name: str) -> tuple[Array, Array | None]:
    n, unitary = len(q), q.dtype.kind == "c"
    tolerance = 10 * n * float(np.finfo(q.dtype).eps)
    u, phases, remainder = backend.factor(q, m)
    if phases is not None and m < n - 1 and tolerance / 10 < remainder < POLISHED:
        u, phases, remainder = _polish(backend.xp, q, u, phases, tolerance / 10)
    if not remainder <= tolerance:
        if not backend.xp.isfinite(q).all():
            raise ValueError(f"{name} has entries that are not finite")
        departure = backend.departure(q)
        if not departure <= tolerance:
            raise ValueError(
                f"{name} is not {'unitary' if unitary else 'orthogonal'}: max |q* q - I| is {departure:.3g}; "
                "nearest makes it so"
            )
        if unitary:
            raise ValueError(
                f"{name} was not found to be a product of m = {m} reflections with leading zeros and of phases: "
                f"they leave max |q - matrix(W)| at {remainder:.3g}; m = n - 1 = {n - 1} reach every unitary q"
            )
        raise ValueError(
            f"{name} is not a product of m = {m} reflections: they leave max |q - matrix(u)| at {remainder:.3g}"
        )
    return u, phases


def _polish(xp: ModuleType, q: Array, u: Array, phases: Array, tolerance: float) -> tuple[Array, Array, float]:
    """Move reflections and phases until their product is nearest to q, in least squares (Gauss-Newton).

    Finding reflections one after the other lets rounding grow. Steps are found by conjugate gradients in double
    precision. The search ends when a round reduces the error by less than a fifth.
    """
    n = len(q)
    wide, unit = q.astype(complex), xp.eye(n, dtype=complex)
    best = (u.astype(complex), phases.astype(float))
    last_remainder = xp.inf
    while True:
        u, phases = best
        w = Columns(u, phases=phases)
        residual = wide.T - matrix(w).T
        remainder = float(abs(residual).max())
        if remainder <= tolerance or not remainder < 0.8 * last_remainder:
            break
        last_remainder = remainder
        step = (xp.zeros_like(u), xp.zeros_like(phases))
        direction, size = step, xp.inf
        for _ in range(STEPS):
            gradients = backward(w, unit, residual)
            descent = (gradients.u, gradients.phases)
            square = sum((abs(a) ** 2).sum() for a in descent)
            if square == 0:
                break
            direction = tuple(a + square / size * b for a, b in zip(descent, direction, strict=True))
            size = square
            moved = jvp(w, unit, direction[0], xp.zeros_like(unit), tangent_phases=direction[1])
            length = square / (abs(moved) ** 2).sum()
            step = tuple(a + length * b for a, b in zip(step, direction, strict=True))
            residual = residual - length * moved
        best = (u + step[0], phases + step[1])
    rounded = (u.astype(q.dtype), phases.astype(q.real.dtype))
    return *rounded, float(abs(q - matrix(Columns(rounded[0], phases=rounded[1]))).max())
