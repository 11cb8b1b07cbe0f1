"""Tensors as the core reads them: on the CPU, row after row, with memory of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from householder.torch._base.undocumented import has_storage


def laid_out(*tensors: Tensor | None) -> list[Any]:
    """Lay out tensors row by row: the core refuses others."""
    return [None if t is None else contiguous(t) for t in tensors]


def ordinary(*tensors: Tensor | None) -> Any:
    """Lay out tensors as the core reads them: row after row, aligned, of no subclass."""
    return [None if t is None else _ordinary(t) for t in tensors]


def _ordinary(tensor: Tensor) -> Tensor:
    tensor = allocated(tensor).contiguous()
    if tensor.data_ptr() % tensor.element_size():
        tensor = tensor.clone()
    return tensor if type(tensor) is Tensor else tensor.as_subclass(Tensor)


def contiguous(tensor: Tensor) -> Tensor:
    """Lay a tensor out row by row, if it is not yet."""
    return tensor if tensor.is_contiguous() else allocated(tensor).contiguous()


def in_rows(tensor: Tensor) -> Tensor:
    """Lay a tensor out, unless the numbers of its last axis are next to each other."""
    return tensor if tensor.stride(-1) == 1 else allocated(tensor).contiguous()


def allocated(tensor: Tensor) -> Tensor:
    """Return the tensor, which is about to be copied: torch crashes where the storage has been freed."""
    is_ordinary = type(tensor) in (Tensor, torch.nn.Parameter) and not torch.compiler.is_compiling()
    if is_ordinary and has_storage(tensor) and tensor.numel() and not tensor.untyped_storage().nbytes():
        shape = tuple(tensor.shape)
        raise ValueError(f"a tensor of shape {shape} has no memory: its storage was freed, as by FSDP after forward")
    return tensor
