"""The operator ``delta_rule``: a product of reflections that depends on the data, in one native call.

Operands are ``q (B, T, H, K)``, ``k (B, T r, H, K)``, ``v (B, T r, HV, V)``, ``beta (B, T r, HV)``, ``g (B, T, HV)`` or
``(B, T, HV, K)`` or None, states ``(N, HV, K, V)`` or None, and offsets of packed sequences or None. Results are the
outputs, the final states, and the states that the backward pass begins its segments with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from householder import _core, _validate
from householder.torch import delta_expression
from householder.torch._autograd import (
    RECENT,
    needs_expression,
    needs_general_function,
    present,
    pull_back,
    spread,
)
from householder.torch.ops._library import CORE_NAME, follow_torch_threads, leading, operator, straight_to_cpu
from householder.torch.ops._memory import contiguous, empty, empty_like

if TYPE_CHECKING:
    from collections.abc import Sequence

_OPERANDS = 6
_TENSORS = "Tensor q, Tensor k, Tensor v, Tensor beta, Tensor? g, Tensor? initial_state, Tensor? cu_seqlens"
_OPTIONS = "float scale, int reflections, bool normalize"


def delta_rule(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Run the recurrence differentiably, by the route that the active transforms allow.

    The arguments are the six operands, ``cu_seqlens``, the scale, the steps of a token and whether queries and keys are
    normalised.
    """
    results: tuple[Tensor, Tensor]
    if arguments[0].device.type != "cpu" or needs_expression():
        return delta_expression.delta_rule(*arguments)
    if needs_general_function():
        results = DeltaRule.apply(*arguments)
    elif torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in arguments[:_OPERANDS]):
        results = EagerDeltaRule.apply(*arguments)
    else:
        results = _forward(*arguments)
    return results


def _forward(*arguments: Any, keep: bool = False) -> Any:
    tensors, options = arguments[: _OPERANDS + 1], arguments[_OPERANDS + 1 :]
    run = _forward_cpu if straight_to_cpu(*tensors) else forward_op
    results = run(*tensors, keep, *options)
    return results if keep else results[:2]


class DeltaRule(Function):
    """``delta_rule`` under compilation and the transforms of ``torch.func``; it keeps no states."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        beta: Tensor,
        g: Tensor | None,
        initial_state: Tensor | None,
        cu_seqlens: Tensor | None,
        scale: float,
        reflections: int,
        normalize: bool,
    ) -> tuple[Tensor, Tensor]:
        o, last, _ = forward_op(q, k, v, beta, g, initial_state, cu_seqlens, False, scale, reflections, normalize)
        return o, last

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        ctx.set_materialize_grads(not RECENT)
        ctx.options = inputs[_OPERANDS + 1 :]
        ctx.save_for_backward(*inputs[: _OPERANDS + 1], None)

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor | None, grad_last: Tensor | None) -> tuple[Any, ...]:
        return *_gradients(ctx, grad_o, grad_last), None, None, None, None


class EagerDeltaRule(Function):
    """``delta_rule`` in eager calls."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        o, last, kept = _forward(*arguments, keep=True)
        ctx.options = arguments[_OPERANDS + 1 :]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*arguments[: _OPERANDS + 1], kept)
        return o, last

    @staticmethod
    def backward(ctx: Any, grad_o: Tensor | None, grad_last: Tensor | None) -> tuple[Any, ...]:
        return *_gradients(ctx, grad_o, grad_last), None, None, None, None


def _gradients(ctx: Any, grad_o: Tensor | None, grad_last: Tensor | None) -> tuple[Tensor | None, ...]:
    """Give the wanted gradients, by the route that the active transforms allow."""
    *operands, cu_seqlens, kept = ctx.saved_tensors
    wanted = ctx.needs_input_grad[:_OPERANDS]
    if needs_expression():
        return spread(_by_expression(operands, cu_seqlens, grad_o, grad_last, wanted, ctx.options), wanted)
    arguments = (*operands, cu_seqlens, kept, grad_o, grad_last, wanted, *ctx.options)
    if torch.is_grad_enabled():
        return spread(DeltaRuleBackward.apply(*arguments), wanted)
    run: Any = _backward_cpu if straight_to_cpu(*operands, cu_seqlens, kept, grad_o, grad_last) else backward_op
    gradients: tuple[Tensor | None, ...] = run(*arguments)
    return gradients


