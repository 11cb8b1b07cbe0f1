"""Adapters on a frozen linear layer: time and peak memory of forward plus backward, compared with the layer's own.

    python benches/adapters.py [--threads 2] [--size 4096] [--reflections 8] [--tokens 256] [--rounds 10]

Gradients are of the adapter's parameters and of the layer's input, as in the midst of a network. The candidates are
compared with plain formulas, then timed in turn, round after round; memory is by how much the first call raises the
peak of a process of its own, and the next call: large results of ours lie in memory that is kept for the next ones.
"""

import argparse
import subprocess
import sys

import torch
from measure import interleaved, machine, peak_increment
from torch import Tensor, nn
from torch.nn.functional import linear

import householder.torch as ht

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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="of torch and householder")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--reflections", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=TIMED, default=TIMED, help="candidates beside the frozen layer")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    calls = candidates(options.size, options.reflections, options.tokens)
    if options.memory_of:
        candidates(options.size, options.reflections, 1)[options.memory_of]()  # libraries set themselves up
        print(*(peak_increment(calls[options.memory_of]) for _ in range(2)))
        return
    for name, formula in ((OURS, PRODUCT), (LORA, MERGED)):
        for found, expected in zip(calls[name](), calls[formula](), strict=True):
            torch.testing.assert_close(found, expected, atol=1e-3 * expected.abs().max().item(), rtol=0)
    calls = {name: calls[name] for name in (FROZEN, *options.only)}
    times = interleaved(calls, options.rounds, budget=25.0)
    memory = {
        name: [
            int(size) / 1e6
            for size in subprocess.check_output([sys.executable, *sys.argv, "--memory-of", name]).split()
        ]
        for name in calls
    }
    print("".join(f"- {heading}: {value}\n" for heading, value in machine(options.threads).items()))
    headings = ("median, ms", "min, ms", "memory, first call, MB", "next call, MB")
    print("| |", " | ".join(f"{heading} | of the layer's" for heading in headings), "|")
    print("|---" * (1 + 2 * len(headings)) + "|")
    rows = {name: [*(1e3 * seconds for seconds in times[name]), *memory[name]] for name in calls}
    for name, row in rows.items():
        ratios = (
            f"{value / own:.2f}" if own else "" for value, own in zip(row, rows[FROZEN], strict=True)
        )  # no new page
        cells = (f"{value:.3g} | {ratio}" for value, ratio in zip(row, ratios, strict=True))
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
