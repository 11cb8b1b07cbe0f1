"""The operation ``gated_norm``: root mean square norms of rows, times weights and an activation of gates.

Operands are ``x (N, W)`` and gates ``z (N, W)``, which may have half types, and ``weight (W,)`` in the type of the
computation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from householder import _core
from householder.torch import _expressions
from householder.torch._ops.library import each, follow_torch_threads, room_for
from householder.torch._ops.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

    from householder._library import Library


def _compute(tensors: Any, options: Any, _: bool) -> Any:
    follow_torch_threads()
    x = tensors[0]
    y = x.new_empty(x.shape)
    done = _core.gated_norm_forward(tensors, (list(x.shape), *options), y)
    return done if done is NotImplemented else (y, (), None)


def _differentiate(tensors: Any, _: Any, __: Any, grads: Any, wanted: Any, options: Any) -> Any:
    follow_torch_threads()
    gradients = room_for(tensors, wanted)
    done = _core.gated_norm_backward(tensors, (list(tensors[0].shape), *options), grads[0], gradients)
    return done if done is NotImplemented else gradients


def _expression(library: Library, tensors: Any, options: Any) -> tuple[Tensor]:
    return (_expressions.gated_norm(*tensors, *options, library=library),)


def _fake(tensors: Any, _: Any, __: bool) -> tuple[Tensor]:
    return (tensors[0].new_empty(tensors[0].shape),)


operator = Operator(
    "gated_norm",
    tensors="Tensor x, Tensor z, Tensor weight",
    options="float epsilon, bool silu",
    grads="Tensor grad_y",
    differentiable=3,
    compute=_compute,
    differentiate=_differentiate,
    has_cuda=False,
    unsupported=lambda *_: "gated norms have kernels for the CPU only",
    expression=_expression,
    fake=_fake,
    vmap=each,
    backward_vmap=each,
)
"""``operator((x, z, weight), (epsilon, silu))``."""
