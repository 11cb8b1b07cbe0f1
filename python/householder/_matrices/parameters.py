"""The parameters themselves: their scale, their sign, their real form."""

import numpy as np

from householder._base import cpu, validate
from householder._base.norms import power_of_two, vanishes
from householder._base.types import Array, ArrayLike


def normalize(u: ArrayLike) -> Array:
    """Scale columns to unit norm: ``matrix(normalize(u)) == matrix(u)``.

    The norm neither overflows nor underflows. Columns of zero or subnormal norm, which stand for the identity, become
    zero. ``u_1`` (``m == n``) does not change.

    Parameters
    ----------
    u : array, shape (..., n, m)

    Returns
    -------
    array, shape (..., n, m)
        A new array with zeros above the diagonal.

    Raises
    ------
    TypeError, ValueError
        As in :func:`apply`.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> hh.normalize(np.array([[3e200, 9.0], [4e200, -0.5]]))
    array([[ 0.6,  0. ],
           [ 0.8, -0.5]])
    """
    u = cpu.array("u", u)
    n, m = validate.reflections(u)
    unit: Array = np.tril(u)
    # Real and imaginary parts on a last axis: complex division overflows where real division does not.
    columns = unit.view(unit.real.dtype).reshape(*unit.shape, 1 + (u.dtype.kind == "c"))[..., : m - (m == n), :]
    with np.errstate(invalid="ignore", over="ignore"):
        power = power_of_two(np, np.abs(columns).max(axis=(-3, -1), keepdims=True, initial=0))
        columns *= power
        norm = np.sqrt(np.square(columns).sum(axis=(-3, -1), keepdims=True))
        columns /= np.where(norm == 0, 1, norm)
        columns *= ~vanishes(np, norm, power)
    return unit


def snap(u: ArrayLike) -> Array:
    """Replace ``u_1`` (``m == n``) by -1 if ``u_1 <= 0`` and by 1 otherwise, so that W is orthogonal.

    Parameters
    ----------
    u : array, shape (..., n, m)

    Returns
    -------
    array, shape (..., n, m)

    Raises
    ------
    TypeError, ValueError
        As in :func:`apply`.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> hh.snap(np.array([[1.0, 0.0], [2.0, -0.3]]))
    array([[ 1.,  0.],
           [ 2., -1.]])
    """
    snapped: Array = cpu.array("u", u).copy()
    n, m = validate.reflections(snapped)
    if m == n:
        last = snapped[..., -1, -1]
        snapped[..., -1, -1] = np.where(last <= 0, -1, np.where(last > 0, 1, last))
    return snapped


def real_form(w: ArrayLike, axis: int | None = None) -> Array:
    """Make complex arrays real: a unitary matrix ``A + iB`` becomes the orthogonal ``[[A, -B], [B, A]]`` (Section 3).

    Parameters
    ----------
    w : complex array, shape (..., k, k)
        Matrices that act on vectors; with ``axis``, an array of any shape.
    axis : int, optional
        For vectors: real parts, then imaginary parts along this axis. States ``h (..., k)`` need ``axis=-1``, and
        weights ``V (k, d)`` of real inputs need ``axis=0``.

    Returns
    -------
    real array, shape (..., 2k, 2k), or twice as long along ``axis``

    Raises
    ------
    TypeError
        w is not complex64 or complex128.
    ValueError
        Matrices that are not square, or an axis that w does not have.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> hh.real_form(np.array([[1j]])) @ hh.real_form(np.array([2 + 3j]), axis=-1)  # i (2 + 3i) = -3 + 2i
    array([-3.,  2.])
    """
    w = cpu.array("w", w)
    if w.dtype.kind != "c":
        raise TypeError(f"w has dtype {w.dtype}, expected complex64 or complex128")
    if axis is None:
        if w.ndim < 2 or w.shape[-1] != w.shape[-2]:
            raise ValueError(f"w has shape {w.shape}, expected square matrices (..., k, k); vectors need an axis")
        return np.block([[w.real, -w.imag], [w.imag, w.real]])
    if not w.ndim:
        raise ValueError("w has shape (), expected at least one axis")
    return np.concatenate([w.real, w.imag], axis=validate.integer("axis", axis, -w.ndim, w.ndim - 1))
