"""The nearest orthogonal or unitary matrix."""

from types import ModuleType

from householder._base.types import AnyArray, Array, ArrayLike
from householder._functions.apply import backend_and_array


def nearest(a: ArrayLike) -> Array:
    r"""Return the orthogonal or unitary matrix, or the frame, nearest to ``a``: the factor Q of ``a = Q P``.

    Q has the least distance in the Frobenius norm (the polar decomposition, by singular values). :func:`factor` finds
    the reflections of a square Q.

    Parameters
    ----------
    a : array, shape (..., n, k)
        Any matrices. If one does not have full rank, several frames are nearest, and one of them is returned.

    Returns
    -------
    array, shape (..., n, k)
        Orthonormal columns, or orthonormal rows if ``n < k``.

    Raises
    ------
    TypeError
        As in :func:`apply`.
    ValueError
        Not matrices, or entries that are not finite.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> hh.nearest(np.array([[2.0, 0.0], [0.0, -0.1]])).round(12)
    array([[ 1.,  0.],
           [ 0., -1.]])
    """
    backend, a = backend_and_array("a", a)
    product: Array = polar_factor(backend.xp, a)
    return product


def polar_factor(xp: ModuleType, a: AnyArray) -> AnyArray:
    """Return the nearest frame to ``a``, an array of the library ``xp``."""
    if a.ndim < 2:
        raise ValueError(f"a has shape {tuple(a.shape)}, expected matrices (..., n, k)")
    if not xp.isfinite(a).all():
        raise ValueError("a has entries that are not finite")
    left, _, right = xp.linalg.svd(a, full_matrices=False)
    return left @ right
