"""Room for results on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from householder import _core

# From here on what the system's allocator costs shows: fresh pages, with a fault for each.
_LARGE = 1 << 18


def empty(shape: torch.Size | tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Allocate an uninitialised tensor; a large one in memory that the next call gets again once the tensor is gone."""
    shape = torch.Size(shape)
    size = shape.numel() * dtype.itemsize
    if size < _LARGE:
        return torch.empty(shape, dtype=dtype, device="cpu")  # whatever the default device
    return torch.frombuffer(_core.Memory(size), dtype=dtype).resize_(shape)  # in place: no view of another tensor


def empty_like(contiguous: Tensor) -> Tensor:
    """Allocate a tensor of the same shape and dtype; small ones, which are many, in as little time as possible."""
    if contiguous.nbytes < _LARGE:
        return torch.empty_like(contiguous)
    return empty(contiguous.shape, contiguous.dtype)


def contiguous(tensor: Tensor) -> Tensor:
    """Lay a tensor out row by row, if it is not yet."""
    if tensor.is_contiguous() or tensor.nbytes < _LARGE:
        return tensor.contiguous()
    return empty(tensor.shape, tensor.dtype).copy_(tensor)
