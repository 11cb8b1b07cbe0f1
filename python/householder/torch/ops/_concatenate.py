"""The states of two directions, ``(..., n)`` and ``(..., k)`` to ``(..., n + k)``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from householder.torch.ops._library import is_watched
from householder.torch.ops._memory import empty


def concatenate(a: Tensor, b: Tensor) -> Tensor:
    """Concatenate; what is large on the CPU goes to memory that is kept for the next call."""
    is_ordinary = type(a) is type(b) is Tensor and a.is_cpu and a.dtype is b.dtype and not is_watched()
    result: Tensor = Concatenate.apply(a, b) if is_ordinary else torch.cat((a, b), -1)
    return result


class Concatenate(Function):
    """``torch.cat`` along the last axis, whose gradients are views."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.width = a.shape[-1]
        return torch.cat((a, b), -1, out=empty((*a.shape[:-1], ctx.width + b.shape[-1]), a.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad[..., : ctx.width], grad[..., ctx.width :]
