"""Sequences that are too long to keep all their states."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from householder._base import validate
from householder.torch._base import autocast, checks
from householder.torch.layers.recurrent_layer import RecurrentLayer

if TYPE_CHECKING:
    from householder.torch._ops.operation import Context, OptionalTensor


def last_state(rnn: RecurrentLayer, input: Tensor, hx: Tensor | None = None, *, every: int) -> Tensor:  # noqa: A002
    """Run a recurrent layer only for its last states, saving one state per ``every`` steps.

    The backward pass computes the states in between again, ``every`` steps at a time. Memory is O(T / every + every)
    states instead of O(T), and the forward pass runs twice. Each part is a separate call, so parts should take at least
    a few milliseconds.

    You may call the layer through :func:`torch.func.functional_call`; gradients then belong to the given parameters.
    The backward pass puts them into the layer while it runs, so no other thread may use the layer meanwhile. Second
    derivatives, forward mode, ``torch.func.grad`` and ``torch.func.vmap`` are not supported.

    Parameters
    ----------
    rnn : OrthogonalRNN or UnitaryRNN
        Of any depth, in one direction, without dropout.
    input : Tensor, shape (T, B, d), (B, T, d) if the layer is ``batch_first``, or (T, d)
        The sequences.
    hx : Tensor, optional
        Initial states, as for the layer.
    every : int
        Steps between two saved states.

    Returns
    -------
    Tensor
        The last states, like the layer's second result.

    Raises
    ------
    TypeError
        Another layer, an input that is not a tensor, such as a ``PackedSequence``, or ``every`` is not an integer.
    ValueError
        ``every`` is less than 1, or the layer is bidirectional or has dropout, in the forward or the backward pass.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> rnn = ht.OrthogonalRNN(1, 16, num_reflections=4)
    >>> x = torch.randn(1000, 2, 1)
    >>> h = ht.last_state(rnn, x, every=32)
    >>> torch.testing.assert_close(h, rnn(x)[1])
    """
    checks.tensor("input", input)
    every = validate.integer("every", every, 1)
    _check_layer(rnn)
    dim = 1 if rnn.batch_first and input.dim() == 3 else 0
    held = _tensors(rnn)
    last: Tensor = _LastState.apply(rnn, every, dim, input, hx, tuple(held), *held.values())
    return last


def _check_layer(rnn: RecurrentLayer) -> None:
    checks.module("rnn", rnn, "an OrthogonalRNN or a UnitaryRNN", RecurrentLayer)
    if rnn.bidirectional or (rnn.dropout and rnn.training):
        raise ValueError("last_state runs forward only and without dropout")


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Name the parameters and buffers: a tied one under each of its names, those of a shared module once."""
    kinds = (nn.Module.named_parameters, nn.Module.named_buffers)
    return {
        name: tensor
        for prefix, part in module.named_modules()
        for named in kinds
        for name, tensor in named(part, prefix, recurse=False, remove_duplicate=False)
    }


class _LastState(Function):
    """Run the layer over one part of the sequence after the other, and save only the states between parts."""

    @staticmethod
    def forward(
        ctx: Context,
        rnn: RecurrentLayer,
        every: int,
        dim: int,
        sequence: Tensor,
        hx: Tensor | None,
        names: tuple[str, ...],
        *held: Tensor,
    ) -> Tensor:
        ctx.rnn, ctx.every, ctx.dim, ctx.starts_at_zero, ctx.names = rnn, every, dim, hx is None, names
        ctx.autocast = autocast.as_now(sequence.device)
        states = [] if hx is None else [hx]
        for part in torch.split(sequence, every, dim):
            states.append(rnn(part, states[-1] if states else None)[1])
        last = states.pop()
        ctx.save_for_backward(sequence, *held, *states)
        return last

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        _check_layer(ctx.rnn)
        sequence, *others = ctx.saved_tensors
        count = len(ctx.names)
        leaves = [t.detach().requires_grad_(t.requires_grad) for t in others[:count]]
        held, states = dict(zip(ctx.names, leaves, strict=True)), others[count:]
        parts = torch.split(sequence, ctx.every, ctx.dim)
        if ctx.starts_at_zero:
            states = [None, *states]
        grad_parts: list[OptionalTensor] = []
        for part, state in zip(reversed(parts), reversed(states), strict=True):
            with torch.enable_grad(), ctx.autocast():
                part = part.detach().requires_grad_(ctx.needs_input_grad[3])
                state = None if state is None else state.detach().requires_grad_()
                last = functional_call(ctx.rnn, held, (part, state), tie_weights=False)[1]
            inputs = [t for t in (part, state, *leaves) if t is not None and t.requires_grad]
            torch.autograd.backward(last, grad, inputs=inputs)
            grad_parts.append(part.grad)
            grad = None if state is None else state.grad
        grad_sequence = torch.cat(grad_parts[::-1], ctx.dim) if ctx.needs_input_grad[3] else None
        return None, None, None, grad_sequence, grad, None, *(leaf.grad for leaf in leaves)
