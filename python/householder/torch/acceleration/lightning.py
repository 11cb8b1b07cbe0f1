r"""Lightning attention of MiniMax as ``transformers`` has it, computed by our linear attention.

Each head has one constant decay, :math:`S_t = e^{-s} S_{t-1} + k_t v_t^T` and :math:`o_t = S_t^T q_t`, where the buffer
``slope_rate`` holds s. Caches hold :math:`S` in the dtype of the values.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from householder.torch._base.dtypes import compute_type, fitting
from householder.torch.acceleration import devices
from householder.torch.acceleration.subclasses import Accelerated
from householder.torch.functions.linear_attention import linear_attention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from householder._base.types import Argument


class LightningAttention(Accelerated):
    """A layer of lightning attention that computes its recurrence by ``linear_attention``."""

    layer_idx: int
    num_attention_heads: int
    head_dim: int
    slope_rate: Tensor
    act_fn: nn.Module
    qkv_proj: nn.Module
    norm: nn.Module
    output_gate: nn.Module
    out_proj: nn.Module

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Argument,
        attention_mask: Tensor | None,
        cache: Argument = None,
        **options: Argument,
    ) -> tuple[Tensor, Tensor]:
        """Compute what ``MiniMaxLightningAttention`` computes: outputs, and the state after the last token."""
        cache = options.get("past_key_values", cache)  # the name in older versions of transformers
        state = None if cache is None else cache.get_linear_cache(self.layer_idx)
        if not _is_served(self, hidden_states, state):
            results: tuple[Tensor, Tensor] = super().forward(
                hidden_states, position_embeddings, attention_mask, cache, **options
            )
            return results
        o, last = _recurrence(self, _projections(self, hidden_states, attention_mask), state)
        if cache is not None:
            cache.set_linear_cache(self.layer_idx, last)
        return _output(self, hidden_states, o), last


def base_for(layer: nn.Module) -> type[Accelerated] | None:
    """Return the class that computes what this layer does, or None if it is no lightning attention."""
    module = sys.modules.get("transformers.models.minimax.modeling_minimax")
    return LightningAttention if type(layer) is getattr(module, "MiniMaxLightningAttention", None) else None


def _is_served(layer: LightningAttention, hidden_states: Tensor, state: object) -> bool:
    """Return whether the call is on the CPU, and its state is one for its sequences."""
    shape = (hidden_states.shape[0], layer.num_attention_heads, layer.head_dim, layer.head_dim)
    fits = state is None or (isinstance(state, Tensor) and state.shape == shape)
    return fits and devices.is_ours(hidden_states) and hidden_states.shape[1] > 0


def _projections(layer: LightningAttention, hidden_states: Tensor, attention_mask: Tensor | None) -> Sequence[Tensor]:
    """Return queries, keys and values of shape ``(B, T, H, D)``, zero for tokens that pad."""
    qkv: Tensor = layer.act_fn(layer.qkv_proj(hidden_states))
    if attention_mask is not None:
        qkv = (qkv * attention_mask[:, :, None]).to(qkv.dtype)
    return torch.split(qkv.reshape(*qkv.shape[:2], layer.num_attention_heads, -1), layer.head_dim, -1)


def _recurrence(layer: LightningAttention, qkv: Sequence[Tensor], state: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return outputs in the dtype of the queries, and the last state in the dtype of a cache."""
    (q, k, v), rates = qkv, layer.slope_rate
    exact = rates.flatten().double()
    g = -exact if q.dtype is torch.float64 else _alternating(exact, q.shape[1])
    g = g.to(compute_type(q.dtype)).expand(q.shape[:3])
    initial = None if state is None else fitting(state, q.dtype)
    o, last = linear_attention(q, k, v, g=g, scale=1.0, initial_state=initial, output_final_state=True)
    assert last is not None
    return o, last.to(torch.promote_types(v.dtype, rates.dtype))


def _alternating(rates: Tensor, tokens: int) -> Tensor:
    """Return gates ``(T, H)`` whose decays alternate between two neighbours in float32.

    The rounding of one constant decay would add up over all tokens. That of their products does not.
    """
    exact = rates.neg().exp()
    nearest = exact.float()
    below = torch.where(nearest <= exact, nearest, nearest.nextafter(nearest.new_zeros(())))
    above = below.nextafter(below.new_full((), torch.inf))
    low, high = below.double().log(), above.double().log()
    part = (-rates - low) / (high - low)
    counts = (torch.arange(tokens + 1, device=rates.device)[:, None] * part + 0.5).floor()
    return torch.where(counts.diff(dim=0) > 0, high, low)


def _output(layer: LightningAttention, hidden_states: Tensor, o: Tensor) -> Tensor:
    gate = layer.output_gate(hidden_states).sigmoid()
    y: Tensor = layer.out_proj(gate * layer.norm(o.flatten(2)))
    return y
