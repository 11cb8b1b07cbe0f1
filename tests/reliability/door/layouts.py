"""Numbers of every temper, and the many ways in which the same numbers can lie in memory."""

import numpy as np


def numbers(rng, shape, dtype):
    """An array of one temper: ordinary, sparse, small, large, or with NaN and infinities."""
    a = rng.standard_normal(shape)
    if dtype.kind == "c":
        a = a + 1j * rng.standard_normal(shape)
    temper = rng.integers(8)
    if temper == 0:
        a = a * (rng.random(shape) < 0.5)
    elif temper in (1, 2):
        a = a * (1e-6, 1e6)[temper - 1]
    elif temper == 3 and a.size:
        a[tuple(rng.integers(k) for k in shape)] = (np.nan, np.inf, -np.inf)[rng.integers(3)]
    if a.ndim and rng.integers(4) == 0:  # the same numbers again and again: such an axis may have no stride
        axis = rng.integers(a.ndim)
        a = np.broadcast_to(a.take(range(min(1, a.shape[axis])), axis), shape)
    return a.astype(dtype)


def reflections(rng, shape, dtype):
    """``u (..., n, m)``: columns of any magnitude, and anything at all above the diagonal, where nobody looks."""
    u = numbers(rng, shape, dtype)
    n, m = shape[-2:]
    if rng.integers(4) == 0:
        columns = m - (m == n)
        u[..., :columns] *= 10.0 ** rng.uniform(-12, 12, columns)
    if rng.integers(4) == 0:
        u[..., ~np.tri(n, m, dtype=bool)] = (np.nan, np.inf, 7)[rng.integers(3)]
    return u


def lay(rng, a):
    """The numbers of ``a`` as another array, and the memory around it: NaN wherever the array is not.

    Axes in any order and direction, with gaps, without a stride where nothing changes, in either byte order, at any
    address, writeable or not; now and then as nested lists.
    """
    if a.dtype.hasobject or (rng.integers(8) == 0 and a.size and a.dtype in (np.float64, np.complex128)):
        return (a if a.dtype.hasobject else a.tolist()), None
    dtype = a.dtype if rng.integers(2) else a.dtype.newbyteorder()
    strides, offset, reach = [0] * a.ndim, int(rng.integers(a.itemsize)) * int(rng.integers(2)), a.itemsize
    if rng.integers(8) == 0:
        reach += 1
    for axis in rng.permutation(a.ndim):
        if _constant(a, axis) and rng.integers(2):
            continue
        stride = reach * int(rng.integers(1, 4)) if rng.integers(2) else reach
        reach = stride * max(a.shape[axis], 1)
        strides[axis] = stride
        if rng.integers(3) == 0:
            strides[axis] = -stride
            offset += stride * max(a.shape[axis] - 1, 0)
    raw = np.full(offset + reach + a.itemsize, 0xFF, np.uint8)
    laid = np.ndarray(a.shape, dtype, raw, offset, strides)
    laid[...] = a
    laid.flags.writeable = bool(rng.integers(2))
    return laid, raw


def _constant(a, axis):
    if a.shape[axis] == 0:
        return True
    return np.broadcast_to(a.take([0], axis), a.shape).tobytes() == a.tobytes()
