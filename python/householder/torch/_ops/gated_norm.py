"""The operation ``gated_norm``: root mean square norms of rows, times weights and an activation of gates.

Operands are ``x (N, W)`` and gates ``z (N, W)``, which may have half types, and ``weight (W,)`` in the type of the
computation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from householder import _core
from householder.torch import _expressions
from householder.torch._ops.library import follow_torch_threads
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
    gradients = tuple([t.new_empty(t.shape) if want else None for t, want in zip(tensors, wanted, strict=True)])
    done = _core.gated_norm_backward(tensors, (list(tensors[0].shape), *options), grads[0], gradients)
    return done if done is NotImplemented else gradients


def _unsupported(*_: Any) -> str:
    return "gated norms have kernels for the CPU only"


def _expression(library: Library, tensors: Any, options: Any) -> tuple[Tensor]:
    return (_expressions.gated_norm(*tensors, *options, library=library),)


def _fake(tensors: Any, _: Any, __: bool) -> tuple[Tensor]:
    return (tensors[0].new_empty(tensors[0].shape),)


def _each(info: Any, dims: Any, arguments: Any) -> list[Any]:
    """Return the arguments of each of the mapped problems."""
    given = list(zip(arguments, dims, strict=True))
    return [[a.select(d, i) if isinstance(d, int) else a for a, d in given] for i in range(info.batch_size)]


def _vmap(op: Any, info: Any, dims: Any, *arguments: Any) -> Any:
    return torch.stack([op(*each) for each in _each(info, dims, arguments)]), 0


def _backward_vmap(op: Any, info: Any, dims: Any, *arguments: Any) -> Any:
    found = zip(*(op(*each) for each in _each(info, dims, arguments)), strict=True)
    gradients = tuple([None if each[0] is None else torch.stack(each) for each in found])
    return gradients, tuple([None if t is None else 0 for t in gradients])


operator = Operator(
    "gated_norm",
    tensors="Tensor x, Tensor z, Tensor weight",
    options="float epsilon, bool silu",
    grads="Tensor grad_y",
    differentiable=3,
    compute=_compute,
    differentiate=_differentiate,
    has_cuda=False,
    unsupported=_unsupported,
    expression=_expression,
    fake=_fake,
    vmap=_vmap,
    backward_vmap=_backward_vmap,
)
"""``operator((x, z, weight), (epsilon, silu))``."""
