"""Reflections of a given orthogonal or unitary matrix (Theorem 1)."""

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from householder import _validate
from householder._api import backend_of, backward, matrix
from householder._tangent import jvp
from householder._types import Array

POLISHED = 0.05
"""What a first factorisation of a product may leave by rounding, at most."""
STEPS = 100
"""Steps of conjugate gradients after which the reflections move and the Jacobian is taken anew."""


@overload
def factor(q: NDArray[np.floating[Any]], m: int | None = None) -> Array: ...
@overload
def factor(q: NDArray[np.complexfloating[Any, Any]], m: int | None = None) -> tuple[Array, Array]: ...
@overload
def factor(q: Any, m: int | None = None) -> Array | tuple[Array, Array]: ...
def factor(q: Any, m: int | None = None) -> Array | tuple[Array, Array]:
    r"""Reflections whose product is a given orthogonal or unitary matrix (Theorem 1): ``matrix(factor(q)) == q``.

    Parameters
    ----------
    q : array, shape (..., n, n)
        Orthogonal, or unitary with ``n >= 2``. :func:`nearest` makes any matrix so.
    m : int, optional
        Number of reflections; by default what any matrix can be made of, n (real, the last column being the sign
        ``u_1``) or ``n - 1`` (complex).

    Returns
    -------
    u : array, shape (..., n, m)
        Unit columns. A real product of m reflections, along any vectors, is found again with m.
    phases : array, shape (..., n)
        Only for complex q.

    Raises
    ------
    TypeError
        As in :func:`forward`.
    ValueError
        q is not orthogonal (the message has ``max |q* q - I|``), or no product of m reflections was found (the message
        has what m of them leave). No real one exists then: ``q - I`` has a rank above m, or the determinant is not
        ``(-1) ** m``.

    Notes
    -----
    With fewer than ``n - 1`` reflections, complex ones reach only part of what their number suggests. Column j of u
    begins with ``j - 1`` zeros, so ``W = H_n .. H_{n-m+1} diag(exp(i phases))`` has
    :math:`2nm - m^2 - m + n` real parameters. The unitary matrices with ``rank(q - D) <= m`` for a diagonal D of phases
    have m more. Reached are those of them whose reflections, taken column by column, need no other phases than D. A
    product of one reflection along any vector is among them. A product of two or more along vectors without these zeros
    is not, except by chance.

    Phases are determined by the entries outside the diagonal if ``2 m < n``, so matrices that are reached are found.
    Rounding grows with m: products of up to 16 dense reflections are found at n = 33, not all of 31 at n = 64.
    If ``2 m >= n``, each column leaves the sign of its phase open. The likelier one is taken, so a matrix that is
    reached may be refused.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> swap = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> np.allclose(hh.matrix(hh.factor(swap)), swap), np.allclose(hh.matrix(hh.factor(swap, m=1)), swap)
    (True, True)
    """
    backend = backend_of(q)
    q = backend.array("q", q)
    unitary = q.dtype.kind == "c"
    if q.ndim < 2 or q.shape[-2] != q.shape[-1] or q.shape[-1] < 1 + unitary:
        raise ValueError(f"q has shape {q.shape}, expected (..., n, n) with n >= {1 + unitary}")
    n = q.shape[-1]
    m = n - unitary if m is None else _validate.integer("m", m, 1, n - unitary)
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


def _factor_one(backend: Any, q: Array, m: int, name: str) -> tuple[Array, Array | None]:
    n, unitary = len(q), q.dtype.kind == "c"
    tolerance = 10 * n * float(np.finfo(q.dtype).eps)
    u, phases, remainder = backend.factor(q, m)
    if unitary and m < n - 1 and tolerance / 10 < remainder < POLISHED:
        u, phases, remainder = _polish(backend.xp, q, u, phases, tolerance / 10)
    if not remainder <= tolerance:
        departure = backend.departure(q)
        if not departure <= tolerance:
            raise ValueError(
                f"{name} is not {'unitary' if unitary else 'orthogonal'}: max |q* q - I| is {departure:.3g}; "
                "nearest makes it so"
            )
        if unitary:
            raise ValueError(
                f"{name} was not found to be a product of m = {m} reflections with leading zeros and of phases: "
                f"they leave max |q - matrix(u, phases)| at {remainder:.3g}; m = n - 1 = {n - 1} reach every unitary q"
            )
        raise ValueError(
            f"{name} is no product of m = {m} reflections, which leave max |q - matrix(u)| at {remainder:.3g}"
        )
    return u, phases


def _polish(xp: Any, q: Array, u: Array, phases: Array, tolerance: float) -> tuple[Array, Array, float]:
    """Move reflections and phases to where their product is nearest to q, in least squares (Gauss-Newton).

    Rounding grows from one reflection to the next where they are found in turn. Steps are found by conjugate gradients,
    in double precision; the search ends where a round takes less than a fifth off what is left.
    """
    n = len(q)
    wide, unit = q.astype(complex), xp.eye(n, dtype=complex)
    best = (u.astype(complex), phases.astype(float))
    left = xp.inf
    while True:
        u, phases = best
        residual = wide.T - matrix(u, phases).T
        remainder = float(abs(residual).max())
        if remainder <= tolerance or not remainder < 0.8 * left:
            break
        left = remainder
        step = (xp.zeros_like(u), xp.zeros_like(phases))
        direction, size = step, xp.inf
        for _ in range(STEPS):
            gradients = backward(u, unit, residual, phases=phases)
            descent = (gradients.u, gradients.phases)
            square = sum((abs(a) ** 2).sum() for a in descent)
            if square == 0:
                break
            direction = tuple(a + square / size * b for a, b in zip(descent, direction, strict=True))
            size = square
            moved = jvp(u, unit, direction[0], xp.zeros_like(unit), phases=phases, tangent_phases=direction[1])
            length = square / (abs(moved) ** 2).sum()
            step = tuple(a + length * b for a, b in zip(step, direction, strict=True))
            residual = residual - length * moved
        best = (u + step[0], phases + step[1])
    found = (u.astype(q.dtype), phases.astype(q.real.dtype))
    return *found, float(abs(q - matrix(*found)).max())
