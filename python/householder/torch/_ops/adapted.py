"""Compute ``linear(W x)`` of a frozen layer. The backward pass takes no more memory than the layer's own.

Nothing else uses the gradient of ``W x``, so the gradient of ``x`` overwrites it in place.
"""

from __future__ import annotations

from types import new_class
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear

from householder import _core
from householder.torch._base import autocast
from householder.torch._base.dtypes import CORE_NAME
from householder.torch._base.layout import contiguous
from householder.torch._ops import apply
from householder.torch._ops.route import NATIVE, route
from householder.torch._ops.saved import save

if TYPE_CHECKING:
    from householder.torch._ops.operation import Context, Pulled


def can_fuse(u: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether this is an ordinary eager training step, for which ``adapted_linear`` suffices."""
    if route() not in NATIVE or not torch.is_grad_enabled() or not x.is_cpu:
        return False
    frozen = not weight.requires_grad and (bias is None or not bias.requires_grad)
    fits = u.dtype == x.dtype == weight.dtype and u.dtype in CORE_NAME
    return frozen and fits and not autocast.is_on(x.device)


def adapted_linear(u: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, method: str) -> Tensor:
    """Compute ``linear(W x)``; only u and x have gradients."""
    y: Tensor = _function.apply(u, x, weight, bias, method)
    return y


class AdaptedLinear(Function):
    """The layer and the reflections before it as one function."""

    @staticmethod
    def forward(ctx: Context, u: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, method: str) -> Tensor:
        options = apply.ApplyOptions(False, method, "trapezoidal")
        turned, saved = apply.operator.compute(apply.ApplyInputs(u, x, None), options, True)
        save(ctx, (u, x, weight), saved._replace(saved=None), options)
        return linear(turned, weight, bias)

    @staticmethod
    def backward(ctx: Context, grad_y: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_y is None:
            return (None,) * len(ctx.needs_input_grad)
        u, x, weight, _, handle = ctx.saved_tensors
        native, (needs_u, needs_x, *_) = getattr(handle, "saved", None), ctx.needs_input_grad
        gradients: Pulled = NotImplemented
        is_ordinary = needs_u and needs_x and not torch.is_grad_enabled() and route() in NATIVE
        if is_ordinary and native is not None and native.has_factors:
            gradients = _in_place(u, x, weight, grad_y, native)
        if gradients is NotImplemented:
            with autocast.off(x.device):
                grad = apply.ApplyGradients(grad_y @ weight)
            inputs, needs_grad = apply.ApplyInputs(u, x, None), apply.ApplyInputs(needs_u, needs_x, False)
            grad_u, grad_x, _ = apply.operator.gradients(
                inputs, apply.ApplySaved(None, native), grad, needs_grad, ctx.options
            )
            gradients = grad_u, grad_x
        return *gradients, None, None, None


_function: Any = new_class("householder::adapted_linear", (AdaptedLinear,))  # the name that profiles show


def _in_place(u: Tensor, x: Tensor, weight: Tensor, grad_y: Tensor, native: _core.Saved) -> Pulled:
    u, x = contiguous(u), contiguous(x)
    grad_x, grad_u = torch.empty_like(x), torch.empty_like(u)
    torch.mm(grad_y.reshape(-1, len(weight)), weight, out=grad_x.view(-1, len(u)))
    status = _core.backward_in_place(u, x, grad_x, grad_u, native)
    return status if status is NotImplemented else (grad_u, grad_x)
