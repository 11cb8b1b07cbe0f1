"""The operation ``delta_rule``: a product of reflections that depends on the data, in one native call.

Operands are ``q (B, T, H, K)``, ``k (B, T r, H, K)``, ``v (B, T r, HV, V)``, ``beta (B, T r, HV)`` or None, ``g`` of
``(B, T, HV)`` or ``(B, T, HV, K)`` or None, states ``(N, HV, K, V)`` or None, ``skip (HV,)`` or None, and offsets of
packed sequences or None. ``beta=None`` selects linear attention, and so does ``skip``: ``beta`` then multiplies the
values that are written, and the outputs get the values times ``skip``. Results are the outputs and the final states.
Queries, keys, values and outputs may have half types; all else has the type of the computation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from householder import _core
from householder._base import validate
from householder.torch._base import expressions
from householder.torch._base.dtypes import compute_type
from householder.torch._base.layout import contiguous, in_rows
from householder.torch._ops.batching import fold, unfold
from householder.torch._ops.memory import room_for
from householder.torch._ops.operation import BackwardArguments, Computed, Operation, Pulled, Results, VmapInfo
from householder.torch._ops.operator import Operator
from householder.torch._ops.route import EAGER, route

if TYPE_CHECKING:
    from collections.abc import Callable

    from householder._mathematics.library import Library

T = TypeVar("T")


class DeltaRuleInputs(NamedTuple, Generic[T]):
    """The tensors; or a flag or the mapped axis of each."""

    q: T
    k: T
    v: T
    beta: T | None
    g: T | None
    initial_state: T | None
    skip: T | None
    cu_seqlens: T | None


class DeltaRuleOptions(NamedTuple):
    """The arguments that are no tensors."""

    scale: float
    reflections: int
    normalize: bool


class DeltaRuleGradients(NamedTuple):
    """Gradients of the results."""

    o: Tensor | None
    last: Tensor | None


class DeltaRuleSaved(NamedTuple):
    """The states from which the backward pass starts its segments, ``(steps // interval, HV, K, V)``."""

    saved: Tensor | None = None
    native: None = None


_OPERANDS = len(DeltaRuleInputs._fields) - 1
"""All inputs but the offsets, as the core takes them."""


class DeltaRule(Operation):
    """The delta rule or linear attention; oracle: :func:`householder.reference.delta.delta_rule`."""

    name = "delta_rule"
    inputs_type, options_type, grads_type, saved_type = (
        DeltaRuleInputs,
        DeltaRuleOptions,
        DeltaRuleGradients,
        DeltaRuleSaved,
    )
    differentiable = _OPERANDS
    recomputes = True  # autograd would hold forty times the memory of keys

    def expression(
        self, library: Library, inputs: DeltaRuleInputs[Tensor], options: DeltaRuleOptions
    ) -> tuple[Tensor, Tensor]:
        q, k, v, beta, g, initial_state, skip, cu_seqlens = inputs
        wide = [library.cast(t, compute_type(q.dtype)) for t in (q, k, v)]
        o, last = expressions.delta_rule(*wide, beta, g, initial_state, cu_seqlens, *options, skip, library=library)
        return library.cast(o, q.dtype), last

    def closed_gradients(
        self,
        library: Library,
        inputs: DeltaRuleInputs[Tensor],
        grads: DeltaRuleGradients,
        options: DeltaRuleOptions,
    ) -> Pulled:
        q, k, v, beta, g, initial_state, skip, cu_seqlens = inputs
        compute = compute_type(q.dtype)
        wide = [library.cast(t, compute) for t in (q, k, v)]
        grad_o = None if grads.o is None else library.cast(grads.o, compute)
        rest = beta, g, initial_state, cu_seqlens, *options, skip, grad_o, grads.last
        *of_wide, of_beta, of_g, of_state, of_skip = expressions.delta_rule_gradients(*wide, *rest, library=library)
        narrow = (library.cast(grad, t.dtype) for grad, t in zip(of_wide, (q, k, v), strict=True))
        return *narrow, of_beta, of_g, of_state, of_skip

    def empty_results(self, inputs: DeltaRuleInputs[Tensor], options: DeltaRuleOptions) -> tuple[Tensor, Tensor]:
        q, v, cu_seqlens = inputs.q, inputs.v, inputs.cu_seqlens
        (batch, tokens, _, keys), (_, _, heads, values) = q.shape, v.shape
        count = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
        last = q.new_empty(count, heads, keys, values, dtype=compute_type(q.dtype))
        return q.new_empty(batch, tokens, heads, values), last

    def empty_saved(self, inputs: DeltaRuleInputs[Tensor], options: DeltaRuleOptions, save: bool) -> Tensor:
        (batch, steps, _, keys), (_, _, heads, values) = inputs.k.shape, inputs.v.shape
        count = batch * steps // _core.delta_interval(keys, values) if save else 0
        return inputs.q.new_empty(count, heads, keys, values, dtype=compute_type(inputs.q.dtype))

    def cpu_forward(self, inputs: DeltaRuleInputs[Tensor], options: DeltaRuleOptions, save: bool) -> Computed:
        described = _described(inputs, options)
        o, last = self.empty_results(inputs, options)
        saved = DeltaRuleSaved(self.empty_saved(inputs, options, True) if save else None)
        status = _core.delta_forward(inputs[:_OPERANDS], described, o, last, saved.saved, False)
        return status if status is NotImplemented else ((o, last), saved)

    def cpu_backward(
        self,
        inputs: DeltaRuleInputs[Tensor],
        saved: DeltaRuleSaved,
        grads: DeltaRuleGradients,
        needs_grad: DeltaRuleInputs[bool],
        options: DeltaRuleOptions,
    ) -> Pulled:
        compute = compute_type(inputs.q.dtype)
        dtypes = compute, compute, inputs.v.dtype, *(compute,) * 4
        gradients = room_for(inputs[:_OPERANDS], needs_grad, dtypes)
        described = _described(inputs, options)
        grad_o, grad_last = grads
        if grad_o is not None:
            grad_o = in_rows(grad_o)
        if grad_last is not None:
            grad_last = contiguous(grad_last)
        status = _core.delta_backward(inputs[:_OPERANDS], described, saved.saved, grad_o, grad_last, gradients)
        if status is NotImplemented:
            return status
        grad_q, grad_k, *others = gradients  # the others have the types of their operands
        grad_q = None if grad_q is None else grad_q.to(inputs.q.dtype)
        grad_k = None if grad_k is None else grad_k.to(inputs.k.dtype)
        return grad_q, grad_k, *others

    def reason_without_kernel(self, inputs: DeltaRuleInputs[Tensor], options: DeltaRuleOptions) -> str:
        erases = inputs.beta is not None and inputs.skip is None
        reason = f"{'delta_rule' if erases else 'linear_attention'} has kernels for the CPU only"
        if erases and inputs.q.is_cuda:
            reason += "; flash-linear-attention has some for half types: pip install fla-core"
        return reason

    def vmap(
        self,
        call: Callable[[DeltaRuleInputs[Tensor]], tuple[Tensor, Tensor]],
        info: VmapInfo,
        dims: DeltaRuleInputs[int | None],
        inputs: DeltaRuleInputs[Tensor],
        options: DeltaRuleOptions,
    ) -> Results:
        axes = _axes_for_many(inputs, dims)
        results = call(_folded(info, inputs, dims, axes))
        return unfold(info, results, (axes.q, axes.initial_state))

    def vmap_backward(
        self,
        call: Callable[[BackwardArguments], Pulled],
        info: VmapInfo,
        dims: BackwardArguments,
        arguments: BackwardArguments,
    ) -> Pulled:
        axes = _axes_for_many(arguments.inputs, dims.inputs)
        inputs = _folded(info, arguments.inputs, dims.inputs, axes)
        grads = fold(info, arguments.grads, dims.grads, (axes.q, axes.initial_state))
        gradients = call(arguments._replace(inputs=inputs, saved=DeltaRuleSaved(), grads=grads))
        return unfold(info, gradients, axes[: self.differentiable])


def _described(inputs: DeltaRuleInputs[Tensor], options: DeltaRuleOptions) -> _core.NativeDeltaOptions:
    """Return the options as the core takes them."""
    q, v, g, cu_seqlens = inputs.q, inputs.v, inputs.g, inputs.cu_seqlens
    offsets = validate.delta_offsets(q.shape, None if cu_seqlens is None else cu_seqlens.numpy())
    sizes = q.shape[2], v.shape[2], q.shape[3], v.shape[3], options.reflections
    return sizes, offsets, g is not None and g.dim() == 4, options.scale, options.normalize


def outputs_alone(inputs: DeltaRuleInputs[Tensor], options: DeltaRuleOptions) -> Computed:
    """Compute the outputs, and write no final states."""
    o = _empty_outputs(inputs)
    status = _core.delta_forward(inputs[:_OPERANDS], _described(inputs, options), o, None, None, False)
    return status if status is NotImplemented else ((o, None), DeltaRuleSaved())


def written(inputs: DeltaRuleInputs[Tensor], options: DeltaRuleOptions, *, o: Tensor, last: Tensor) -> Computed:
    """Compute the results in these places."""
    status = _core.delta_forward(inputs[:_OPERANDS], _described(inputs, options), o, last, None, False)
    return status if status is NotImplemented else ((o, last), DeltaRuleSaved())


def is_alone(inputs: DeltaRuleInputs[Tensor]) -> bool:
    """Return whether no graph, transform or other device is concerned, so that results may be written to places."""
    if route() is not EAGER:
        return False
    is_recording = torch.is_grad_enabled()
    return all(t is None or (t.is_cpu and not (is_recording and t.requires_grad)) for t in inputs)


def in_place(inputs: DeltaRuleInputs[Tensor], options: DeltaRuleOptions) -> Computed:
    """Compute the outputs, and update the initial states."""
    return _updated(inputs, options, _empty_outputs(inputs))


def states_in_place(inputs: DeltaRuleInputs[Tensor], options: DeltaRuleOptions) -> Computed:
    """Update the initial states, and compute no outputs."""
    return _updated(inputs, options, None)


def _updated(inputs: DeltaRuleInputs[Tensor], options: DeltaRuleOptions, o: Tensor | None) -> Computed:
    state = inputs.initial_state
    assert state is not None
    operands, described = inputs._replace(initial_state=None)[:_OPERANDS], _described(inputs, options)
    if _core.delta_forward(operands, described, o, state, None, True) is NotImplemented:
        return NotImplemented
    if not state.is_inference():
        torch.autograd.graph.increment_version(state)
    return (o, state), DeltaRuleSaved()


def _empty_outputs(inputs: DeltaRuleInputs[Tensor]) -> Tensor:
    q, v = inputs.q, inputs.v
    return q.new_empty(*q.shape[:2], *v.shape[2:])


def _axes_for_many(inputs: DeltaRuleInputs[Tensor], dims: DeltaRuleInputs[int | None]) -> DeltaRuleInputs[int]:
    """Return the axis of each operand along which one problem holds those of all indices.

    The axes are those of heads if heads have factors or sequences one row, else those of the batch.
    """
    if dims.cu_seqlens is not None:
        raise RuntimeError("vmap over cu_seqlens is not possible: pack all sequences in one row")
    if inputs.cu_seqlens is None and inputs.skip is None:
        return DeltaRuleInputs(*[0] * len(DeltaRuleInputs._fields))
    return DeltaRuleInputs(q=2, k=2, v=2, beta=2, g=2, initial_state=1, skip=0, cu_seqlens=0)


def _folded(
    info: VmapInfo, inputs: DeltaRuleInputs[Tensor], dims: DeltaRuleInputs[int | None], axes: DeltaRuleInputs[int]
) -> DeltaRuleInputs[Tensor]:
    folded = fold(info, inputs._replace(cu_seqlens=None), dims, axes)
    return folded._replace(cu_seqlens=inputs.cu_seqlens)


operator = Operator(DeltaRule())
"""``operator(DeltaRuleInputs(..), DeltaRuleOptions(scale, reflections, normalize))``."""
