"""The first columns of a product of reflections."""

from types import ModuleType

from householder._base import validate
from householder._base.linear_map import Columns, frame_columns
from householder._base.types import AnyArray, AnyFunction, Argument, Array, ArrayLike
from householder._functions.apply import backend_and_array, forward, matrix


def frame(u: ArrayLike) -> Array:
    """Form the first m columns of W, which are orthonormal, in O(n m) memory.

    Parameters
    ----------
    u : array, shape (..., n, m), or Reflections
        Trapezoidal columns without tau.

    Returns
    -------
    array, shape (..., n, m)
        ``matrix(u)[..., :m]``. If ``m == n``, its last column is multiplied by ``u_1``; LAPACK's ``orgqr``
        multiplies by -1.

    Raises
    ------
    TypeError, ValueError
        As in :func:`apply`.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> u = np.random.default_rng(0).standard_normal((100, 3))
    >>> f = hh.frame(u)
    >>> np.allclose(f.T @ f, np.eye(3)), np.allclose(f, hh.matrix(u)[:, :3])
    (True, True)
    """
    u, phases = frame_columns(u)
    backend, u = backend_and_array("u", u)
    n, m = validate.reflections(u)
    phases = validate.matrix_phases(phases, u, n, backend)
    columns = first_columns(Columns(u), m, backend.xp, forward, matrix)
    if phases is not None:
        columns = columns * backend.xp.exp(1j * phases[..., None, :m]).astype(u.dtype)
    contiguous: Array = backend.xp.ascontiguousarray(columns)
    return contiguous


def first_columns(
    w: Columns, k: int, xp: ModuleType, apply: AnyFunction, matrix: AnyFunction, **where: Argument
) -> AnyArray:
    """Return the first k columns of W: a part of the formed W if k > n / 2, else the images of unit vectors.

    ``apply`` and ``matrix`` are functions of W's library ``xp``, whose arrays are created with ``where``.
    """
    u = w.u
    n = u.shape[-2]
    if n < 2 * k:
        return matrix(w)[..., :k]
    unit = xp.eye(k, n, dtype=u.dtype, **where).reshape(k, *(1,) * (u.ndim - 2), n)
    move = getattr(xp, "movedim", None) or xp.moveaxis  # torch's vmap knows the one and not the other
    return move(apply(w, unit), 0, -1)
