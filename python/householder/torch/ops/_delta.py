"""The operator ``delta_rule``: a product of reflections that depends on the data, in one native call.

Operands are ``q (B, T, H, K)``, ``k (B, T r, H, K)``, ``v (B, T r, HV, V)``, ``beta (B, T r, HV)``, ``g (B, T, HV)`` or
``(B, T, HV, K)`` or None, states ``(N, HV, K, V)`` or None, and offsets of packed sequences or None. Results are the
outputs, the final states, and the states that the backward pass begins its segments with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from householder import _core, _notices, _validate
from householder.torch import delta_expression
from householder.torch._autograd import NATIVE, Route
from householder.torch._layout import contiguous, ordinary
from householder.torch._operator import Operator, save
from householder.torch.ops._library import follow_torch_threads, leading, operator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_OPERANDS = 6
_TENSORS = "Tensor q, Tensor k, Tensor v, Tensor beta, Tensor? g, Tensor? initial_state, Tensor? cu_seqlens"
_OPTIONS = "float scale, int reflections, bool normalize"


def _states(q: Tensor, v: Tensor, cu_seqlens: Tensor | None) -> tuple[int, ...]:
    count = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return count, v.shape[2], q.shape[3], v.shape[3]


def _kept(k: Tensor, v: Tensor, keep: bool) -> tuple[int, ...]:
    steps = k.shape[0] * k.shape[1] if keep else 0
    return steps // _core.delta_interval(k.shape[3], v.shape[3]), v.shape[2], k.shape[3], v.shape[3]


def _options(tensors: Sequence[Any], scale: float, reflections: int, normalize: bool) -> _core.DeltaOptions:
    q, _, v, _, g, _, cu_seqlens = tensors
    offsets = _validate.delta_offsets(q.shape, None if cu_seqlens is None else cu_seqlens.numpy())
    sizes = q.shape[2], v.shape[2], q.shape[3], v.shape[3], reflections
    return sizes, offsets, g is not None and g.dim() == 4, scale, normalize


def _laid_out(tensors: Sequence[Any]) -> list[Any]:
    return [None if t is None else contiguous(t) for t in tensors]


def _native(tensors: Sequence[Any], options: Sequence[Any]) -> Any:
    """Return outputs and final states, or ``NotImplemented``: ask the dispatcher."""
    found = _keeping(_laid_out(tensors), options, False)
    return found if found is NotImplemented else found[:2]


def _keeping(tensors: Sequence[Any], options: Sequence[Any], keep: bool) -> Any:
    """Give outputs, final states and kept states, or ``NotImplemented``: ask the dispatcher."""
    follow_torch_threads()
    q, k, v, *_, cu_seqlens = tensors
    shapes = (*q.shape[:2], *v.shape[2:]), _states(q, v, cu_seqlens), _kept(k, v, keep)
    o, last, kept = (q.new_empty(shape) for shape in shapes)
    done = _core.delta_forward(tensors[:_OPERANDS], _options(tensors, *options), o, last, kept if keep else None)
    return done if done is NotImplemented else (o, last, kept)


def _native_gradients(
    tensors: Sequence[Any], states: Sequence[Any], wanted: Sequence[bool], options: Sequence[Any]
) -> Any:
    """Give the wanted gradients, or ``NotImplemented``: ask the dispatcher; ``states``: kept, grad_o and grad_last."""
    follow_torch_threads()
    gradients = tuple([torch.empty_like(t) if want else None for t, want in zip(tensors, wanted, strict=False)])
    described = _options(tensors, *options)
    kept, grad_o, grad_last = states
    done = _core.delta_backward(tensors[:_OPERANDS], described, kept, grad_o, grad_last, gradients)
    return done if done is NotImplemented else gradients


def _eager(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
    *tensors, options = arguments
    found = _keeping(_laid_out(tensors), options, True) if tensors[0].is_cpu else NotImplemented
    o, last, kept = forward_op(*tensors, True, *options) if found is NotImplemented else found
    save(ctx, tensors, (kept,), None, options)
    return o, last


def _general(
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


def _backward(way: Route, tensors: Any, states: Any, _: Any, grads: Any, wanted: Any, options: Any) -> Any:
    if tensors[0].is_cpu and way in NATIVE:
        found = _native_gradients(_laid_out(tensors), _laid_out((*states, *grads)), wanted, options)
        if found is not NotImplemented:
            return found
    return backward_op(*tensors, *states, *grads, wanted, *options)


def _derivative(*arguments: Any) -> Any:
    return backward_op(*arguments)


_delta_rule = Operator(
    "delta_rule",
    differentiable=_OPERANDS,
    constant=1,
    options=3,
    states=1,
    native=_native,
    eager=_eager,
    general=_general,
    backward=_backward,
    derivative=_derivative,
    expression=delta_expression.delta_rule,
)


def delta_rule(tensors: tuple[Any, ...], options: tuple[float, int, bool]) -> tuple[Tensor, Tensor]:
    """Run the recurrence on the six operands and ``cu_seqlens``.

    The options are the scale, the steps of a token and whether queries and keys are normalised.
    """
    results: tuple[Tensor, Tensor]
    if tensors[0].device.type != "cpu":
        say_without_kernels(tensors[0].device)
        arguments: Any = *tensors, *options
        return delta_expression.delta_rule(*arguments)
    results = _delta_rule(tensors, options)
    return results


def say_without_kernels(device: torch.device) -> None:
    """Say once for each device that the delta rule has no kernels for it."""
    if device.type == "meta" or _notices.asked() == "off":
        return
    reason = "delta_rule has kernels for the CPU only"
    if device.type == "cuda":
        reason += "; flash-linear-attention has some for half types: pip install fla-core"
    _notices.say(str(device), reason)


say_without_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]
"""A compiler calls the function while it compiles. ``torch.compiler.assume_constant_result`` imports the compiler."""


def _forward_cpu(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    tensors, keep, options = arguments[: _OPERANDS + 1], arguments[_OPERANDS + 1], arguments[_OPERANDS + 2 :]
    results: tuple[Tensor, Tensor, Tensor] = _keeping(ordinary(*tensors), options, keep)
    return results


def _backward_cpu(*arguments: Any) -> tuple[Tensor | None, ...]:
    tensors, states, (wanted, *options) = (
        arguments[: _OPERANDS + 1],
        arguments[_OPERANDS + 1 : _OPERANDS + 4],
        arguments[_OPERANDS + 4 :],
    )
    gradients: tuple[Tensor | None, ...] = _native_gradients(ordinary(*tensors), ordinary(*states), wanted, options)
    return gradients


def _forward_fake(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, *_, cu_seqlens, keep = arguments[: _OPERANDS + 2]
    o = q.new_empty(*q.shape[:2], *v.shape[2:])
    return o, q.new_empty(_states(q, v, cu_seqlens)), q.new_empty(_kept(k, v, keep))


def _backward_fake(*arguments: Any) -> tuple[Tensor | None, ...]:
    wanted = arguments[_OPERANDS + 4]
    return tuple([t.new_empty(t.shape) if want else None for t, want in zip(arguments, wanted, strict=False)])


def _fold(info: Any, tensors: Sequence[Any], dims: Sequence[Any], axis: int) -> list[Any]:
    """Merge the mapped dimension with the batch (axis 0) or with the heads."""
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
    autograd=_delta_rule.forward_autograd,
)
backward_op = operator(
    f"delta_rule_backward({_TENSORS}, Tensor? kept, Tensor? grad_o, Tensor? grad_last, bool[] wanted, {_OPTIONS})"
    f" -> ({', '.join(['Tensor'] * _OPERANDS)})",
    cpu=_backward_cpu,
    fake=_backward_fake,
    vmap=_backward_vmap,
    autograd=_delta_rule.backward_autograd,
)
