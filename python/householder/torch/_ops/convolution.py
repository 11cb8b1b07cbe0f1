"""The operation ``causal_convolution``: each channel along time by itself, with SiLU if asked.

Operands are ``x (B, T, C)``, which may have a half type, and in the type of the computation ``weight (C, taps)`` and
``bias (C,)`` or None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from householder import _core
from householder.torch._base import expressions
from householder.torch._ops.library import fold, keeping_nothing, unfold
from householder.torch._ops.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

    from householder._library import Library

_AXES = 2, 0, 0
"""The axes of channels."""


def _describe(tensors: Any, options: Any) -> tuple[Any, ...]:
    x, weight, _ = tensors
    return [*x.shape, weight.shape[1]], *options


def _expression(library: Library, tensors: Any, options: Any) -> tuple[Tensor]:
    return (expressions.causal_convolution(*tensors, *options, library=library),)


def _vmap(op: Any, info: Any, dims: Any, *arguments: Any) -> Any:
    operands = fold(info, arguments[:3], dims[:3], _AXES)
    (y,), (dim,) = unfold(info, [op(*operands, *arguments[3:])], _AXES[:1])
    return y, dim


def _backward_vmap(op: Any, info: Any, dims: Any, *arguments: Any) -> Any:
    operands = fold(info, arguments[:4], dims[:4], (*_AXES, _AXES[0]))
    return unfold(info, op(*operands, *arguments[4:]), _AXES)


operator = Operator(
    "causal_convolution",
    tensors="Tensor x, Tensor weight, Tensor? bias",
    options="bool silu",
    grads="Tensor grad_y",
    differentiable=3,
    has_cuda=False,
    unsupported=lambda *_: "the causal convolution has kernels for the CPU only",
    expression=_expression,
    **keeping_nothing(_core.convolution_forward, _core.convolution_backward, _describe),
    vmap=_vmap,
    backward_vmap=_backward_vmap,
)
"""``operator((x, weight, bias), (silu,))``."""
