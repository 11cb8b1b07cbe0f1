"""Every recurrence that ``ht.accelerate`` replaces, compared with the fallback of transformers.

    python -m benches.pages.versus_fallbacks --threads 1 --tokens 512

Shapes are those of a layer of a published model. Where transformers has a function, that is called; else the layer
without its projections, before and after ``ht.accelerate``. Both are first compared with float64: errors are the
largest of the outputs and of the gradients. Times are medians of interleaved rounds, fallback → ours, and their ratio.
"""

import copy
import importlib
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize

import householder.torch as ht
from benches.measure import clock, heading, interleaved, options, row
from benches.pages import versus_mamba
from householder.torch._base import expressions
from householder.torch.acceleration import mamba, pretrained

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Work(NamedTuple):
    """Operands in float32, what takes them in any dtype, and layers that must have the same."""

    operands: list[Tensor]
    fallback: Callable
    ours: Callable
    exact: Callable
    """Takes the operands in float64."""
    layers: tuple[nn.Module, ...] = ()


def module_of(name: str):
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def delta_rule(tokens: int, gate: tuple[int, ...], name: str, function: str) -> Work:
    """16 heads of 128 x 128, as in Qwen3.5-0.8B; a gate for each head, or for each channel."""
    shape = 1, tokens, 16, 128
    q, k, v = (normal(*shape, seed=seed) for seed in range(3))
    q, k = normalize(q, dim=-1), normalize(k, dim=-1)
    g, beta = logsigmoid(normal(1, tokens, 16, *gate, seed=3) + 3), normal(1, tokens, 16, seed=4).sigmoid()
    call = getattr(module_of(name), function).__wrapped__

    def exact(q, k, v, g, beta):
        return expressions.delta_rule(q, k, v, beta, g, None, None, 128**-0.5, 1, False)[0]

    return Work(
        [q, k, v, g, beta],
        lambda q, k, v, g, beta: call(q, k, v, g=g, beta=beta)[0],
        lambda q, k, v, g, beta: pretrained._delta_rule(q, k, v, g=g, beta=beta)[0],
        exact,
    )


def mamba2(tokens: int) -> Work:
    """128 heads of 64, one group and a state of 128, as in Granite 4.0 H Small."""
    layer = versus_mamba.WORKS[1]
    fallback = module_of("mamba2").mamba2_chunk_scan.__wrapped__
    functions = [versus_mamba.scan(function, layer) for function in (fallback, mamba.chunk_scan)]
    return Work([t.detach() for t in versus_mamba.operands(layer, tokens)], *functions, versus_mamba.exact)


def mlstm(tokens: int) -> Work:
    """8 heads of 256 x 512, as in xLSTM-7B, after a state of zeros in the dtype of the cache."""
    module = module_of("xlstm")
    before = module.xLSTMBackend(module.xLSTMConfig())
    after = accelerated(before)
    lead = 1, 8, tokens
    operands = [normal(*lead, 256), normal(*lead, 256, seed=1), normal(*lead, 512, seed=2)]
    operands += [normal(*lead, seed=3) - 2, normal(*lead, seed=4) + 4]

    def call(layer, *given):
        states = (given[0].new_zeros(shape) for shape in ((1, 8, 256, 512), (1, 8, 256), (1, 8, 1)))
        return layer(*given, *states)[0]

    return Work(operands, *(partial(call, layer) for layer in (before, after, before)))


class First(nn.Module):
    """The first numbers of each token."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        """Return them."""
        return x[..., : self.count]


def lightning(tokens: int) -> Work:
    """64 heads of 128, as in MiniMax-01."""
    module = module_of("minimax")
    sizes = {"hidden_size": 64, "num_attention_heads": 64, "head_dim": 128}
    before = module.MiniMaxLightningAttention(module.MiniMaxConfig(**sizes), layer_idx=0)
    before.qkv_proj = before.act_fn = before.norm = before.out_proj = nn.Identity()
    before.output_gate = First(64 * 128)
    layers = before, accelerated(before)

    def exact(x):
        q, k, v = x.unflatten(-1, (64, 384)).split(128, -1)
        g = -before.slope_rate.double().flatten().expand(q.shape[:3])
        o, _ = expressions.delta_rule(q, k, v, None, g, None, None, 1.0, 1, False)
        return x[..., : 64 * 128].sigmoid() * o.flatten(2)

    calls = ((lambda x, layer=layer: layer(x, None, None)[0]) for layer in layers)
    return Work([normal(1, tokens, 64 * 384)], *calls, exact, layers)


def convolution(tokens: int) -> Work:
    """2,048 channels and 3 taps, as in LFM2-1.2B."""
    fallback = module_of("lfm2").causal_conv1d_fn.__wrapped__
    x = normal(1, tokens, 2048)
    return Work(
        [x, normal(2048, 3, seed=1)],
        *((lambda x, weight, call=call: call(x.mT, weight).mT) for call in (fallback, pretrained._convolve, fallback)),
    )


WORKS = {
    "gated delta rule": partial(delta_rule, gate=(), name="qwen3_next", function="torch_chunk_gated_delta_rule"),
    "Kimi delta attention": partial(delta_rule, gate=(128,), name="kimi_linear", function="chunk_kimi_delta_attention"),
    "Mamba-2": mamba2,
    "mLSTM": mlstm,
    "lightning attention": lightning,
    "short convolution": convolution,
}


def accelerated(layer: nn.Module) -> nn.Module:
    twin = copy.deepcopy(layer)
    ht.accelerate(twin)
    return twin


def results(function, tensors):
    """Return the outputs and the gradients of the sum of their squares."""
    o = function(*tensors)
    return [o.detach(), *torch.autograd.grad(o.float().square().sum(), tensors)]


def exact_results(work: Work, tensors):
    wide = [t.detach().double().requires_grad_() for t in tensors]
    o = work.exact(*wide)
    return [o.detach(), *torch.autograd.grad(o.square().sum(), wide)]


def measure(name: str, work: Work, dtype: str, rounds: int, threads: int):
    """Print the row of a work in a dtype."""
    tensors = [t.to(DTYPES[dtype]).requires_grad_() for t in work.operands]
    for layer in work.layers:
        layer.to(DTYPES[dtype])
    exact, calls, errors = exact_results(work, tensors), {}, []
    for which, function in (("fallback", work.fallback), ("ours", work.ours)):
        pairs = zip(results(function, tensors), exact, strict=True)
        errors.append(max(float((a - b).norm() / b.norm()) for a, b in pairs))
        calls[which, "forward"] = partial(torch.no_grad()(function), *tensors)
        calls[which, "both"] = partial(results, function, tensors)
    times = interleaved(calls, rounds, 3, 300, clock(threads))
    cells = []
    for part in ("forward", "both"):
        before, after = (1e3 * times[which, part].median for which in ("fallback", "ours"))
        cells.append(f"{before:.3g} → {after:.3g} ({before / after:.2g} x)")
    row(name, dtype, *cells, " → ".join(f"{error:.1e}" for error in errors))


def main():
    chosen = options(__doc__, threads=1, rounds=5, tokens=512, works=[""], dtypes=[*DTYPES])
    heading(chosen.threads, "recurrence", "dtype", "forward, ms", "forward + backward, ms", "errors")
    for name, build in WORKS.items():
        if any(re.search(expression, name) for expression in chosen.works):
            for dtype in chosen.dtypes:
                measure(name, build(chosen.tokens), dtype, chosen.rounds, chosen.threads)


if __name__ == "__main__":
    main()
