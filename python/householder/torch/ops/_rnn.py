"""The operator ``rnn``: whole sequences ``h_t = phi(W h_{t-1} + V x_t + b)`` in one native call.

Shapes are canonical here: ``u (n, m)``, ``x (T, B, d)`` with ``h0 (B, n)`` or None, or, when ``batch_sizes``
is given, packed rows ``x (rows, d)`` with ``h0 (B, n)``. Results are all states, ``(T, B, n)`` or
``(rows, n)``, and a copy of each sequence's last one, ``(B, n)``: a loss on the last states alone then
never makes a gradient as large as the sequence. For many matrices at once, as under ``vmap``, every tensor but
``batch_sizes`` has the same leading axes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from householder import _core
from householder.torch import expressions
from householder.torch._autograd import (
    RECENT,
    held,
    kept_in,
    needs_expression,
    needs_general_function,
    present,
    pull_back,
    shown_as,
    spread,
)
from householder.torch.ops import _rnn_batch
from householder.torch.ops._cuda_tape import tape_layout
from householder.torch.ops._library import (
    CORE_NAME,
    follow_torch_threads,
    is_profiled,
    operator,
    straight_to_cpu,
)
from householder.torch.ops._memory import empty, empty_like
from householder.torch.ops._sequence import DIFFERENTIABLE, OPTIONS, TENSORS, Inputs, Options, split

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NO_GRADIENTS = (None,) * (len(Options._fields) + 2)
"""Those of what follows the differentiable arguments of ``EagerRnn``."""


def rnn(*arguments: Any, plain: int | None = None) -> tuple[Tensor, Tensor]:
    """Run the recurrence differentiably, by the route that the active transforms allow.

    The arguments are the ``Inputs``, then the ``Options``; ``plain``: the width of the tape, where there are no
    transforms to look for and no tensors to lay out.
    """
    if plain is None and needs_expression():
        return expressions.rnn(*arguments[:-1])
    states: tuple[Tensor, Tensor]
    if plain is None and needs_general_function():
        states = Rnn.apply(*arguments)
    elif torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in arguments[:DIFFERENTIABLE]):
        states = EagerRnn.apply(*arguments, plain)
    elif plain is None or is_profiled():
        states = _without_graph(*arguments)
    else:
        inputs, options = _halves(arguments)
        states = _run_plain(inputs, options, plain, keep=False)[:2]
    return states


def _without_graph(*arguments: Any) -> tuple[Tensor, Tensor]:
    inputs, _, options = split(arguments)
    h, last, _ = forward_op(*inputs, False, *options)
    return h, last


class Rnn(Function):
    """``rnn`` under compilation and the transforms of ``torch.func``; it keeps no tape."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        u: Tensor,
        x: Tensor,
        h0: Tensor | None,
        input_weight: Tensor | None,
        bias: Tensor | None,
        phases: Tensor | None,
        nonlinearity_bias: Tensor | None,
        batch_sizes: Tensor | None,
        nonlinearity: str,
        negative_slope: float,
        transpose: bool,
        reverse: bool,
        method: str,
    ) -> tuple[Tensor, Tensor]:
        # torch.compile before 2.7 counts the parameters to find out whether there is a context among them
        inputs = (u, x, h0, input_weight, bias, phases, nonlinearity_bias, batch_sizes)
        return _without_graph(*inputs, nonlinearity, negative_slope, transpose, reverse, method)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(not RECENT)
        tensors, _, ctx.options = split(inputs)
        ctx.save_for_backward(*tensors, output[0], None, None)

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor | None, grad_last: Tensor | None) -> tuple[Any, ...]:
        return *_gradients(ctx, ctx.saved_tensors, grad_h, grad_last), None, *[None] * len(ctx.options)


def _gradients(ctx: Any, saved: Any, grad_h: Tensor | None, grad_last: Tensor | None) -> tuple[Tensor | None, ...]:
    """Give the wanted gradients, by the route that the active transforms allow."""
    wanted = ctx.needs_input_grad[:DIFFERENTIABLE]
    *tensors, holder = saved
    arguments = (*tensors, grad_h, grad_last, wanted, *ctx.options)
    if needs_expression():
        *primals, batch_sizes, _, _ = tensors
        return spread(_by_expression(primals, batch_sizes, grad_h, grad_last, wanted, ctx.options), wanted)
    if torch.is_grad_enabled():
        return spread(RnnBackward.apply(*arguments), wanted)
    backward: Any = backward_op
    if straight_to_cpu(*tensors, grad_h, grad_last):
        backward = partial(_backward_cpu, kept=kept_in(holder))
    gradients: tuple[Tensor | None, ...] = backward(*arguments)
    return gradients


