"""The delta rule in ordinary torch operations, chunk by chunk: every derivative exists, on every device."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from householder.torch import _autocast

if TYPE_CHECKING:
    from collections.abc import Callable


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
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    beta = beta.transpose(1, 2)
    gates = torch.zeros_like(q[..., :1]) if g is None else g.transpose(1, 2)
    gates = gates if gates.dim() == 4 else gates.unsqueeze(-1)
    if reflections > 1:  # a gate at the first step of a token, none at the others
        others = gates.new_zeros(*gates.shape[:3], reflections - 1, gates.shape[3])
        gates = torch.cat([gates.unsqueeze(3), others], 3).flatten(2, 3)
    if state is None:
        state = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1])
    tokens = max(1, (64 if gates.shape[-1] == 1 else 16) // reflections)
    outputs = [v[:, :, :0]]
    for begin in range(0, q.shape[2], tokens):
        rows = slice(begin * reflections, (begin + tokens) * reflections)
        queries = q[:, :, begin : begin + tokens]
        steps = (k[:, :, rows], v[:, :, rows], beta[:, :, rows], gates[:, :, rows])
        o, state = _chunk(queries, *steps, state, reflections, solve)
        outputs.append(o)
    return torch.cat(outputs, 2).transpose(1, 2), state


def _chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    state: Tensor,
    reflections: int,
    solve: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    size, ends = g.shape[-2], slice(reflections - 1, None, reflections)
    pairs = torch.ones(size, size, dtype=torch.bool, device=q.device)
    # Sums of the gates from after step j to step i. Differences of sums would lose accuracy to large gates elsewhere.
    between = (
        g.unsqueeze(-2).expand(*g.shape[:-1], size, g.shape[-1]).masked_fill(pairs.triu().unsqueeze(-1), 0.0).cumsum(-3)
    )
    decay = between.masked_fill(pairs.triu(1).unsqueeze(-1), -torch.inf).exp()
    from_start, to_end = g.cumsum(-2).exp(), decay[..., -1, :, :]
    if decay.shape[-1] == 1:
        of_keys, of_queries = k @ k.mT * decay[..., 0], q @ k.mT * decay[..., ends, :, 0]
    else:
        of_keys = torch.einsum("...ix,...jx,...ijx->...ij", k, k, decay)
        of_queries = torch.einsum("...ix,...jx,...ijx->...ij", q, k, decay[..., ends, :, :])
    by = beta.unsqueeze(-1)
    system = torch.eye(size, dtype=q.dtype, device=q.device) + by * of_keys.tril(-1)
    right = by * (v - (k * from_start) @ state)
    d = solve(system, right)
    o = (q * from_start[..., ends, :]) @ state + of_queries @ d
    return o, from_start[..., -1:, :].mT * state + (k * to_end).mT @ d
