"""The operation ``gated_norm``: root mean square norms of rows, times weights and an activation of gates.

Operands are ``x (N, W)`` and gates ``z (N, W)``, which may have half types, and ``weight (W,)`` in the type of the
computation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from householder import _core
from householder.torch._base import expressions
from householder.torch._ops.library import each, keeping_nothing
from householder.torch._ops.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

    from householder._library import Library


def _describe(tensors: Any, options: Any) -> tuple[Any, ...]:
    return ((list(tensors[0].shape), *options),)


def _expression(library: Library, tensors: Any, options: Any) -> tuple[Tensor]:
    return (expressions.gated_norm(*tensors, *options, library=library),)


operator = Operator(
    "gated_norm",
    tensors="Tensor x, Tensor z, Tensor weight",
    options="float epsilon, bool silu",
    grads="Tensor grad_y",
    differentiable=3,
    has_cuda=False,
    unsupported=lambda *_: "gated norms have kernels for the CPU only",
    expression=_expression,
    **keeping_nothing(_core.gated_norm_forward, _core.gated_norm_backward, _describe),
    vmap=each,
    backward_vmap=each,
)
"""``operator((x, z, weight), (epsilon, silu))``."""
