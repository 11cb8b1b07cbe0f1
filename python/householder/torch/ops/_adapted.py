"""``linear(W x)`` of a frozen layer, where the backward pass takes no more memory than the layer's own.

The gradient of ``W x`` belongs to nobody else, so it becomes the gradient of ``x`` in its place, in the memory where
``W x`` was.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear

from householder import _core
from householder.torch import _autocast
from householder.torch._autograd import held, kept_in, needs_expression, needs_general_function, shown_as
from householder.torch.ops._apply import apply, backward_of, forward_and_keep, gradients
from householder.torch.ops._library import CORE_NAME, core_name, follow_torch_threads, straight_to_cpu
from householder.torch.ops._memory import empty_like


def is_adaptable(u: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Tell whether this is a plain eager training step, in which ``adapted_linear`` is all that is wanted."""
    if needs_general_function() or needs_expression() or not torch.is_grad_enabled():
        return False
    frozen = not weight.requires_grad and (bias is None or not bias.requires_grad)
    fits = u.dtype == x.dtype == weight.dtype and u.dtype in CORE_NAME and u.shape[:1] == x.shape[-1:]
    return frozen and fits and not _autocast.is_on(x.device) and straight_to_cpu(u, x, weight, bias)


def adapted_linear(u: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, method: str) -> Tensor:
    """Compute ``linear(W x)``; only u and x have gradients."""
    y: Tensor = AdaptedLinear.apply(u, x, weight, bias, method)
    return y


@shown_as("adapted_linear")
class AdaptedLinear(Function):
    """The layer and the reflections before it as one function."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, method: str) -> Tensor:
        turned, kept = forward_and_keep(u, x, False, method, True)
        ctx.save_for_backward(u, x, weight, held(kept))
        ctx.method = method
        return linear(turned, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Any, ...]:
        u, x, weight, holder = ctx.saved_tensors
        kept = kept_in(holder)
        want_u, want_x = ctx.needs_input_grad[:2]
        plain = want_u and not torch.is_grad_enabled() and straight_to_cpu(u, x, grad_y)
        if plain and want_x and kept is not None and not kept.is_matrix:
            return *_backward_in_place(u, x, weight, grad_y, kept), None, None, None
        with _autocast.off(x.device):
            grad = grad_y @ weight
        if plain:
            return *backward_of(u, x, grad, want_x, False, ctx.method, kept), None, None, None
        if not want_u:
            return None, apply(u, grad, True, ctx.method), None, None, None
        return *gradients(u, x, grad, want_x, False, ctx.method), None, None, None


def _backward_in_place(u: Tensor, x: Tensor, weight: Tensor, grad_y: Tensor, kept: _core.Kept) -> tuple[Tensor, Tensor]:
    follow_torch_threads()
    u, x, (n, m) = u.contiguous(), x.contiguous(), u.shape
    grad, grad_u = empty_like(x), empty_like(u)
    rows = grad.view(-1, n)
    torch.mm(grad_y.reshape(-1, len(weight)), weight, out=rows)
    operands = u.data_ptr(), x.data_ptr(), grad.data_ptr(), grad_u.data_ptr()
    _core.backward_in_place(core_name(u, x), n, m, len(rows), *operands, kept)
    return grad_u, grad
