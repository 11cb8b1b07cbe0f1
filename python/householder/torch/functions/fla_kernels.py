"""The kernels of flash-linear-attention, for tensors on CUDA."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from householder.torch._base.dtypes import HALF_TYPES
from householder.torch._ops.route import EXPRESSION, RECORDED, route

if TYPE_CHECKING:
    from torch import Tensor

    from householder._base.types import Keywords
    from householder.torch._ops.delta import DeltaRuleInputs, DeltaRuleOptions

_WIDEST = 256
"""The largest key width that the kernels accept."""


@cache
def _installed() -> bool:
    return find_spec("fla") is not None


def takes(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None) -> bool:
    """Return whether the kernels compute a call: half types on CUDA, once differentiable, in sizes that they have."""
    if q.device.type != "cuda" or q.dtype not in HALF_TYPES or not _installed():
        return False
    if route() in (*RECORDED, EXPRESSION) or not (q.numel() and v.numel()):
        return False
    several = k.shape[1] > q.shape[1]
    grouped, by_channel = v.shape[2] > q.shape[2], g is not None and g.dim() == 4
    return q.shape[3] <= _WIDEST and not (several and (grouped or by_channel))


def delta_rule(inputs: DeltaRuleInputs[Tensor], options: DeltaRuleOptions) -> tuple[Tensor, Tensor]:
    """Compute a call that :func:`takes` has accepted."""
    q, beta, g, initial_state = inputs.q, inputs.beta, inputs.g, inputs.initial_state
    assert beta is not None
    k, v, beta = inputs.k.to(q.dtype), inputs.v.to(q.dtype), beta.float()
    gates = None if g is None else g.float()
    others: Keywords = {
        "scale": options.scale,
        "initial_state": None if initial_state is None else initial_state.float(),
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": options.normalize,
        "cu_seqlens": inputs.cu_seqlens,
    }
    results: tuple[Tensor, Tensor]
    if options.reflections > 1:
        from fla.ops.gated_delta_product import chunk_gated_delta_product

        results = chunk_gated_delta_product(q, k, v, gates, beta, num_householder=options.reflections, **others)
    elif gates is not None and gates.dim() == 4:
        from fla.ops.kda import chunk_kda

        results = chunk_kda(q, k, v, gates, beta, **others)
    else:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        results = chunk_gated_delta_rule(q, k, v, torch.zeros_like(beta) if gates is None else gates, beta, **others)
    return results
