"""Memory for results and gradients, and checks of what was saved."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import torch

from householder._base import torch_library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def room_for(
    tensors: Sequence[Tensor | None], needed: Sequence[bool | None], dtypes: Sequence[torch.dtype] | None = None
) -> tuple[Tensor | None, ...]:
    """Allocate contiguous tensors like these, of these dtypes or their own; None where none is needed."""
    form, room = torch.contiguous_format, []
    for t, is_needed, dtype in zip(tensors, needed, repeat(None) if dtypes is None else dtypes, strict=False):
        like = t if is_needed else None
        room.append(None if like is None else torch.empty_like(like, dtype=dtype, memory_format=form))
    return tuple(room)


def empty_handle(like: Tensor, save: bool) -> Tensor:
    """Allocate the int64 tensor that stands for what the CPU saves, one number or none: ``rust/torch/saved.rs``."""
    is_saved = save and like.device.type == "cpu" and torch_library.can_save()
    return like.new_empty((int(is_saved),), dtype=torch.int64)


def require_dtype(x: Tensor, *others: Tensor | None) -> None:
    """Check that all tensors still have one dtype.

    Raises
    ------
    RuntimeError
        The dtypes differ, because ``module.float()`` or the like has converted tensors saved for the backward pass.
    """
    dtype = x.dtype
    for t in others:
        if t is not None and t.dtype is not dtype:
            raise RuntimeError(
                f"a saved tensor changed its dtype between forward and backward ({dtype} to {t.dtype}): "
                "convert modules after the backward pass"
            )
