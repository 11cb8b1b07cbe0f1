"""The way back: reflections of a given orthogonal matrix or frame (Theorem 1), in the core."""

from __future__ import annotations

import torch
from torch import Tensor

from householder import _core
from householder.torch import _autocast, _frames
from householder.torch.ops._library import CORE_NAME


def is_frame(weight: Tensor) -> bool:
    """Tell whether the shorter of rows and columns are orthonormal, to rounding."""
    return _departure(weight) <= _tolerance(weight)


def nearest_frame(weight: Tensor) -> Tensor:
    """Give the frame itself, or Q of the QR decomposition whose R has a positive diagonal."""
    if is_frame(weight):
        return weight
    tall = weight.mT if weight.shape[0] < weight.shape[1] else weight
    decomposition: tuple[Tensor, Tensor] = torch.linalg.qr(tall)
    q = decomposition[0] * torch.where(decomposition[1].diagonal() < 0, -1.0, 1.0)
    return q.mT if weight.shape[0] < weight.shape[1] else q


def leading_reflections(weight: Tensor, m: int) -> Tensor:
    """Give the m reflections ``(n, m)`` whose product has the first m columns (rows, if fewer) of a real frame."""
    frame = (weight.mT if weight.shape[0] < weight.shape[1] else weight).cpu()
    n, k = frame.shape
    if n > 2 * k:
        # Below its first k rows the frame is Q R: reflections of [F_1; R] are those of F = diag(I, Q) [F_1; R].
        q, r = torch.linalg.qr(frame[k:])
        u = leading_reflections(torch.cat([frame[:k], r]), m)
        return torch.cat([u[:k], q @ u[k:]]).to(weight.device)
    complement = torch.linalg.qr(frame, mode="complete")[0][:, k:]
    square = torch.cat([frame, complement], 1).contiguous()
    u = square.new_empty(n, m)
    _core.factor(CORE_NAME[u.dtype], n, m, square.data_ptr(), u.data_ptr(), None, by_columns=True)
    return u.to(weight.device)


def reflections(weight: Tensor, m: int) -> Tensor:
    """Give reflections whose frame is ``weight``.

    Raises
    ------
    ValueError
        The weight is not orthogonal, or no frame of m reflections.
    """
    shape, departure = tuple(weight.shape), _departure(weight)
    if not departure <= _tolerance(weight):
        side = "rows" if shape[0] < shape[1] else "columns"
        raise ValueError(f"weight {shape} has no orthonormal {side}: they depart from it by {departure:.3g}")
    u = leading_reflections(weight, m)
    remainder = (_frames.weight(u, None, (shape[0], shape[1])) - weight).abs().max().item()
    if not remainder <= _tolerance(weight):
        raise ValueError(f"weight {shape} is not made of {m} reflections, which leave a difference of {remainder:.3g}")
    return u


def _departure(weight: Tensor) -> float:
    wide = weight if weight.shape[0] < weight.shape[1] else weight.mT
    with _autocast.off(weight.device):
        gram = wide @ wide.mT
    return (gram - torch.eye(len(gram), dtype=gram.dtype, device=gram.device)).abs().max().item()


def _tolerance(weight: Tensor) -> float:
    return 10 * max(weight.shape) * torch.finfo(weight.dtype).eps
