"""The operator ``rnn``: whole sequences ``h_t = phi(W h_{t-1} + V x_t + b)`` in one native call.

Shapes are canonical here: ``u (n, m)``, ``x (T, B, d)`` with ``h0 (B, n)`` or None, or, when ``batch_sizes``
is given, packed rows ``x (rows, d)`` with ``h0 (B, n)``. Results are all states, ``(T, B, n)`` or
``(rows, n)``, and a copy of each sequence's last one, ``(B, n)``: a loss on the last states alone then
never makes a gradient as large as the sequence. For many matrices at once, as under ``vmap``, every tensor but
``batch_sizes`` has the same leading axes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from householder import _core
from householder.torch import expressions
from householder.torch._autograd import NATIVE, Route, kept_in
from householder.torch._layout import contiguous, ordinary
from householder.torch._operator import Operator, save
from householder.torch.ops import _rnn_batch
from householder.torch.ops._cuda_entry import on_cuda
from householder.torch.ops._library import CORE_NAME, follow_torch_threads, operator
from householder.torch.ops._sequence import DIFFERENTIABLE, OPTIONS, TENSORS, Inputs, Options, split

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


def _keeping(inputs: Inputs, options: Sequence[Any], with_tape: bool, keep: bool) -> Any:
    """Return all states, the last ones, the tape and what the core keeps, or ``NotImplemented``: ask the dispatcher."""
    follow_torch_threads()
    u, x = inputs.u, inputs.x
    n, _, _, _, batch = inputs.sizes()
    h, last = x.new_empty(*x.shape[:-1], n), x.new_empty(*u.shape[:-2], batch, n)
    tape = x.new_empty(*_tape_shape(inputs, options) if with_tape else (0,))
    kept = _core.rnn_forward(inputs, options, h, tape if tape.numel() else None, last, keep)
    return kept if kept is NotImplemented else (h, last, tape, kept)


def _native_gradients(
    inputs: Inputs,
    options: Sequence[Any],
    states: Sequence[Any],
    grads: Sequence[Any],
    wanted: Sequence[bool],
    kept: _core.Kept | None = None,
) -> Any:
    """Give the wanted gradients, or ``NotImplemented``: ask the dispatcher."""
    follow_torch_threads()
    (h, tape), (grad_h, grad_last) = states, grads
    if tape is None and options[0] == "oplu":  # the states do not show which entries were exchanged
        found = _keeping(inputs, options, True, False)
        if found is NotImplemented:
            return found
        tape = found[2]
    tape = tape if tape is not None and tape.numel() else None
    grad_h = None if grad_h is None else inputs.vectors(grad_h)
    grad_last = None if grad_last is None else contiguous(grad_last)
    gradients = _gradients_like(inputs, wanted, _like)
    done = _core.rnn_backward(inputs, options, h, tape, grad_h, grad_last, gradients, kept)
    return done if done is NotImplemented else gradients


def _native(tensors: Sequence[Any], options: Sequence[Any]) -> Any:
    """Return all states and the last ones, or ``NotImplemented``: ask the dispatcher."""
    found = _keeping(Inputs._make(tensors), options, False, False)
    return found if found is NotImplemented else found[:2]


def _eager(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
    *tensors, options = arguments
    inputs = Inputs._make(tensors)
    found: Any = _keeping(inputs, options, True, True) if inputs.u.is_cpu else NotImplemented
    if found is NotImplemented:
        found = *forward_op(*inputs, True, *options), None
    h, last, tape, kept = found
    save(ctx, inputs, (h, tape if tape.numel() else None), kept, options)
    return h, last


def _native_backward(ctx: Any, grad_h: Tensor | None, grad_last: Tensor | None) -> Any:
    if grad_h is None and grad_last is None:
        return NotImplemented
    *tensors, h, tape, holder = ctx.saved_tensors
    inputs, wanted = Inputs._make(tensors), ctx.needs_input_grad[:DIFFERENTIABLE]
    try:
        return _native_gradients(inputs, ctx.options, (h, tape), (grad_h, grad_last), wanted, kept_in(holder))
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return NotImplemented


def _general(
    u: Tensor,
    x: Tensor,
    h0: Tensor | None,
    input_weight: Tensor | None,
    bias: Tensor | None,
    phases: Tensor | None,
    nonlinearity_bias: Tensor | None,
    tau: Tensor | None,
    batch_sizes: Tensor | None,
    nonlinearity: str,
    negative_slope: float,
    transpose: bool,
    reverse: bool,
    shape: str,
    method: str,
) -> tuple[Tensor, Tensor]:
    inputs = (u, x, h0, input_weight, bias, phases, nonlinearity_bias, tau, batch_sizes)
    h, last, _ = forward_op(*inputs, False, nonlinearity, negative_slope, transpose, reverse, shape, method)
    return h, last


def _backward(way: Route, tensors: Any, states: Any, kept: Any, grads: Any, wanted: Any, options: Any) -> Any:
    inputs = Inputs._make(tensors)
    if inputs.u.is_cpu and way in NATIVE:
        try:
            found = _native_gradients(inputs, options, states, grads, wanted, kept)
        except (TypeError, ValueError, RuntimeError):
            inputs.require_as_before(options[0], states[0], *grads)
            raise
        if found is not NotImplemented:
            return found
    return backward_op(*inputs, *states, *grads, wanted, *options)


def _derivative(*arguments: Any) -> Any:
    return backward_op(*arguments)


rnn = Operator(
    "rnn",
    differentiable=DIFFERENTIABLE,
    constant=1,
    options=len(Options._fields),
    states=2,
    native=_native,
    eager=_eager,
    native_backward=_native_backward,
    general=_general,
    backward=_backward,
    derivative=_derivative,
    expression=lambda *arguments: expressions.rnn(*arguments[:-1]),
)
"""``rnn(inputs, options)``: all states and the last ones."""


def _tape_shape(inputs: Inputs, options: Sequence[Any]) -> tuple[int, ...]:
    """Give the shape of the tape that the forward pass may leave to the backward pass."""
    (*many, n, m), rows = inputs.u.shape, inputs.rows()
    has_phases, has_tau = inputs.phases is not None, inputs.tau is not None
    nonlinearity, *_, shape, method = options
    if inputs.x.is_cuda and inputs.is_default(shape):
        layout = on_cuda().tape_layout(inputs.u, inputs.x, has_phases, nonlinearity, method)
        return cast("tuple[int]", layout.shape)
    if inputs.x.device.type not in ("cpu", "meta"):
        return (0,)
    width = _core.rnn_tape_width(CORE_NAME[inputs.x.dtype], n, m, rows, has_phases, has_tau, nonlinearity, method)
    return *many, rows, width


def _forward_cpu(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    inputs, (with_tape,), options = split(arguments)
    results: tuple[Tensor, Tensor, Tensor] = _keeping(_ordinary(inputs), options, with_tape, False)[:3]
    return results


def _backward_cpu(*arguments: Any) -> tuple[Tensor | None, ...]:
    inputs, (h, tape, grad_h, grad_last, wanted), options = split(arguments)
    inputs.require_as_before(options.nonlinearity, h, grad_h, grad_last)
    states, grads = ordinary(h, tape), ordinary(grad_h, grad_last)
    gradients: tuple[Tensor | None, ...] = _native_gradients(_ordinary(inputs), options, states, grads, wanted)
    return gradients


def _ordinary(inputs: Inputs) -> Inputs:
    return Inputs._make(ordinary(*inputs))


def _forward_fake(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    inputs, (with_tape,), options = split(arguments)
    x, (n, _, _, _, batch) = inputs.x, inputs.sizes()
    tape = inputs.u.new_empty(_tape_shape(inputs, options) if with_tape else (0,))
    return x.new_empty(*x.shape[:-1], n), x.new_empty(*inputs.u.shape[:-2], batch, n), tape


def _backward_fake(*arguments: Any) -> tuple[Tensor | None, ...]:
    inputs, (*_, wanted), _ = split(arguments)
    return _gradients_like(inputs, wanted, lambda t: t.new_empty(t.shape))


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _gradients_like(inputs: Any, wanted: Any, like: Callable[[Tensor], Tensor]) -> tuple[Tensor | None, ...]:
    return tuple([like(t) if want else None for t, want in zip(inputs, wanted, strict=False)])


def _forward_vmap(*arguments: Any) -> tuple[Any, Any]:
    return _rnn_batch.forward(forward_op, *arguments)


def _backward_vmap(*arguments: Any) -> tuple[Any, Any]:
    return _rnn_batch.backward(backward_op, *arguments)


forward_op = operator(
    f"rnn({TENSORS}, bool with_tape, {OPTIONS}) -> (Tensor, Tensor, Tensor)",
    cpu=_forward_cpu,
    fake=_forward_fake,
    vmap=_forward_vmap,
    autograd=rnn.forward_autograd,
)
backward_op = operator(
    f"rnn_backward({TENSORS}, Tensor h, Tensor? tape, Tensor? grad_h, Tensor? grad_last, bool[] wanted, {OPTIONS})"
    f" -> ({', '.join(['Tensor'] * DIFFERENTIABLE)})",
    cpu=_backward_cpu,
    fake=_backward_fake,
    vmap=_backward_vmap,
    autograd=rnn.backward_autograd,
)
