"""The delta rule in ordinary torch operations, chunk by chunk: every derivative exists, on every device."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from householder.torch import _autocast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_CHUNK = 64
"""Most steps that are taken together."""


def substitute(system: Tensor, right: Tensor) -> Tensor:
    """Solve a lower triangular system whose diagonal is one."""
    solution: Tensor = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    return solution


def delta_rule(
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
    *,
    solve: Callable[[Tensor, Tensor], Tensor] = substitute,
) -> tuple[Tensor, Tensor]:
    """Give outputs and final states, of shapes as for the operator; ``solve`` does what :func:`substitute` does."""
    with _autocast.off(q.device):
        if normalize:
            q, k = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
        group = v.shape[2] // q.shape[2]
        q, k = ((scale * q).repeat_interleave(group, 2), k.repeat_interleave(group, 2))
        if cu_seqlens is None:
            return _rows(q, k, v, beta, g, initial_state, reflections, solve)
        ends, found = cu_seqlens.tolist(), []
        for i, (begin, end) in enumerate(pairwise(ends)):
            steps = slice(begin * reflections, end * reflections)
            state = None if initial_state is None else initial_state[i : i + 1]
            gates = None if g is None else g[:, begin:end]
            rows = (q[:, begin:end], k[:, steps], v[:, steps], beta[:, steps])
            found.append(_rows(*rows, gates, state, reflections, solve))
        outputs, states = zip(*found, strict=True)
        return torch.cat(outputs, 1), torch.cat(states)


def _rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None,
    state: Tensor | None,
    reflections: int,
    solve: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Run sequences of one length, with equal numbers of key heads and value heads."""
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    beta = beta.transpose(1, 2).unsqueeze(-1)
    gates = torch.zeros_like(q[..., :1]) if g is None else g.transpose(1, 2)
    gates = gates if gates.dim() == 4 else gates.unsqueeze(-1)
    if reflections > 1:  # a gate at the first step of a token, a query at the last
        gates = pad(gates.unsqueeze(3), (0, 0, 0, reflections - 1)).flatten(2, 3)
        q = pad(q.unsqueeze(3), (0, 0, reflections - 1, 0)).flatten(2, 3)
    if state is None:
        state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])
    begin, steps, outputs = 0, k.shape[2], [v[:, :, :0]]
    while begin < steps:
        count, size = min(_CHUNK, steps - begin), 1
        while size < count:
            size *= 2
        # Steps beyond the end have zero keys and no gate: they change nothing.
        parts = [pad(x[:, :, begin : begin + count], (0, 0, 0, size - count)) for x in (q, k, v, beta, gates)]
        o, state = _chunk(parts, state, solve)
        outputs.append(o[:, :, :count])
        begin += count
    return torch.cat(outputs, 2)[:, :, reflections - 1 :: reflections].transpose(1, 2), state


def _chunk(
    operands: Sequence[Tensor], state: Tensor, solve: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Run ``2^i`` steps of q, k, v, beta and g, pairing the halves of blocks of 2, 4, .. steps.

    Decays from one half to the other are sums of gates, never differences. No product has terms of later steps, which
    a zero would not remove if they were infinity or NaN; neither have derivatives of any order.
    """
    q, k, v, beta, g = operands
    size = 1
    system = q.new_ones(*q.shape[:-1], 1, 1)  # a block of one number for each step
    pairs = []
    while size < q.shape[-2]:
        (k1, k2), (g1, g2) = _halves(k, size), _halves(g, size)
        earlier, decay = (k1 * _later_sums(g1).exp()).mT, g2.cumsum(-2).exp()
        pairs.append((_halves(q, size)[1] * decay) @ earlier)
        of_keys = (_halves(beta, size)[1] * decay * k2) @ earlier
        first, second = torch.unflatten(system, -3, (system.shape[-3] // 2, 2)).unbind(-3)
        system = torch.cat([pad(first, (0, size)), torch.cat([of_keys, second], -1)], -2)
        size *= 2
    from_start = g.cumsum(-2).exp()
    d = solve(system.squeeze(-3), beta * (v - (k * from_start) @ state))
    o = (q * from_start) @ state + (q * k).sum(-1, keepdim=True) * d
    for i, of_queries in enumerate(pairs):
        o = o + pad(of_queries @ _halves(d, 2**i)[0], (0, 0, 2**i, 0)).flatten(-3, -2)
    return o, from_start[..., -1:, :].mT * state + (k * _later_sums(g).exp()).mT @ d


def _halves(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Cut rows into blocks of ``2 size``; give the first and the second halves of all blocks."""
    first, second = torch.unflatten(x, -2, (x.shape[-2] // (2 * size), 2, size)).unbind(-3)
    return first, second


def _later_sums(g: Tensor) -> Tensor:
    """Sum the gates of all steps after each one."""
    return pad(g[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2)
