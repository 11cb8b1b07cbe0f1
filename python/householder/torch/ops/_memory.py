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
    tensor = torch.empty(0 if size >= _LARGE else shape, dtype=dtype)
    if size >= _LARGE:
        memory = torch.frombuffer(_core.Memory(size), dtype=dtype)
        tensor.set_(memory.untyped_storage(), 0, shape)  # type: ignore[call-overload]  # strides follow
    return tensor
