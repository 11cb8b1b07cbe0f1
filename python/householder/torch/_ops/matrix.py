"""The operation ``matrix``: ``W`` itself for ``u (*c, n, m)``."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch

from householder import _core
from householder.torch._base import expressions
from householder.torch._ops.apply import forming_flops, gradient_flops
from householder.torch._ops.library import all_leading, empty_kept, follow_torch_threads, require_dtype
from householder.torch._ops.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

    from householder._library import Library


def _compute(tensors: Any, _: Any, keep: bool) -> Any:
    (u,) = tensors
    follow_torch_threads()
    w = u.new_empty(*u.shape[:-1], u.shape[-2])
    kept = _core.matrix(u, w, None, keep)
    return kept if kept is NotImplemented else (w, (None,), kept)


def _differentiate(tensors: Any, _: Any, kept: _core.Kept | None, grads: Any, wanted: Any, __: Any) -> Any:
    (u,), (grad_w,) = tensors, grads
    follow_torch_threads()
    if not wanted[0]:
        return (None,)
    grad_u = torch.empty_like(u)
    done = _core.matrix_backward(u, grad_w, grad_u, kept)
    return done if done is NotImplemented else (grad_u,)


def _require_unchanged(tensors: Any, _: Any, grads: Any, __: Any) -> None:
    require_dtype(tensors[0], grads[0])


def _expression(library: Library, tensors: Any, _: Any) -> tuple[Tensor]:
    return (expressions.matrix(tensors[0], library=library),)


def _fake(tensors: Any, _: Any, keep: bool) -> tuple[Tensor, Tensor]:
    (u,) = tensors
    return u.new_empty(*u.shape[:-1], u.shape[-2]), empty_kept(u, keep)


def _vmap(op: Any, _: Any, in_dims: Any, u: Tensor, __: bool) -> Any:
    return op(u.movedim(in_dims[0], 0), False), (0, None)


def _backward_vmap(op: Any, info: Any, in_dims: Any, u: Tensor, _: Any, grad_w: Tensor, wanted: Any) -> Any:
    u, grad_w = all_leading(info, (u, grad_w), (in_dims[0], in_dims[2]))
    return op(u, None, grad_w, wanted), 0 if wanted[0] else None


def _flops(tensors: Any, _: Any) -> int:
    n, m = tensors[0].shape[-2:]
    return prod(map(int, tensors[0].shape[:-2])) * forming_flops(n, m - (m == n))


def _backward_flops(tensors: Any, _: Any) -> int:
    n, m = tensors[0].shape[-2:]
    return prod(map(int, tensors[0].shape[:-2])) * gradient_flops(n, m - (m == n), n)


operator = Operator(
    "matrix",
    tensors="Tensor u",
    states="Tensor? kept",
    grads="Tensor grad_w",
    differentiable=1,
    compute=_compute,
    differentiate=_differentiate,
    require_unchanged=_require_unchanged,
    expression=_expression,
    fake=_fake,
    vmap=_vmap,
    backward_vmap=_backward_vmap,
    flops=_flops,
    backward_flops=_backward_flops,
)
"""``operator((u,), ())``."""