class DeltaRuleBackward(Function):
    """The gradients of ``delta_rule`` as a differentiable function; its own backward runs chunks in torch."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        return present(backward_op(*arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        *tensors, _, grad_o, grad_last, ctx.wanted = inputs[: _OPERANDS + 5]
        ctx.options = inputs[_OPERANDS + 5 :]
        ctx.save_for_backward(*tensors, grad_o, grad_last)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        *operands, cu_seqlens, grad_o, grad_last = ctx.saved_tensors

        def gradients(*arguments: Any) -> tuple[Tensor, ...]:
            *operands, grad_o, grad_last = arguments
            return _by_expression(operands, cu_seqlens, grad_o, grad_last, ctx.wanted, ctx.options)

        needs = ctx.needs_input_grad
        wanted = (*needs[:_OPERANDS], *needs[_OPERANDS + 2 : _OPERANDS + 4])
        results = spread(pull_back(gradients, (*operands, grad_o, grad_last), cotangents, wanted), wanted)
        return *results[:-2], None, None, *results[-2:], None, None, None, None


def _by_expression(
    operands: Sequence[Any],
    cu_seqlens: Tensor | None,
    grad_o: Tensor | None,
    grad_last: Tensor | None,
    wanted: Sequence[bool],
    options: Any,
) -> tuple[Tensor, ...]:
    """Give the wanted gradients in torch operations."""
    grads = (grad_o, grad_last)

    def results(*operands: Any) -> tuple[Tensor, ...]:
        arguments: list[Any] = [*operands, cu_seqlens, *options]
        both = delta_expression.delta_rule(*arguments)
        return tuple(result for result, grad in zip(both, grads, strict=True) if grad is not None)

    return pull_back(results, operands, present(grads), wanted)


def _states(q: Tensor, v: Tensor, cu_seqlens: Tensor | None) -> tuple[int, ...]:
    count = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return count, v.shape[2], q.shape[3], v.shape[3]


def _kept(k: Tensor, v: Tensor, keep: bool) -> tuple[int, ...]:
    steps = k.shape[0] * k.shape[1] if keep else 0
    return steps // _core.delta_interval(k.shape[3], v.shape[3]), v.shape[2], k.shape[3], v.shape[3]


def _call(tensors: Sequence[Any], scale: float, reflections: int, normalize: bool) -> Any:
    """Give the core's operands and options; the tensors are to be held until it has returned."""
    q, _, v, _, g, _, cu_seqlens = tensors
    offsets = _validate.delta_offsets(q.shape, None if cu_seqlens is None else cu_seqlens.numpy())
    sizes = q.shape[2], v.shape[2], q.shape[3], v.shape[3], reflections
    operands = tuple(_address(t) for t in tensors[:_OPERANDS])
    return operands, (sizes, offsets, g is not None and g.dim() == 4, scale, normalize)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _laid_out(tensors: Sequence[Any]) -> list[Any]:
    return [None if t is None else contiguous(t) for t in tensors]


