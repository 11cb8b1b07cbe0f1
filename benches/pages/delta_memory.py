"""What is kept between the passes of the delta rule: ours, the best plain torch, and transformers' fallback functions.

    python -m benches.pages.delta_memory [--tokens 256 512 ...] [--output docs/delta-memory.svg]

Bytes of all tensors that autograd keeps, without the operands, for one head of 128 x 128 in float32.
"""

import importlib
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure

import householder.torch as ht
from benches.measure import options
from benches.pages.versus_delta import Work, plain, problem

PAGE = Path(__file__).parents[2] / "docs" / "delta-memory.svg"
TOKENS = [256, 512, 1024, 2048, 4096]
LARGEST = 1 << 29
"""Bytes at which a line ends."""
WIDTH = 128
LOOKS = (
    {"marker": "o"},
    {"marker": "s", "linewidth": 5, "markersize": 10, "alpha": 0.4},  # lies below the next
    {"marker": "^", "linestyle": "--"},
    {"marker": "D"},
)


def fallback(model, name):
    function = getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), name).__wrapped__
    return lambda q, k, v, beta, g: function(q, k, v, g, beta)[0]


def ours(q, k, v, beta, g):
    return ht.delta_rule(q, k, v, beta=beta, g=g)[0]


def lines():
    return {
        "householder, either gate": ("channel", ours),
        "plain torch, one gate per head": ("head", plain),
        "transformers, one gate per head": ("head", fallback("qwen3_next", "torch_chunk_gated_delta_rule")),
        "transformers, one gate per channel": ("channel", fallback("kimi_linear", "chunk_kimi_delta_attention")),
    }


def kept(gate, function, tokens):
    """Bytes that autograd keeps, without the operands."""
    operands = problem(Work("", 1, 1, tokens, WIDTH, WIDTH, gate))
    own = {t.untyped_storage().data_ptr() for t in operands if t is not None}
    found = {}

    def pack(t):
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        function(*operands)
    return sum(found.values()), sum(t.nbytes for t in operands if t is not None)


def main():
    chosen = options(__doc__, threads=2, tokens=TOKENS, output=PAGE)
    mpl.rcParams |= {"svg.hashsalt": "", "svg.fonttype": "none"}
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for (name, (gate, function)), look in zip(lines().items(), LOOKS, strict=True):
        points = []
        for tokens in chosen.tokens:
            points.append((tokens, *kept(gate, function, tokens)))
            print(f"{name}, T = {tokens}: {points[-1][1]:,} bytes, operands {points[-1][2]:,}", flush=True)
            if points[-1][1] > LARGEST:
                break
        axes.plot([t for t, *_ in points], [size / 2**20 for _, size, _ in points], label=name, **look)
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="kept between the passes, MiB")
    axes.set_xticks(chosen.tokens, map(str, chosen.tokens), minor=False)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(chosen.output, metadata={"Date": None})
    print(f"figure: {chosen.output}")


if __name__ == "__main__":
    main()
