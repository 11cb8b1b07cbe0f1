"""Layers of ``transformers`` with random sizes after ``ht.accelerate``."""

import oracle
import torch
from source import HALF, REAL

import householder.torch as ht
from kinds.layers import fill, problem


def mlstm(source):
    """The mLSTM of xLSTM: chunks, their ends and single tokens, with and without a state before them."""
    from transformers import xLSTMConfig
    from transformers.models.xlstm.modeling_xlstm import xLSTMBackend

    dtype = source.choose((*REAL, source.choose(HALF)))
    batch, heads, keys, values = source.among(1, 3), source.among(1, 3), source.among(1, 9), source.among(1, 9)
    tokens = source.near((16, 32, 64)) if source.one_in(3) else source.among(1, 6)
    module = xLSTMBackend(xLSTMConfig(chunk_size=source.choose((8, 64)), eps=source.choose((1e-6, 1e-2))))
    ht.accelerate(module)
    lead = batch, heads
    inputs = {
        "query": source.numbers((*lead, tokens, keys), dtype),
        "key": source.numbers((*lead, tokens, keys), dtype),
        "value": source.numbers((*lead, tokens, values), dtype),
        "igate": _gates(source, (*lead, tokens), dtype, source.choose((1, 4))),
        "fgate": _gates(source, (*lead, tokens), dtype, source.choose((1, 4))),
    }
    if source.flag():
        inputs["c_initial"] = source.numbers((*lead, keys, values), dtype)
        inputs["n_initial"] = source.numbers((*lead, keys), dtype)
        inputs["m_initial"] = _gates(source, (*lead, 1), dtype, 1)
    returns_state = dtype is torch.float32 and source.flag()  # others are rounded to the dtype of a cache

    def ours(call, t):
        h, state = call(**{name: t[name] for name in inputs})
        return (h, *state) if returns_state else h

    def theirs(t):
        h, state = oracle.mlstm(*(t[name] for name in inputs), epsilon=module.config.eps)
        return (h, *state) if returns_state else h

    return problem("mLSTM", module, inputs, ours, theirs, (keys + 16) * (tokens + 1), transforms=False, whole=False)


def lightning(source):
    """MiniMax's attention at once or in two calls with a cache. Its norm is in float32 for every dtype."""
    from transformers import MiniMaxConfig
    from transformers.models.minimax.modeling_minimax import MiniMaxCache, MiniMaxLightningAttention

    heads, width = source.among(1, 3), 2 * source.among(1, 6)  # rotations of full attention need even widths
    config = MiniMaxConfig(
        hidden_size=heads * width, num_attention_heads=heads, head_dim=width, num_hidden_layers=2, block_size=8
    )
    dtype = torch.float32 if source.flag() else source.choose(HALF)
    module = MiniMaxLightningAttention(config, layer_idx=source.among(0, 1)).to(dtype)
    fill(source, module)
    ht.accelerate(module)
    batch, tokens = source.among(1, 3), source.near((8, 32, 40)) if source.one_in(3) else source.among(1, 6)
    mask = torch.ones(batch, tokens, dtype=torch.long) if source.flag() else None
    if mask is not None:
        mask[0, : source.among(0, tokens)] = 0
    cut = source.among(1, tokens)

    def ours(call, t):
        if mask is not None or cut == tokens:
            return call(t["x"], None, mask)[0]
        cache, first, second = MiniMaxCache(), t["x"][:, :cut], t["x"][:, cut:]
        return torch.cat([call(x, None, None, cache)[0] for x in (first, second)], 1)

    def theirs(t):
        return oracle.lightning_attention(t, module.slope_rate.double().flatten(), t["x"], mask, epsilon=1e-6)

    x = source.numbers((batch, tokens, heads * width), dtype)
    inputs = {"x": x / max(1, float(x.abs().max()) / 8)}  # the norm squares products of three in float32
    return problem(
        "lightning attention", module, inputs, ours, theirs, (heads * width + 8) * (tokens + 1),
        transforms=False, whole=False, options={"cut": cut, "is_masked": mask is not None},
    )  # fmt: skip


def convolution(source):
    """The short convolution of LFM2 with the projections and gates around it, or Inkling's with what it is added to."""
    width, taps, is_inkling = source.among(1, 20), source.among(1, 5), source.flag()
    make, oracle_of, mask_name = _INKLING if is_inkling else _LFM2
    dtype = source.choose((torch.float32, source.choose(HALF)) if is_inkling else (*REAL, source.choose(HALF)))
    module = make(source, width, taps).to(dtype)
    fill(source, module)
    ht.accelerate(module)
    batch, tokens = source.among(1, 3), source.near((8, 64)) if source.one_in(3) else source.among(1, 6)
    mask = torch.ones(batch, tokens, dtype=torch.long) if source.flag() else None
    if mask is not None:
        mask[0, : source.among(0, tokens)] = 0
    return problem(
        f"short convolution, {type(module).__name__}", module, {"x": source.numbers((batch, tokens, width), dtype)},
        lambda call, t: call(t["x"], **{mask_name: mask}), lambda t: oracle_of(t, t["x"], mask),
        width + taps + 8, transforms=False, whole=False, options={"taps": taps, "is_masked": mask is not None},
    )  # fmt: skip


def _lfm2(source, width, taps):
    from transformers import Lfm2Config
    from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

    config = Lfm2Config(
        hidden_size=width, num_hidden_layers=1, layer_types=["conv"], conv_L_cache=taps, conv_bias=source.flag()
    )
    return Lfm2ShortConv(config, layer_idx=0)


def _inkling(_, width, taps):
    """A layer that computes in float32 whatever its dtype."""
    from transformers.models.inkling.modeling_inkling import InklingShortConvolution

    return InklingShortConvolution(width, taps, layer_idx=0, conv_idx=0)


_LFM2 = _lfm2, oracle.gated_convolution, "attention_mask"
_INKLING = _inkling, oracle.residual_convolution, "conv_mask"


def _gates(source, shape, dtype, spread):
    """Arguments of gates, some of which are open or closed, but not all."""
    return torch.from_numpy(spread * source.rng.standard_normal(shape)).to(dtype)
