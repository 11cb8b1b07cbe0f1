"""The kernels of flash-linear-attention, for tensors on CUDA."""

from __future__ import annotations

import importlib
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from householder.torch._base.dtypes import HALF_TYPES
from householder.torch._ops.route import RECORDED, Route, route

_WIDEST = 256
"""The largest key width that the kernels accept."""


@cache
def _installed() -> bool:
    return find_spec("fla") is not None


def takes(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None) -> bool:
    """Return whether the kernels compute a call: half types on CUDA, once differentiable, in sizes that they have."""
    if q.device.type != "cuda" or q.dtype not in HALF_TYPES or not _installed():
        return False
    if route() in (*RECORDED, Route.EXPRESSION) or not (q.numel() and v.numel()):
        return False
    several = k.shape[1] > q.shape[1]
    grouped, by_channel = v.shape[2] > q.shape[2], g is not None and g.dim() == 4
    return q.shape[3] <= _WIDEST and not (several and (grouped or by_channel))


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
) -> tuple[Tensor, Tensor]:
    """Compute a call that :func:`takes` has accepted."""
    options = {
        "scale": scale,
        "initial_state": None if initial_state is None else initial_state.float(),
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": normalize,
        "cu_seqlens": cu_seqlens,
    }
    name, module = "chunk_gated_delta_rule", "gated_delta_rule"
    if reflections > 1:
        name, module = "chunk_gated_delta_product", "gated_delta_product"
        options["num_householder"] = reflections
    elif g is None:
        g = beta.new_zeros(beta.shape, dtype=torch.float32)
    elif g.dim() == 4:
        name, module = "chunk_kda", "kda"
    function = getattr(importlib.import_module(f"fla.ops.{module}"), name)
    gates = None if g is None else g.float()
    results: tuple[Tensor, Tensor] = function(q, k.to(q.dtype), v.to(q.dtype), gates, beta.float(), **options)
    return results
