"""The same numbers lying in memory in other ways, with NaN in all the memory around them."""

import numpy as np
import torch


def array(rng, a):
    """An array equal to ``a`` and the memory it lies in.

    Axes in any order and direction, with gaps, without a stride where nothing changes, in either byte order, at any
    address, writeable or not; now and then nested lists.
    """
    if rng.integers(8) == 0 and a.size and a.dtype in (np.float64, np.complex128):
        return a.tolist(), None
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


def tensor(rng, t):
    """A tensor equal to ``t``: strided, permuted, expanded, at an odd address, or lazily conjugated or negated."""
    kind = rng.integers(6)
    if kind == 0 and t.is_complex():
        return tensor(rng, t.conj().resolve_conj()).conj()
    if kind == 1:
        return torch._neg_view(tensor(rng, -t))
    if kind == 2 and t.numel():
        raw = np.full(t.numel() * t.element_size() + 64, 0xFF, np.uint8)
        laid = torch.from_numpy(raw)[t.element_size() * int(rng.integers(1, 4)) :]
        laid = laid[: t.numel() * t.element_size()].view(t.dtype).reshape(t.shape)
        return laid.copy_(t)
    order = [int(axis) for axis in rng.permutation(t.dim())]
    steps = [int(rng.integers(1, 3)) for _ in order]
    room = torch.full([t.shape[axis] * step for axis, step in zip(order, steps, strict=True)], torch.nan, dtype=t.dtype)
    laid = room[tuple(slice(None, None, step) for step in steps)].permute(*np.argsort(order).tolist())
    laid.copy_(t)
    for axis in range(t.dim()):
        if rng.integers(2) and t.shape[axis] > 1 and bool((t == t.narrow(axis, 0, 1)).all()):
            laid = laid.narrow(axis, 0, 1).expand(t.shape)
    return laid


def _constant(a, axis):
    if a.shape[axis] == 0:
        return True
    return np.broadcast_to(a.take([0], axis), a.shape).tobytes() == a.tobytes()
