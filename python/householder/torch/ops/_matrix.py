"""The operator ``matrix``: ``W`` itself for ``u (*c, n, m)``; its gradient is that of ``apply`` at the identity."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from householder import _core
from householder.torch import expressions
from householder.torch._autograd import held, kept_in, needs_expression, needs_general_function, shown_as
from householder.torch.ops._apply import gradients
from householder.torch.ops._library import CORE_NAME, core_name, follow_torch_threads, operator, straight_to_cpu
from householder.torch.ops._memory import empty, empty_like


def matrix(u: Tensor) -> Tensor:
    """Form ``W`` differentiably, by the route that the active transforms allow."""
    if needs_expression():
        return expressions.matrix(u)
    function: Any = matrix_op
    if needs_general_function():
        function = Matrix.apply
    elif torch.is_grad_enabled():
        function = EagerMatrix.apply
    result: Tensor = function(u)
    return result


class Matrix(Function):
    """``matrix`` under compilation and the transforms of ``torch.func``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor) -> Tensor:
        result: Tensor = matrix_op(u)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad_w: Tensor) -> Tensor:
        (u,) = ctx.saved_tensors
        return _gradient(u, grad_w)


@shown_as("matrix")
class EagerMatrix(Function):
    """``matrix`` in plain eager calls."""

    @staticmethod
    def forward(ctx: Any, u: Tensor) -> Tensor:
        w: Tensor
        w, kept = _form_and_keep(u, ctx.needs_input_grad[0]) if straight_to_cpu(u) else (matrix_op(u), None)
        ctx.save_for_backward(u, held(kept))
        return w

    @staticmethod
    def backward(ctx: Any, grad_w: Tensor) -> Tensor:
        u, holder = ctx.saved_tensors
        if torch.is_grad_enabled() or not straight_to_cpu(u, grad_w):
            return _gradient(u, grad_w)
        follow_torch_threads()
        u, grad_w = u.contiguous(), grad_w.contiguous()
        n, m = u.shape[-2:]
        grad_u = empty_like(u)
        operands = u.data_ptr(), grad_w.data_ptr(), grad_u.data_ptr()
        _core.matrix_backward(core_name(u, grad_w), u.shape[:-2].numel(), n, m, *operands, kept_in(holder))
        return grad_u


def _gradient(u: Tensor, grad_w: Tensor) -> Tensor:
    n = u.shape[-2]
    eye = torch.eye(n, dtype=u.dtype, device=u.device).expand(*u.shape[:-2], n, n)
    grad_u: Tensor = gradients(u, eye, grad_w.mT, False, False, "auto")[0]
    return grad_u


def _form_and_keep(u: Tensor, keep: bool) -> tuple[Tensor, _core.Kept | None]:
    follow_torch_threads()
    u = u.contiguous()
    n, m = u.shape[-2:]
    out = empty((*u.shape[:-1], n), u.dtype)
    kept = _core.matrix(CORE_NAME[u.dtype], u.shape[:-2].numel(), n, m, u.data_ptr(), out.data_ptr(), None, keep)
    return out, kept


def _matrix_cpu(u: Tensor) -> Tensor:
    return _form_and_keep(u, False)[0]


def _matrix_fake(u: Tensor) -> Tensor:
    return u.new_empty(*u.shape[:-1], u.shape[-2])


def _matrix_vmap(info: Any, in_dims: Any, u: Tensor) -> tuple[Tensor, int]:  # noqa: ARG001
    return matrix_op(u.movedim(in_dims[0], 0)), 0


matrix_op = operator("matrix(Tensor u) -> Tensor", cpu=_matrix_cpu, fake=_matrix_fake, vmap=_matrix_vmap)
