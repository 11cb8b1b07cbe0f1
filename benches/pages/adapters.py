"""Adapters on a frozen linear layer: time and peak memory of forward plus backward, compared with the layer's own.

    python -m benches.pages.adapters [--threads 2] [--size 4096] [--reflections 8] [--tokens 256] [--rounds 10]

Gradients are of the adapter's parameters and of the layer's input, as in the midst of a network. The candidates are
compared with plain formulas, then timed in turn, round after round; memory is by how much the first call raises the
peak of a process of its own, and the next call: large results of ours lie in memory that is kept for the next ones.
"""

import subprocess
import sys

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import householder.torch as ht
from benches.measure import heading, interleaved, options, peak_increment, row

FROZEN, OURS, PRODUCT, LORA = "frozen layer alone", "OrthogonalAdapter", "product formed (HRA)", "LoRA"
MERGED = "LoRA, merged into the weight"
TIMED = (OURS, PRODUCT, LORA)


def product(weight: Tensor, u: Tensor, x: Tensor) -> Tensor:
    """Turn the weight by an explicit d x d product of reflections, as HRA does."""
    units = (u / u.norm(dim=0)).unbind(1)
    turn = torch.eye(len(u))
    for v in units:
        turn = turn - 2 * torch.outer(turn @ v, v)
    return linear(x, weight @ turn)


def candidates(size: int, m: int, tokens: int) -> dict:
    """Calls by name, each returning the result and its gradients."""
    torch.manual_seed(0)
    adapter = ht.OrthogonalAdapter(nn.Linear(size, size, bias=False), num_reflections=m)
    frozen, u = adapter.linear, adapter.reflections
    u.data.add_(0.01 * torch.randn_like(u).tril())
    down = torch.randn(m // 2, size, requires_grad=True)  # as many numbers as the reflections have
    up = torch.randn(size, m // 2, requires_grad=True)
    x, grad = torch.randn(tokens, size, requires_grad=True), torch.randn(tokens, size)

    def work(function, *parameters):
        def call():
            output = function()
            return output, *torch.autograd.grad(output, (x, *parameters), grad)

        return call

    return {
        FROZEN: work(lambda: frozen(x)),
        OURS: work(lambda: adapter(x), u),
        PRODUCT: work(lambda: product(frozen.weight, u.tril(), x), u),
        LORA: work(lambda: frozen(x) + linear(linear(x, down), up), down, up),
        MERGED: work(lambda: linear(x, frozen.weight + up @ down), down, up),
    }


def main() -> None:
    sizes = {"threads": 2, "size": 4096, "reflections": 8, "tokens": 256, "rounds": 10}
    chosen = options(__doc__, **sizes, only=[*TIMED], memory_of=str)
    calls = candidates(chosen.size, chosen.reflections, chosen.tokens)
    if chosen.memory_of:
        candidates(chosen.size, chosen.reflections, 1)[chosen.memory_of]()  # libraries set themselves up
        print(*(peak_increment(calls[chosen.memory_of]) for _ in range(2)))
        return
    for name, formula in ((OURS, PRODUCT), (LORA, MERGED)):
        for found, expected in zip(calls[name](), calls[formula](), strict=True):
            torch.testing.assert_close(found, expected, atol=1e-3 * expected.abs().max().item(), rtol=0)
    calls = {name: calls[name] for name in (FROZEN, *chosen.only)}
    times = interleaved(calls, chosen.rounds, budget=25.0)
    command = [sys.executable, "-m", "benches.pages.adapters", *sys.argv[1:], "--memory-of"]
    memory = {name: [int(size) / 1e6 for size in subprocess.check_output([*command, name]).split()] for name in calls}
    titles = ("median, ms", "min, ms", "memory, first call, MB", "next call, MB")
    heading(chosen.threads, "", *(cell for title in titles for cell in (title, "relative")))
    rows = {name: [*(1e3 * seconds for seconds in times[name]), *memory[name]] for name in calls}
    for name, values in rows.items():
        pairs = zip(values, rows[FROZEN], strict=True)
        row(
            name, *(cell for value, own in pairs for cell in (value, f"{value / own:.2f}" if own else ""))
        )  # 0: no page


if __name__ == "__main__":
    main()
