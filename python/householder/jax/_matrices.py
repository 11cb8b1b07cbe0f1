"""Matrices and their reflections: the first columns, random ones, and those of a given matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import householder
from householder._base import validate
from householder._base.cpu import dtype_of
from householder._base.docstrings import completed_by
from householder._base.linear_map import Columns, frame_columns
from householder._matrices.frame import first_columns
from householder._matrices.haar import reflect_to_first, sizes
from householder.jax import _check, _expressions
from householder.jax._functional import apply, matrix

if TYPE_CHECKING:
    from householder._base.types import AnyArray, AnyDtype, Argument, ArrayLike


@completed_by(householder.frame, "Array")
def frame(u: ArrayLike) -> Array:
    """Form the first m columns of ``W``, which are orthonormal, in O(n m) memory.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import householder.jax as hj
    >>> f = hj.frame(jnp.eye(100, 3) + 1.0)
    >>> f.shape, bool(jnp.allclose(f.T @ f, jnp.eye(3), atol=1e-6))
    ((100, 3), True)
    """
    u, phases = frame_columns(u)
    u, compute = _check.first("u", u)
    n, m = validate.reflections(u)
    phases = _check.phases(phases, compute, (n,), (*u.shape[:-2], n))
    columns: Array = first_columns(Columns(u), m, jnp, apply, matrix)
    return columns if phases is None else _expressions.turn(columns, phases[..., None, :m])


@completed_by(householder.haar, "Array")
def haar(
    n: int, m: int | None = None, rng: Argument = None, dtype: AnyDtype = None, *, size: int | tuple[int, ...] = ()
) -> Array | tuple[Array, Array]:
    """Draw the reflections of random matrices, uniform (Haar measure) on O(n) or U(n).

    Parameters
    ----------
    rng : key of jax.random, or int, not None
        JAX has no generator of its own, so one of them must be given. An integer gives the same matrices as in NumPy.
    dtype : float32, float64, complex64 or complex128, optional
        float32 by default.

    Examples
    --------
    >>> import jax
    >>> import jax.numpy as jnp
    >>> import householder.jax as hj
    >>> w = hj.matrix(hj.haar(5, rng=jax.random.key(0)))
    >>> bool(jnp.allclose(w.T @ w, jnp.eye(5), atol=1e-6))
    True
    """
    kind = dtype_of(jnp.float32 if dtype is None else dtype)
    if jax.dtypes.canonicalize_dtype(kind) != kind:
        raise TypeError(f"dtype is {kind}, which JAX has with jax_enable_x64 alone")
    if rng is None:
        raise TypeError("rng is None, expected a key of jax.random or a seed: JAX has no generator of its own")
    if not isinstance(rng, Array):
        return _arrays(householder.haar(n, m, rng, kind, size=size))
    unitary = kind.kind == "c"
    n, k, shape = sizes(n, m, size, unitary)
    of_columns, of_sign, of_phases = jax.random.split(rng, 3)
    x = jax.random.normal(of_columns, (*shape, n, min(k, n - 1)), kind)
    u: Array = reflect_to_first(jnp, x)
    if k == n:
        sign = jax.random.rademacher(of_sign, (*shape, 1, 1), kind)
        u = jnp.concatenate([u, jnp.zeros((*shape, n, 1), kind).at[..., -1:, :].set(sign)], -1)
    if m is not None or not unitary:
        return u
    return u, jax.random.uniform(of_phases, (*shape, n), np.finfo(kind).dtype, -np.pi, np.pi)


@completed_by(householder.factor, "Array")
def factor(q: ArrayLike, m: int | None = None) -> Array | tuple[Array, Array]:
    """Find reflections whose product is a given orthogonal or unitary matrix: ``matrix(factor(q)) == q``.

    The search runs in NumPy, outside of compiled code, and has no derivative.

    Parameters
    ----------
    q : Array, shape (..., n, n)
        Orthogonal, or unitary with ``n >= 2``; its numbers must be known. :func:`nearest` finds the nearest one.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import householder.jax as hj
    >>> swap = jnp.array([[0.0, 1.0], [1.0, 0.0]])
    >>> bool(jnp.allclose(hj.matrix(hj.factor(swap)), swap, atol=1e-6))
    True
    """
    return _arrays(householder.factor(np.asarray(_check.array("q", q)), m))


def _arrays(reflections: tuple[AnyArray, ...] | AnyArray) -> Array | tuple[Array, Array]:
    """Return reflections, or reflections and phases, as arrays of JAX."""
    arrays: Array | tuple[Array, Array] = jax.tree.map(jnp.asarray, reflections)
    return arrays


@completed_by(householder.nearest, "Array")
def nearest(a: ArrayLike) -> Array:
    """Return the orthogonal or unitary matrix, or the frame, nearest to ``a``: the factor Q of ``a = Q P``.

    Q has the least distance in the Frobenius norm (the polar decomposition, by singular values).

    Parameters
    ----------
    a : Array, shape (..., n, k)
        Any matrices. If one does not have full rank, several frames are nearest, and one of them is returned. Entries
        that are not finite give NaN.

    Raises
    ------
    TypeError
        Not an array, or of another dtype.
    ValueError
        Not matrices.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import householder.jax as hj
    >>> hj.nearest(jnp.array([[2.0, 0.0], [0.0, -0.1]])).round().tolist()
    [[1.0, 0.0], [0.0, -1.0]]
    """
    a = _check.array("a", a)
    if a.dtype not in _check.TYPES:
        raise TypeError(f"a has dtype {a.dtype}, expected one of {', '.join(map(str, _check.TYPES))}")
    if a.ndim < 2:
        raise ValueError(f"a has shape {a.shape}, expected matrices (..., n, k)")
    left, _, right = jnp.linalg.svd(a, full_matrices=False)
    with jax.default_matmul_precision("highest"):
        return left @ right
