"""The operation ``causal_convolution``: each channel along time by itself, with SiLU if asked.

Operands are ``x (B, T, C)``, which may have a half type, and in the type of the computation ``weight (C, taps)`` and
``bias (C,)`` or None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from householder import _core
from householder.torch import _expressions
from householder.torch._ops.library import fold, follow_torch_threads, room_for, unfold
from householder.torch._ops.operator import Operator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from householder._library import Library

_AXES = 2, 0, 0
"""The axes of channels."""


def _sizes(tensors: Sequence[Any]) -> list[int]:
    x, weight, _ = tensors
    return [*x.shape, weight.shape[1]]


def _compute(tensors: Any, options: Any, _: bool) -> Any:
    follow_torch_threads()
    y, (silu,) = tensors[0].new_empty(tensors[0].shape), options
    done = _core.convolution_forward(tensors, _sizes(tensors), silu, y)
    return done if done is NotImplemented else (y, (), None)


def _differentiate(tensors: Any, _: Any, __: Any, grads: Any, wanted: Any, options: Any) -> Any:
    follow_torch_threads()
    gradients = room_for(tensors, wanted)
    (silu,) = options
    done = _core.convolution_backward(tensors, _sizes(tensors), silu, grads[0], gradients)
    return done if done is NotImplemented else gradients


def _expression(library: Library, tensors: Any, options: Any) -> tuple[Tensor]:
    return (_expressions.causal_convolution(*tensors, *options, library=library),)


def _fake(tensors: Any, _: Any, __: bool) -> tuple[Tensor]:
    return (tensors[0].new_empty(tensors[0].shape),)


def _vmap(op: Any, info: Any, dims: Any, *arguments: Any) -> Any:
    operands = [fold(info, *given) for given in zip(arguments[:3], dims[:3], _AXES, strict=True)]
    return unfold(info, op(*operands, *arguments[3:]), _AXES[0]), 0


def _backward_vmap(op: Any, info: Any, dims: Any, *arguments: Any) -> Any:
    operands = [fold(info, *given) for given in zip(arguments[:4], dims[:4], (*_AXES, _AXES[0]), strict=True)]
    gradients = op(*operands, *arguments[4:])
    found = tuple([unfold(info, t, axis) for t, axis in zip(gradients, _AXES, strict=True)])
    return found, tuple([None if t is None else 0 for t in found])


operator = Operator(
    "causal_convolution",
    tensors="Tensor x, Tensor weight, Tensor? bias",
    options="bool silu",
    grads="Tensor grad_y",
    differentiable=3,
    compute=_compute,
    differentiate=_differentiate,
    has_cuda=False,
    unsupported=lambda *_: "the causal convolution has kernels for the CPU only",
    expression=_expression,
    fake=_fake,
    vmap=_vmap,
    backward_vmap=_backward_vmap,
)
"""``operator((x, weight, bias), (silu,))``."""
