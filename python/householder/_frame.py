"""The first columns of a product of reflections."""

from typing import Any

from householder import _validate
from householder._api import backend_of, forward, matrix
from householder._types import Array


def frame(u: Any, phases: Any = None) -> Array:
    """Form the first m columns of W, which are orthonormal, in O(n m) memory.

    Parameters
    ----------
    u : array, shape (..., n, m)
    phases : array, shape (n,) or (..., n), optional
        Real angles, for complex u only.

    Returns
    -------
    array, shape (..., n, m)
        ``matrix(u, phases)[..., :m]``. If ``m == n``, its last column is multiplied by ``u_1``; LAPACK's ``orgqr``
        multiplies by -1.

    Raises
    ------
    TypeError, ValueError
        As in :func:`forward`.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> u = np.random.default_rng(0).standard_normal((100, 3))
    >>> f = hh.frame(u)
    >>> np.allclose(f.T @ f, np.eye(3)), np.allclose(f, hh.matrix(u)[:, :3])
    (True, True)
    """
    backend = backend_of(u)
    u = backend.array("u", u)
    n, m = _validate.reflections(u)
    if n < 2 * m:
        return matrix(u, phases)[..., :m].copy()
    unit = backend.xp.eye(m, n, dtype=u.dtype).reshape(m, *(1,) * (u.ndim - 2), n)
    columns: Array = backend.xp.moveaxis(forward(u, unit), 0, -1)
    phases = _validate.matrix_phases(phases, u, n, backend)
    return columns if phases is None else columns * backend.xp.exp(1j * phases[..., None, :m]).astype(u.dtype)
