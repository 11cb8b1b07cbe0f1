"""The recurrence of Mamba-2 as layers of ``transformers`` call it, computed by our linear attention.

With queries C, keys B and values x times their time steps, it is ``S_t = exp(dt_t A) S_{t-1} + B_t (dt_t x_t)'`` and
``y_t = S_t' C_t + D x_t``. Caches hold the transpose of ``S``, and time steps come before their softplus.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from householder.torch._linear_attention import linear_attention


def chunk_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **_: Any,
) -> Any:
    """Return outputs of ``x (B, T, H, P)`` and, if asked for, final states ``(B, H, P, N)`` in float32.

    ``B`` and ``C`` are ``(B, T, groups, N)``, ``dt`` is ``(B, T, H)``, and ``A``, ``D`` and ``dt_bias`` are ``(H,)``.
    Options without effect on the results are ignored.
    """
    compute = _compute_type(x)
    dt = _time_steps(dt, dt_bias, dt_softplus).clamp(*dt_limit).to(compute)
    y, last = linear_attention(
        C.to(compute),
        B.to(compute),
        x * dt[..., None],  # of the wider type
        g=dt * A.to(compute),
        scale=1.0,
        initial_state=None if initial_states is None else initial_states.to(compute).mT,
        output_final_state=return_final_states,
    )
    if D is not None:
        y = torch.addcmul(y, D[..., None], x)
    return y if last is None else (y, last.float().mT)


def state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    **_: Any,
) -> Tensor:
    """Return the output of one token ``x (B, H, P)``, and update ``state (B, H, P, N)``.

    ``B`` and ``C`` are ``(B, groups, N)``. Layers repeat the time step of a head and its bias for each of its numbers,
    and ``A`` for each of its state's. Time steps have no limits here.
    """
    compute = _compute_type(x)
    dt = _time_steps(dt[..., 0], None if dt_bias is None else dt_bias[..., 0], dt_softplus).to(compute)
    wide = x.to(compute)
    token = C.to(compute), B.to(compute), wide * dt[..., None]
    o, last = linear_attention(
        *(t.unsqueeze(1) for t in token),
        g=(dt * A[:, 0, 0].to(compute)).unsqueeze(1),
        scale=1.0,
        initial_state=state.to(compute).mT,
        output_final_state=True,
    )
    assert last is not None
    state.copy_(last.mT)
    y = o.squeeze(1) if D is None else o.squeeze(1) + D * wide
    return (y if z is None else y * silu(z)).to(x.dtype)


def _compute_type(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _time_steps(dt: Tensor, bias: Tensor | None, is_raw: bool) -> Tensor:
    dt = dt if bias is None else dt + bias.to(dt.dtype)
    return softplus(dt) if is_raw else dt
