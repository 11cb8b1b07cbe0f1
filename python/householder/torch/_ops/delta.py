"""The operation ``delta_rule``: a product of reflections that depends on the data, in one native call.

Operands are ``q (B, T, H, K)``, ``k (B, T r, H, K)``, ``v (B, T r, HV, V)``, ``beta (B, T r, HV)`` or None, ``g`` of
``(B, T, HV)`` or ``(B, T, HV, K)`` or None, states ``(N, HV, K, V)`` or None, ``skip (HV,)`` or None, and offsets of
packed sequences or None. Without ``beta`` it is linear attention. With ``skip``, too: ``beta`` then multiplies the
values that are written, and the outputs get the values times ``skip``. Results are the outputs, the final states, and
the states that the backward pass begins its segments with. Queries, keys, values and outputs may have half types; all
else has the type of the computation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from householder import _core, _validate
from householder.torch._base import expressions
from householder.torch._base.dtypes import compute_type
from householder.torch._ops.library import fold, follow_torch_threads, room_for, unfold
from householder.torch._ops.operator import Operator
from householder.torch._ops.route import Route, route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from householder._library import Library

_OPERANDS = 7


def _states(q: Tensor, v: Tensor, cu_seqlens: Tensor | None) -> tuple[int, ...]:
    count = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return count, v.shape[2], q.shape[3], v.shape[3]


def _kept(k: Tensor, v: Tensor, keep: bool) -> tuple[int, ...]:
    steps = k.shape[0] * k.shape[1] if keep else 0
    return steps // _core.delta_interval(k.shape[3], v.shape[3]), v.shape[2], k.shape[3], v.shape[3]


def _options(tensors: Sequence[Any], scale: float, reflections: int, normalize: bool) -> _core.DeltaOptions:
    q, _, v, _, g, _, _, cu_seqlens = tensors
    offsets = _validate.delta_offsets(q.shape, None if cu_seqlens is None else cu_seqlens.numpy())
    sizes = q.shape[2], v.shape[2], q.shape[3], v.shape[3], reflections
    return sizes, offsets, g is not None and g.dim() == 4, scale, normalize


def _compute(tensors: Any, options: Any, keep: bool) -> Any:
    follow_torch_threads()
    o, last, kept = _fake(tensors, options, keep)
    described = _options(tensors, *options)
    done = _core.delta_forward(tensors[:_OPERANDS], described, o, last, kept if keep else None, False)
    return done if done is NotImplemented else ((o, last), (kept,), None)


def _differentiate(tensors: Any, states: Any, _: Any, grads: Any, wanted: Any, options: Any) -> Any:
    follow_torch_threads()
    compute = compute_type(tensors[0].dtype)
    dtypes = compute, compute, tensors[2].dtype, *(compute,) * 4
    gradients = room_for(tensors, wanted, dtypes)
    (kept,), (grad_o, grad_last), described = states, grads, _options(tensors, *options)
    done = _core.delta_backward(tensors[:_OPERANDS], described, kept, grad_o, grad_last, gradients)
    if done is NotImplemented:
        return done
    return tuple([None if d is None else d.to(t.dtype) for d, t in zip(gradients, tensors, strict=False)])


def _unsupported(tensors: Any, _: Any) -> str:
    erases = tensors[3] is not None and tensors[6] is None
    reason = f"{'delta_rule' if erases else 'linear_attention'} has kernels for the CPU only"
    if erases and tensors[0].is_cuda:
        reason += "; flash-linear-attention has some for half types: pip install fla-core"
    return reason


def _expression(library: Library, tensors: Any, options: Any) -> tuple[Tensor, Tensor]:
    q, k, v, *others, skip, cu_seqlens = tensors
    wide = [library.cast(t, compute_type(q.dtype)) for t in (q, k, v)]
    o, last = expressions.delta_rule(*wide, *others, cu_seqlens, *options, skip, library=library)
    return library.cast(o, q.dtype), last


def _fake(tensors: Any, _: Any, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, *_, cu_seqlens = tensors
    shapes, compute = (_states(q, v, cu_seqlens), _kept(k, v, keep)), compute_type(q.dtype)
    last, kept = (q.new_empty(shape, dtype=compute) for shape in shapes)
    return q.new_empty(*q.shape[:2], *v.shape[2:]), last, kept


def in_place(tensors: tuple[Any, ...], options: tuple[Any, ...]) -> tuple[Tensor, Tensor] | None:
    """Return outputs and the initial states, updated; None if a call needs another route."""
    *rows, state, skip, _ = tensors
    if route() is not Route.EAGER or torch.is_grad_enabled():
        return None
    follow_torch_threads()
    q, v = rows[0], rows[2]
    o = q.new_empty(*q.shape[:2], *v.shape[2:])
    described = _options(tensors, *options)
    if _core.delta_forward((*rows, None, skip), described, o, state, None, True) is NotImplemented:
        return None
    if not state.is_inference():
        torch.autograd.graph.increment_version(state)
    return o, state


def _mapped(info: Any, dims: Any, arguments: Any) -> tuple[list[Any], Tensor | None, tuple[int, ...]]:
    """Return the operands of one problem in place of many, and the axes along which they stand for many.

    The axes are those of heads if heads have factors or sequences one row, else those of the batch.
    """
    *_, skip, cu_seqlens = arguments[: _OPERANDS + 1]
    if dims[_OPERANDS] is not None:
        raise RuntimeError("vmap over cu_seqlens is not possible: pack all sequences in one row")
    axes = (0,) * _OPERANDS if cu_seqlens is None and skip is None else (*(2,) * 5, 1, 0)
    return fold(info, arguments[:_OPERANDS], dims[:_OPERANDS], axes), cu_seqlens, axes


def _vmap(op: Any, info: Any, dims: Any, *arguments: Any) -> Any:
    operands, cu_seqlens, axes = _mapped(info, dims, arguments)
    *results, kept = op(*operands, cu_seqlens, False, *arguments[_OPERANDS + 2 :])
    return (*unfold(info, results, (axes[0], axes[5]))[0], kept), (0, 0, None)


def _backward_vmap(op: Any, info: Any, dims: Any, *arguments: Any) -> Any:
    operands, cu_seqlens, axes = _mapped(info, dims, arguments)
    at = slice(_OPERANDS + 2, _OPERANDS + 4)
    grads = fold(info, arguments[at], dims[at], (axes[0], axes[5]))
    gradients = op(*operands, cu_seqlens, None, *grads, *arguments[_OPERANDS + 4 :])
    return unfold(info, gradients, axes)


operator = Operator(
    "delta_rule",
    tensors="Tensor q, Tensor k, Tensor v, Tensor? beta, Tensor? g, Tensor? initial_state, "
    "Tensor? skip, Tensor? cu_seqlens",
    options="float scale, int reflections, bool normalize",
    states="Tensor? kept",
    grads="Tensor? grad_o, Tensor? grad_last",
    differentiable=_OPERANDS,
    compute=_compute,
    differentiate=_differentiate,
    has_cuda=False,
    unsupported=_unsupported,
    expression=_expression,
    fake=_fake,
    vmap=_vmap,
    backward_vmap=_backward_vmap,
)
"""``operator((*operands, cu_seqlens), (scale, reflections, normalize))``."""