def _forward_cpu(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    follow_torch_threads()
    tensors, keep, options = _laid_out(arguments[: _OPERANDS + 1]), arguments[_OPERANDS + 1], arguments[_OPERANDS + 2 :]
    q, k, v, *_, cu_seqlens = tensors
    operands, described = _call(tensors, *options)
    o, last = empty((*q.shape[:2], *v.shape[2:]), q.dtype), empty(_states(q, v, cu_seqlens), q.dtype)
    kept = empty(_kept(k, v, keep), q.dtype)
    places = o.data_ptr(), last.data_ptr(), kept.data_ptr() if keep else None
    _core.delta_forward(CORE_NAME[q.dtype], operands, described, *places)
    return o, last, kept


def _backward_cpu(*arguments: Any) -> tuple[Tensor | None, ...]:
    follow_torch_threads()
    tensors = _laid_out(arguments[: _OPERANDS + 1])
    kept, *grads = _laid_out(arguments[_OPERANDS + 1 : _OPERANDS + 4])
    wanted, options = arguments[_OPERANDS + 4], arguments[_OPERANDS + 5 :]
    given = [t for t in (*tensors[:_OPERANDS], kept, *grads) if t is not None]
    if any(t.dtype is not tensors[0].dtype for t in given):
        raise RuntimeError("tensors changed their dtypes: convert modules after the backward pass")
    gradients = tuple([empty_like(t) if want else None for t, want in zip(tensors, wanted, strict=False)])
    operands, described = _call(tensors, *options)
    of_states, of_outputs, of_last = (_address(t) for t in (kept, *grads))
    places: Any = tuple(_address(t) for t in gradients)
    _core.delta_backward(CORE_NAME[tensors[0].dtype], operands, described, of_states, of_outputs, of_last, places)
    return gradients


def _forward_fake(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, *_, cu_seqlens, keep = arguments[: _OPERANDS + 2]
    o = q.new_empty(*q.shape[:2], *v.shape[2:])
    return o, q.new_empty(_states(q, v, cu_seqlens)), q.new_empty(_kept(k, v, keep))


def _backward_fake(*arguments: Any) -> tuple[Tensor | None, ...]:
    wanted = arguments[_OPERANDS + 4]
    return tuple([t.new_empty(t.shape) if want else None for t, want in zip(arguments, wanted, strict=False)])


def _fold(info: Any, tensors: Sequence[Any], dims: Sequence[Any], axis: int) -> list[Any]:
    """Make the mapped dimension and the batch (axis 0), or the heads, one axis."""
    return [
        None if t is None else leading(info, t, dim).movedim(0, at).flatten(at, at + 1)
        for t, dim, at in zip(tensors, dims, (axis,) * 5 + (min(axis, 1),) * 3, strict=False)
    ]


def _unfold(info: Any, tensor: Tensor | None, axis: int) -> Tensor | None:
    if tensor is None:
        return None
    count = info.batch_size
    shape = (*tensor.shape[:axis], count, tensor.shape[axis] // count, *tensor.shape[axis + 1 :])
    return tensor.reshape(shape).movedim(axis, 0)


def _mapped(info: Any, dims: Any, arguments: Any) -> tuple[list[Any], Tensor | None, int]:
    """Give the operands of one problem in place of many. Packed sequences, which are one row, become its heads."""
    cu_seqlens = arguments[_OPERANDS]
    if dims[_OPERANDS] is not None:
        raise RuntimeError("vmap over cu_seqlens is not possible: pack all sequences in one row")
    axis = 0 if cu_seqlens is None else 2
    return _fold(info, arguments[:_OPERANDS], dims[:_OPERANDS], axis), cu_seqlens, axis


def _forward_vmap(info: Any, dims: Any, *arguments: Any) -> tuple[Any, Any]:
    operands, cu_seqlens, axis = _mapped(info, dims, arguments)
    o, last, kept = forward_op(*operands, cu_seqlens, False, *arguments[_OPERANDS + 2 :])
    return (_unfold(info, o, axis), _unfold(info, last, min(axis, 1)), kept), (0, 0, None)


def _backward_vmap(info: Any, dims: Any, *arguments: Any) -> tuple[Any, Any]:
    operands, cu_seqlens, axis = _mapped(info, dims, arguments)
    at = slice(_OPERANDS + 2, _OPERANDS + 4)
    grad_o = _fold(info, arguments[at][:1], dims[at][:1], axis)[0]
    (grad_last,) = _fold(info, (None,) * 5 + arguments[at][1:], (None,) * 5 + tuple(dims[at][1:]), axis)[5:]
    rest = arguments[_OPERANDS + 4 :]
    gradients = backward_op(*operands, cu_seqlens, None, grad_o, grad_last, *rest)
    axes = (axis,) * 5 + (min(axis, 1),)
    found = tuple([_unfold(info, t, at) for t, at in zip(gradients, axes, strict=True)])
    return found, tuple([None if t is None else 0 for t in found])


forward_op = operator(
    f"delta_rule({_TENSORS}, bool keep, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    cpu=_forward_cpu,
    fake=_forward_fake,
    vmap=_forward_vmap,
)
backward_op = operator(
    f"delta_rule_backward({_TENSORS}, Tensor? kept, Tensor? grad_o, Tensor? grad_last, bool[] wanted, {_OPTIONS})"
    f" -> ({', '.join(['Tensor'] * _OPERANDS)})",
    cpu=_backward_cpu,
    fake=_backward_fake,
    vmap=_backward_vmap,
)
