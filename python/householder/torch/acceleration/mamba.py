"""The recurrence of Mamba-2 as layers of ``transformers`` call it, computed by our linear attention.

With queries C, keys B, values x and time steps dt as betas, it is ``S_t = exp(dt_t A) S_{t-1} + dt_t B_t x_t'``
and ``y_t = S_t' C_t + D x_t``. Caches hold the transpose of ``S``, and time steps come before their softplus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.functional import silu, softplus

from householder.torch._base.dtypes import compute_type, fitting
from householder.torch._ops.delta import DeltaRuleInputs
from householder.torch.functions import delta

if TYPE_CHECKING:
    from torch import Tensor

    from householder._base.types import Argument


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
    **_: Argument,
) -> Any:
    """Return outputs of ``x (B, T, H, P)`` and, if asked for, final states ``(B, H, P, N)`` in float32.

    ``B`` and ``C`` are ``(B, T, groups, N)``, ``dt`` is ``(B, T, H)``, and ``A``, ``D`` and ``dt_bias`` are ``(H,)``.
    Options without effect on the results are ignored.
    """
    compute = compute_type(x.dtype)
    dt = _time_steps(dt, dt_bias, dt_softplus).clamp(*dt_limit).to(compute)
    state = None if initial_states is None else initial_states.to(compute).mT
    y, last = _run(C, B, x, dt, A.to(compute), D, state, returns_last=return_final_states)
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
    **_: Argument,
) -> Tensor:
    """Return the output of one token ``x (B, H, P)``, and update ``state (B, H, P, N)``.

    ``B`` and ``C`` are ``(B, groups, N)``. Layers repeat the time step of a head, its bias and ``D`` for each of its
    numbers, and ``A`` for each of its state's. Time steps have no limits here.
    """
    compute = compute_type(x.dtype)
    dt = _time_steps(dt[..., 0], None if dt_bias is None else dt_bias[..., 0], dt_softplus).to(compute)
    C, B, token, dt = (t.unsqueeze(1) for t in (C, B, x, dt))
    rates, skip, initial = A[:, 0, 0].to(compute), None if D is None else D[:, 0], state.to(compute).mT
    o, last = _run(C, B, token, dt, rates, skip, initial, returns_last=True, in_place=True)
    assert last is not None
    if last is not initial or state.dtype is not compute:
        state.copy_(last.mT)
    y = o.squeeze(1)
    return (y if z is None else y * silu(z)).to(x.dtype)


def _run(
    C: Tensor,
    B: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    D: Tensor | None,
    state: Tensor | None,
    *,
    returns_last: bool,
    in_place: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return outputs in the type of the computation, which is that of ``dt``, and the final states."""
    skip = dt.new_zeros(x.shape[2]) if D is None else D.to(dt.dtype)
    q, k, v = C.to(dt.dtype), fitting(B, dt.dtype), fitting(x, dt.dtype)
    return delta.run(
        DeltaRuleInputs(q, k, v, dt, dt * A, state, skip, None),
        scale=1.0,
        num_householder=1,
        normalize=False,
        output_final_state=returns_last,
        erases=False,
        in_place=in_place,
    )


def _time_steps(dt: Tensor, bias: Tensor | None, is_raw: bool) -> Tensor:
    dt = dt if bias is None else dt + bias.to(dt.dtype)
    return softplus(dt) if is_raw else dt
