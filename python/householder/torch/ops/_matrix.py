"""The operator ``matrix``: ``W`` itself for ``u (*c, n, m)``; its gradient is that of ``apply`` at the identity."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from householder import _core
from householder.torch import expressions
from householder.torch._autograd import kept_in
from householder.torch._operator import Operator, save
from householder.torch.ops import _apply
from householder.torch.ops._library import (
    contiguous,
    empty,
    follow_torch_threads,
    is_traced,
    is_watched,
    operator,
    ordinary,
    require_dtype,
)


def _native(u: Tensor, keep: bool) -> Any:
    follow_torch_threads()
    w = empty((*u.shape[:-1], u.shape[-2]), u.dtype)
    kept = _core.matrix(u, w, None, keep)
    return kept if kept is NotImplemented else (w, kept)


def _eager(ctx: Any, u: Tensor, options: tuple[()]) -> Tensor:
    found = _native(contiguous(u), ctx is not None) if u.is_cpu and not is_traced() else NotImplemented
    w: Tensor
    w, kept = (matrix_op(u), None) if found is NotImplemented else found
    if ctx is not None:
        save(ctx, (u,), (), kept, options)
    return w


def _general(u: Tensor) -> Tensor:
    w: Tensor = matrix_op(u)
    return w


def _backward(tensors: Any, _: Any, holder: Any, grads: Any, wanted: Any, __: Any) -> Any:
    (u,), (grad_w,) = tensors, grads
    require_dtype(u, grad_w)
    if u.is_cpu and not is_watched():
        follow_torch_threads()
        laid_out = contiguous(u), contiguous(grad_w)
        grad_u = torch.empty_like(laid_out[0])
        if _core.matrix_backward(*laid_out, grad_u, kept_in(holder)) is not NotImplemented:
            return (grad_u,)
    return _derivative(u, grad_w, wanted)


def _derivative(u: Tensor, grad_w: Tensor, _: Any) -> tuple[Tensor]:
    n = u.shape[-2]
    eye = torch.eye(n, dtype=u.dtype, device=u.device).expand(*u.shape[:-2], n, n)
    return (_apply.backward_op(u, eye, None, grad_w.mT, [True, False, False], False, "auto", "trapezoidal")[0],)


matrix = Operator(
    "matrix",
    differentiable=1,
    eager=_eager,
    general=_general,
    backward=_backward,
    derivative=_derivative,
    expression=lambda u: (expressions.matrix(u),),
)
"""``matrix((u,), ())``."""


def _matrix_cpu(u: Tensor) -> Tensor:
    (u,) = ordinary(u)
    w: Tensor = _native(u, False)[0]
    return w


def _matrix_fake(u: Tensor) -> Tensor:
    return u.new_empty(*u.shape[:-1], u.shape[-2])


def _matrix_vmap(info: Any, in_dims: Any, u: Tensor) -> tuple[Tensor, int]:  # noqa: ARG001
    return matrix_op(u.movedim(in_dims[0], 0)), 0


matrix_op = operator(
    "matrix(Tensor u) -> Tensor",
    cpu=_matrix_cpu,
    fake=_matrix_fake,
    vmap=_matrix_vmap,
    autograd=matrix.forward_autograd,
)
