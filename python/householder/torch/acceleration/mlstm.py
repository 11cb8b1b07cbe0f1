r"""The mLSTM of xLSTM as ``transformers`` has it, computed by our linear attention.

With the logarithms of the gates, i of the input and f of the forget gate (``logsigmoid``), each token computes

.. math::
    m_t &= \max(f_t + m_{t-1}, i_t), \\
    C_t &= e^{f_t + m_{t-1} - m_t} C_{t-1} + e^{i_t - m_t} k_t v_t^T, \\
    n_t &= e^{f_t + m_{t-1} - m_t} n_{t-1} + e^{i_t - m_t} k_t, \\
    h_t &= C_t^T q_t / (\max(|n_t^T q_t|, e^{-m_t}) + \epsilon),

with queries divided by the root of their width. The normaliser n is one more column of C, for values of one.
"""

from __future__ import annotations

import math
import sys
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from householder.torch._base import precision
from householder.torch._base.dtypes import compute_type, fitting
from householder.torch.acceleration import devices
from householder.torch.acceleration.subclasses import Accelerated
from householder.torch.functions.linear_attention import linear_attention

MLSTMState = tuple[Tensor, ...]
"""C of shape ``(B, H, K, V)``, n of shape ``(B, H, K)`` and m of shape ``(B, H, 1)``."""


class MLSTMSettings(Protocol):
    """What decides how an mLSTM computes, from an ``xLSTMConfig``."""

    mode: str
    chunk_size: int
    eps: float
    return_last_states: bool
    inference_state_dtype: str


class MLSTM(Accelerated):
    """The part of a layer of xLSTM that computes the mLSTM of queries, keys, values and gates."""

    config: MLSTMSettings

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        igate: Tensor,
        fgate: Tensor,
        c_initial: Tensor | None = None,
        n_initial: Tensor | None = None,
        m_initial: Tensor | None = None,
        return_last_states: bool | None = None,
        mode: str | None = None,
    ) -> Tensor | tuple[Tensor, MLSTMState]:
        """Compute what ``xLSTMBackend`` computes: outputs ``(B, H, T, V)`` and, if asked for, the last state."""
        initial, config = (c_initial, n_initial, m_initial), self.config
        kind = config.mode if mode is None else mode
        if not (_is_ours(config, query, kind) and _fits(query, value, initial)):
            results: Tensor | tuple[Tensor, MLSTMState] = super().forward(
                query, key, value, igate, fgate, *initial, return_last_states, mode
            )
            return results
        h, last = _sequence(query, key, value, igate, fgate, initial, config.eps)
        is_wanted = config.return_last_states if return_last_states is None else return_last_states
        if kind == "train" and not is_wanted:
            return h
        dtype = _state_type(config, query, kind)
        return h, tuple(t.to(dtype) for t in last)


def base_for(layer: nn.Module) -> type[Accelerated] | None:
    """Return the class that computes what this layer does, or None if it is no mLSTM of ``transformers``."""
    module = sys.modules.get("transformers.models.xlstm.modeling_xlstm")
    return MLSTM if type(layer) is getattr(module, "xLSTMBackend", None) else None  # the package xlstm has its own


def _is_ours(config: MLSTMSettings, query: Tensor, mode: str) -> bool:
    """Return whether the original computes sequences of this length in this mode without padding, and ours serves."""
    tokens = query.shape[2]
    chunks, rest = divmod(tokens, config.chunk_size)
    is_computed = tokens > 0 and (mode == "inference" or (mode == "train" and not rest))
    gains = chunks + rest >= _LEAST_CALLS and config.chunk_size <= _LARGEST_CHUNK
    return is_computed and devices.is_ours(query, 1 if gains else devices.NEVER, axis=2)


_LEAST_CALLS, _LARGEST_CHUNK = 5, 64
"""Where ours takes fewer operations, with and without gradients: so many chunks and single tokens after them.

Each of these takes the original 17 operations or more, where ours takes two for 64 tokens.
"""