@shown_as("rnn")
class EagerRnn(Function):
    """``rnn`` in eager calls; the last argument is the width of the tape where tensors are plain, else None."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        width = arguments[-1]
        inputs, options = _halves(arguments[:-1])
        kept, ctx.is_plain = None, width is not None
        if ctx.is_plain:
            h, last, tape, kept = _run_plain(inputs, options, width, keep=True)
        elif straight_to_cpu(*inputs):
            inputs, _, options = split(arguments[:-1])
            h, last, tape, kept = _run_forward(inputs, True, options, keep=True)
        else:
            h, last, tape = forward_op(*inputs, True, *options)
        ctx.options = options
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, h, tape if tape is not None and tape.numel() else None, held(kept))
        return h, last

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor | None, grad_last: Tensor | None) -> tuple[Any, ...]:
        *inputs, h, tape, holder = saved = ctx.saved_tensors
        if (
            ctx.is_plain
            and not torch.is_grad_enabled()
            and straight_to_cpu(h, tape, grad_h, grad_last)
            and _core.plain_rnn_tape_width(inputs, ctx.options) is not None  # they may have been moved or exchanged
        ):
            wanted = ctx.needs_input_grad[:DIFFERENTIABLE]
            given = (h, tape, grad_h, grad_last, wanted, kept_in(holder))
            gradients = _run_backward(Inputs(*inputs), ctx.options, *given)
        else:
            gradients = _gradients(ctx, saved, grad_h, grad_last)
        return *gradients, *_NO_GRADIENTS


class RnnBackward(Function):
    """The gradients of ``rnn`` as a differentiable function; its own backward runs step by step in torch."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        return present(backward_op(*arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        tensors, (_, _, grad_h, grad_last, ctx.wanted), ctx.options = split(inputs)
        ctx.save_for_backward(*tensors, grad_h, grad_last)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        *primals, batch_sizes, grad_h, grad_last = ctx.saved_tensors

        def gradients(*arguments: Any) -> tuple[Tensor, ...]:
            *primals, grad_h, grad_last = arguments
            return _by_expression(primals, batch_sizes, grad_h, grad_last, ctx.wanted, ctx.options)

        needs = ctx.needs_input_grad
        wanted = (*needs[:DIFFERENTIABLE], *needs[DIFFERENTIABLE + 3 : DIFFERENTIABLE + 5])
        results = spread(pull_back(gradients, (*primals, grad_h, grad_last), cotangents, wanted), wanted)
        return *results[:-2], None, None, None, *results[-2:], None, *[None] * len(ctx.options)


def _by_expression(
    primals: Sequence[Any],
    batch_sizes: Tensor | None,
    grad_h: Tensor | None,
    grad_last: Tensor | None,
    wanted: Sequence[bool],
    options: Options,
) -> tuple[Tensor, ...]:
    """Give the wanted gradients in torch operations."""
    grads = (grad_h, grad_last)

    def states(*primals: Any) -> tuple[Tensor, ...]:
        arguments: list[Any] = [*primals, batch_sizes, *options[:-1]]
        both = expressions.rnn(*arguments)
        return tuple(state for state, grad in zip(both, grads, strict=True) if grad is not None)

    return pull_back(states, primals, present(grads), wanted)


def _tape_shape(inputs: Inputs, options: Options) -> tuple[int, ...]:
    """Tell how large is what the forward pass may leave to the backward pass."""
    (*many, n, m), rows, has_phases = inputs.u.shape, inputs.rows(), inputs.phases is not None
    nonlinearity, method = options.nonlinearity, options.method
    if inputs.x.is_cuda:
        return tape_layout(inputs.u, inputs.x, has_phases, nonlinearity, method).shape
    width = _core.rnn_tape_width(CORE_NAME[inputs.x.dtype], n, m, rows, has_phases, nonlinearity, method)
    return *many, rows, width


