"""The recurrence of Mamba-2 that ``ht.accelerate`` replaces, compared with the fallback functions of transformers.

    python -m benches.pages.versus_mamba --threads 2

Shapes are those of a layer of published models, in float32. Both functions get what a layer gives them, and are first
compared with float64. Times are medians of interleaved rounds.
"""

import argparse
import importlib
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from benches.measure import interleaved, machine
from householder.torch import _expressions, _mamba


class Work(NamedTuple):
    name: str
    heads: int
    width: int
    groups: int
    state: int
    chunk: int


WORKS = [
    Work("Nemotron-H 8B", 128, 64, 8, 128, 128),
    Work("Granite 4.0 H Small", 128, 64, 1, 128, 256),
]


def operands(work: Work, tokens: int) -> list[Tensor]:
    """Return x, dt, A, B, C, D and the bias of dt."""
    generator = torch.Generator().manual_seed(0)
    inputs = 1, tokens, work.heads
    shapes = (*inputs, work.width), inputs, (work.heads,), *((1, tokens, work.groups, work.state),) * 2
    x, dt, a, b, c = (torch.randn(shape, generator=generator) for shape in shapes)
    return [t.requires_grad_() for t in (x, dt, -a.exp(), b, c, torch.ones(work.heads), torch.zeros(work.heads))]


def exact(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, bias: Tensor) -> Tensor:
    """Return the outputs by linear attention in torch operations."""
    dt = softplus(dt + bias)
    o, _ = _expressions.delta_rule(c, b, dt[..., None] * x, None, dt * a, None, None, 1.0, 1, False)
    return o + d[:, None] * x


def scan(function, work: Work):
    def call(x, dt, a, b, c, d, bias):
        return function(x, dt, a, b, c, chunk_size=work.chunk, D=d, dt_bias=bias, dt_softplus=True)

    return call


def step(function, work: Work, tensors):
    """One token, with what a layer repeats for each number."""
    x, dt, a, b, c, d, bias = (t.detach() for t in tensors)
    state = torch.zeros(1, work.heads, work.state, work.width).mT  # as a scan of ours leaves it in a cache
    dt = dt[:, 0, :, None].expand(-1, -1, work.width)
    a = a[:, None, None].expand(-1, work.width, work.state)
    d, bias = (t[:, None].expand(-1, work.width) for t in (d, bias))
    return lambda: function(state, x[:, 0], dt, a, b[:, 0], c[:, 0], d, z=None, dt_bias=bias, dt_softplus=True)


def results(function, tensors):
    """Return the outputs and the gradients of their sum."""
    o = function(*tensors)
    return [o.detach(), *torch.autograd.grad(o.sum(), tensors)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=1024)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(" | ".join(f"{name}: {text}" for name, text in machine(options.threads).items()))
    print(
        "| layer | candidate | forward, ms | forward + backward, ms | a step, ms | error |\n|---|---|---|---|---|---|"
    )
    module = importlib.import_module("transformers.models.mamba2.modeling_mamba2")
    functions = {
        "householder": (_mamba.chunk_scan, _mamba.state_update),
        "transformers": (module.mamba2_chunk_scan.__wrapped__, module.mamba2_selective_state_update.__wrapped__),
    }
    for work in WORKS:
        tensors = operands(work, options.tokens)
        expected = results(exact, [t.detach().double().requires_grad_() for t in tensors])
        calls, errors = {}, {}
        for name, (of_sequence, of_token) in functions.items():
            whole = scan(of_sequence, work)
            found = zip(results(whole, tensors), expected, strict=True)
            errors[name] = max(float((a - b).norm() / b.norm()) for a, b in found)
            calls[name, "forward"] = partial(torch.no_grad()(whole), *tensors)
            calls[name, "both"] = partial(results, whole, tensors)
            calls[name, "step"] = step(of_token, work, tensors)
        times = {key: 1e3 * taken.median for key, taken in interleaved(calls, options.rounds, 3, 300).items()}
        for name, error in errors.items():
            numbers = " | ".join(f"{times[name, part]:.3g}" for part in ("forward", "both", "step"))
            print(f"| {work.name} | {name} | {numbers} | {error:.1e} |", flush=True)


if __name__ == "__main__":
    main()
