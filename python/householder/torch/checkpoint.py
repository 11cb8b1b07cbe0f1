"""Sequences too long for all their states to be kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from householder.torch._recurrent import RecurrentLayer


def last_state(rnn: RecurrentLayer, input: Tensor, hx: Tensor | None = None, *, every: int) -> Tensor:  # noqa: A002
    """Run a recurrent layer for its last states alone, keeping a state for each ``every`` steps.

    The backward pass makes the states in between again, ``every`` steps at a time: memory is O(T / every + every)
    states instead of O(T), and the forward pass runs twice. Each part is a call of its own, so parts should not be
    shorter than some milliseconds.

    Parameters
    ----------
    rnn : OrthogonalRNN or UnitaryRNN
        Of any depth, in one direction, without dropout.
    input : Tensor, shape (T, B, d), (B, T, d) where the layer is ``batch_first``, or (T, d)
        The sequences.
    hx : Tensor, optional
        Initial states, as the layer takes them.
    every : int
        Steps between two states that are kept.

    Returns
    -------
    Tensor
        The last states, as the layer's second result.

    Raises
    ------
    ValueError
        ``every`` is less than 1, or the layer is bidirectional or drops units out.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> rnn = ht.OrthogonalRNN(1, 16, num_reflections=4)
    >>> x = torch.randn(1000, 2, 1)
    >>> h = ht.last_state(rnn, x, every=32)
    >>> torch.testing.assert_close(h, rnn(x)[1])
    """
    if every < 1:
        raise ValueError(f"every is {every}, expected at least 1")
    if rnn.bidirectional or (rnn.dropout and rnn.training):
        raise ValueError("last_state runs forward only and without dropout")

    dim = 1 if rnn.batch_first and input.dim() == 3 else 0
    parameters = [p for p in rnn.parameters() if p.requires_grad]
    last: Tensor = _LastState.apply(rnn, every, dim, input, hx, *parameters)
    return last


class _LastState(Function):
    """The layer over one part of the sequence after the other; only the states between parts are kept."""

    @staticmethod
    def forward(
        ctx: Any, rnn: RecurrentLayer, every: int, dim: int, sequence: Tensor, hx: Tensor | None, *parameters: Tensor
    ) -> Tensor:
        ctx.rnn, ctx.every, ctx.dim, ctx.starts_at_zero = rnn, every, dim, hx is None
        states = [] if hx is None else [hx]
        for part in torch.split(sequence, every, dim):
            states.append(rnn(part, states[-1] if states else None)[1])
        last = states.pop()
        ctx.save_for_backward(sequence, *parameters, *states)
        ctx.count = len(parameters)
        return last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        sequence, *others = ctx.saved_tensors
        parameters, states = others[: ctx.count], others[ctx.count :]
        parts = torch.split(sequence, ctx.every, ctx.dim)
        if ctx.starts_at_zero:
            states = [None, *states]
        sums: list[Tensor | None] = [None] * len(parameters)
        grad_parts: list[Any] = []
        for part, state in zip(reversed(parts), reversed(states), strict=True):
            with torch.enable_grad():
                part = part.detach().requires_grad_(ctx.needs_input_grad[3])
                state = None if state is None else state.detach().requires_grad_()
                last = ctx.rnn(part, state)[1]
            wanted = [t for t in (part, state, *parameters) if t is not None and t.requires_grad]
            found = dict(zip(map(id, wanted), torch.autograd.grad(last, wanted, grad, allow_unused=True), strict=True))
            grad_parts.append(found.get(id(part)))
            grad = found.get(id(state))
            for i, parameter in enumerate(parameters):
                more = found[id(parameter)]
                sums[i] = more if sums[i] is None or more is None else sums[i] + more  # type: ignore[operator]
        grad_sequence = torch.cat(grad_parts[::-1], ctx.dim) if ctx.needs_input_grad[3] else None
        return None, None, None, grad_sequence, grad, *sums