def _fits(query: Tensor, value: Tensor, initial: tuple[Tensor | None, ...]) -> bool:
    """Return whether the initial state is one for these sequences."""
    lead, keys, values = query.shape[:2], query.shape[3], value.shape[3]
    shapes = (*lead, keys, values), (*lead, keys), (*lead, 1)
    return all(t is None or t.shape == shape for t, shape in zip(initial, shapes, strict=True))


def _state_type(config: MLSTMSettings, query: Tensor, mode: str) -> torch.dtype:
    """Return the dtype of the last state: chunks have that of keys, and tokens after them one of the settings."""
    tokens = query.shape[2]
    is_of_chunks = mode == "train" or (tokens > 1 and tokens % config.chunk_size == 0)
    dtype: torch.dtype = query.dtype if is_of_chunks else getattr(torch, config.inference_state_dtype)
    return dtype


def _sequence(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    igate: Tensor,
    fgate: Tensor,
    initial: tuple[Tensor | None, ...],
    epsilon: float,
) -> tuple[Tensor, MLSTMState]:
    """Return outputs of shape ``(B, H, T, V)`` and the state after the last token, in the type of the computation."""
    compute = compute_type(query.dtype)
    c, n, before = initial
    g, written, m = _gates(igate.to(compute), fgate.to(compute), before)
    q, k, v = query.to(compute), key * written[..., None], fitting(value, compute)
    c = q.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]) if c is None else fitting(c, compute)
    n = q.new_zeros(*k.shape[:2], k.shape[3]) if n is None else fitting(n, compute)
    recurrence = _recurrence_of_one if query.shape[2] == 1 else _recurrence
    numerators, normalisers, c, n = recurrence(q, k, v, g, c, n)
    h = numerators / (torch.maximum(normalisers.abs(), _least_normalisers(m)[..., None]) + epsilon)
    return h.to(query.dtype), (c, n, m[..., -1:])


def _least_normalisers(m: Tensor) -> Tensor:
    """Return the exponentials of -m, below infinity, so that their gradients, times a quotient of zero, are not NaN."""
    return m.neg().clamp(max=math.floor(math.log(torch.finfo(m.dtype).max))).exp()


def _recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, c: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    """Return numerators, normalisers, C and n, which is the last column of one state."""
    v, state = torch.cat([v, v.new_ones(*v.shape[:3], 1)], -1), torch.cat([c, n[..., None]], -1)
    o, last = _linear_attention(q, k, v, g, state)
    return o[..., :-1], o[..., -1:], last[..., :-1], last[..., -1]


def _recurrence_of_one(q: Tensor, k: Tensor, v: Tensor, g: Tensor, c: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    """Return the same for one token, and copy no state to append a column to it."""
    o, c = _linear_attention(q, k, v, g, c)
    n = g.exp() * n + k[:, :, 0]
    normalisers = (q * n[:, :, None]).sum(-1, keepdim=True)  # a product of matrices would be cast under autocast
    return o, normalisers * q.shape[3] ** -0.5, c, n


def _linear_attention(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v, g = (t.transpose(1, 2) for t in (q, k, v, g))
    o, last = linear_attention(q, k, v, g=g, initial_state=state, output_final_state=True)
    assert last is not None
    return o.transpose(1, 2), last


def _gates(igate: Tensor, fgate: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logarithms of decays, what multiplies the keys, and m for each token, of shape ``(B, H, T)``.

    The sums of gates are in float64, because weights are exponentials of their differences. On devices without it, m
    has the rounding of long sums; weights are those of the rounded m, which scales states and outputs alike.
    """
    decays = logsigmoid(fgate)
    wide = precision.wide_of(decays)
    sums = decays.to(wide).cumsum(-1)
    inputs = igate - sums
    before = sums.new_zeros(*sums.shape[:2], 1) if before is None else before.to(wide)
    largest = torch.cat([before, inputs], -1).cummax(-1).values
    earlier, largest = largest[..., :-1], largest[..., 1:]
    m = sums + largest
    if wide is torch.float64:
        g, written = earlier - largest, inputs - largest
    else:
        g, written = decays + (torch.cat([before, m[..., :-1]], -1) - m), igate - m
    return g.to(igate.dtype), written.exp().to(igate.dtype), m.to(igate.dtype)
