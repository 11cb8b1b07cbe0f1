"""To and from LAPACK's form of a product of reflections, as in ``geqrf``, ``orgqr`` and ``ormqr``."""

import numpy as np

from householder._base import cpu, validate
from householder._base.types import Argument, Array, ArrayLike
from householder._matrices.parameters import normalize


def to_lapack(u: ArrayLike) -> tuple[Array, Array]:
    """Convert to LAPACK's reflectors ``I - tau v v'`` with ``v_1 = 1``, whose product is ``matrix(u)``.

    ``v`` is a column divided by its first entry, and ``tau = 2 / |v|^2``. A zero column becomes ``tau = 0``. If
    ``m == n``, ``u_1 = 1`` becomes ``tau = 0`` and ``u_1 = -1`` becomes ``tau = 2``.

    Parameters
    ----------
    u : real array, shape (..., n, m)

    Returns
    -------
    a : array, shape (..., n, m)
        The vectors v below a diagonal of ones; zeros above.
    tau : array, shape (..., m)

    Raises
    ------
    TypeError
        As in :func:`apply`.
    ValueError
        u is complex, a column has a zero on the diagonal (LAPACK's vectors start with 1), or ``u_1`` is not 1 or -1.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> a, tau = hh.to_lapack(np.array([[3.0, 0.0], [4.0, -1.0]]))
    >>> tau
    array([0.72, 2.  ])
    """
    u = _real("u", u)
    n, m = validate.reflections(u)
    a = normalize(u)
    first = np.diagonal(a, axis1=-2, axis2=-1).copy()
    zero = np.logical_not(a.any(axis=-2))
    if m == n:
        if not np.isin(first[..., -1], (-1, 1)).all():
            raise ValueError(f"u_1 is {u[..., -1, -1]}, expected 1 or -1: LAPACK has no reflector for other numbers")
        zero[..., -1] = first[..., -1] == 1
    tau = np.where(zero, 0, 2 * first**2)
    if np.any(~zero & ~(tau >= np.finfo(u.dtype).tiny)):
        raise ValueError(
            f"u has the diagonal {first} for unit columns, expected no zeros: LAPACK's vectors start with 1"
        )
    a /= np.where(first == 0, 1, first)[..., None, :]
    a[..., range(m), range(m)] = 1
    return a, tau


def from_lapack(a: ArrayLike, tau: ArrayLike) -> Array:
    """Convert the product ``H_1 .. H_m`` that LAPACK's ``geqrf`` returns; the inverse of :func:`to_lapack`.

    Parameters
    ----------
    a : real array, shape (..., n, m)
        Vectors v below the diagonal. Entries on and above it (geqrf's R) are ignored.
    tau : real array, shape (..., m)

    Returns
    -------
    array, shape (..., n, m)
        u, such that ``matrix(u)`` is the product of all ``I - tau v v'``. If ``m == n``, ``tau_n = 0`` is ``u_1 = 1``.

    Raises
    ------
    TypeError
        As in :func:`apply`.
    ValueError
        Complex arrays, shapes that do not fit, or a tau other than 0 and ``2 / |v|^2``, which is not a reflection's.

    Examples
    --------
    The orthogonal factor of a QR decomposition:

    >>> import numpy as np, householder as hh
    >>> x = np.random.default_rng(0).standard_normal((6, 4))
    >>> a, tau = np.linalg.qr(x, mode="raw")  # a is the transpose of LAPACK's array
    >>> u = hh.from_lapack(a.T, tau)
    >>> q, _ = np.linalg.qr(x, mode="complete")
    >>> np.allclose(hh.matrix(u), q)
    True
    """
    a = _real("a", a)
    tau = cpu.operand("tau", tau, a)
    if a.ndim < 2 or not 1 <= a.shape[-1] <= a.shape[-2]:
        raise ValueError(f"a has shape {a.shape}, expected (..., n, m) with 1 <= m <= n")
    n, m = a.shape[-2:]
    validate.shape("tau", tau, (*a.shape[:-2], m))
    u: Array = np.tril(a, -1)
    u[..., range(m), range(m)] = 1
    expected = 2 / np.square(u).sum(axis=-2)
    if np.any((tau != 0) & ~(np.abs(tau - expected) <= 10 * n * np.finfo(a.dtype).eps * expected)):
        raise ValueError(f"tau is {tau}, expected 0 or 2 / |v|^2 = {expected} for each column v of a")
    u *= (tau != 0)[..., None, :]
    if m == n:
        u[..., -1, -1] = 1 - tau[..., -1]
    return u


def _real(name: str, value: Argument) -> Array:
    a = cpu.array(name, value)
    if a.dtype.kind == "c":
        raise ValueError(
            f"{name} has dtype {a.dtype}, expected a real one: LAPACK's complex reflectors are not Hermitian"
        )
    return a