def _halves(arguments: Any) -> tuple[Any, Any]:
    """Tell inputs and options, as they are."""
    return arguments[: len(Inputs._fields)], arguments[len(Inputs._fields) :]


def _run_plain(
    inputs: Any, options: Any, width: int, *, keep: bool
) -> tuple[Tensor, Tensor, Tensor | None, _core.Kept | None]:
    follow_torch_threads()
    (n, _), (steps, batch, _), dtype = inputs[0].shape, inputs[1].shape, inputs[1].dtype
    h, last = empty((steps, batch, n), dtype), empty((batch, n), dtype)
    tape = empty((steps * batch, width), dtype) if keep and width else None
    return h, last, tape, _core.rnn_forward_tensors(inputs, options, h, tape, last, keep)


def _run_backward(
    inputs: Inputs,
    options: Any,
    h: Tensor,
    tape: Tensor | None,
    grad_h: Tensor | None,
    grad_last: Tensor | None,
    wanted: Sequence[bool],
    kept: _core.Kept | None,
) -> tuple[Tensor | None, ...]:
    follow_torch_threads()
    h, grad_last = h.contiguous(), None if grad_last is None else grad_last.contiguous()
    grad_h = None if grad_h is None else inputs.vectors(grad_h)
    gradients = _backward_room(inputs, wanted, _room)
    _core.rnn_backward_tensors(inputs, options, h, tape, grad_h, grad_last, gradients, kept)
    return gradients


def _forward_cpu(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    inputs, (with_tape,), options = split(arguments)
    return _run_forward(inputs, with_tape, options)[:3]


def _run_forward(
    inputs: Inputs, with_tape: bool, options: Options, keep: bool = False
) -> tuple[Tensor, Tensor, Tensor, _core.Kept | None]:
    follow_torch_threads()
    inputs = inputs.readable()
    dtype, many, (n, _, _, _, batch) = inputs.x.dtype, inputs.u.shape[:-2], inputs.sizes()
    h, last = empty((*inputs.x.shape[:-1], n), dtype), empty((*many, batch, n), dtype)
    tape = empty(_tape_shape(inputs, options) if with_tape else (0,), dtype)
    kept = _core.rnn_forward_tensors(inputs, options, h, tape if tape.numel() else None, last, keep)
    return h, last, tape, kept


def _backward_cpu(*arguments: Any, kept: _core.Kept | None = None) -> tuple[Tensor | None, ...]:
    inputs, (h, tape, grad_h, grad_last, wanted), options = split(arguments)
    inputs = inputs.readable()
    inputs.require_as_before(h, grad_h, grad_last)
    if tape is None and options.nonlinearity == "oplu":  # the states do not tell which entries were exchanged
        tape = _run_forward(inputs, True, options)[2]
    tape = tape if tape is not None and tape.numel() else None
    return _run_backward(inputs, options, h, tape, grad_h, grad_last, wanted, kept)


def _forward_fake(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    inputs, (with_tape,), options = split(arguments)
    x, (n, _, _, _, batch) = inputs.x, inputs.sizes()
    tape = inputs.u.new_empty(_tape_shape(inputs, options) if with_tape else (0,))
    return x.new_empty(*x.shape[:-1], n), x.new_empty(*inputs.u.shape[:-2], batch, n), tape


def _backward_fake(*arguments: Any) -> tuple[Tensor | None, ...]:
    inputs, (*_, wanted), _ = split(arguments)
    return _backward_room(inputs, wanted, lambda t: t.new_empty(t.shape))


def _room(like: Tensor) -> Tensor:
    return empty_like(like) if like.is_contiguous() else empty(like.shape, like.dtype)


def _backward_room(inputs: Any, wanted: Any, like: Callable[[Tensor], Tensor]) -> tuple[Tensor | None, ...]:
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
)
backward_op = operator(
    f"rnn_backward({TENSORS}, Tensor h, Tensor? tape, Tensor? grad_h, Tensor? grad_last, bool[] wanted, {OPTIONS})"
    f" -> ({', '.join(['Tensor'] * DIFFERENTIABLE)})",
    cpu=_backward_cpu,
    fake=_backward_fake,
    vmap=_backward_vmap,
)
