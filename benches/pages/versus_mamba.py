"""The recurrence of Mamba-2 that ``ht.accelerate`` replaces, compared with the fallback functions of transformers.

    python -m benches.pages.versus_mamba --threads 1 --dtype bfloat16

Shapes are those of a layer of published models. Both functions get what a layer gives them, and are first compared with
float64: errors are the largest of the outputs and of the gradients. Times are medians of interleaved rounds. GFLOP/s
count what our forward pass needs besides products that heads share, and are followed by those of a product of 1024 x
1024 matrices in float32.
"""

import importlib
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from benches.measure import clock, heading, interleaved, options, row
from householder.torch._base import expressions
from householder.torch.acceleration import mamba


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


DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

CHUNK = 32
"""Steps of a chunk of ours."""


def operands(work: Work, tokens: int, dtype=torch.float32) -> list[Tensor]:
    """Return x, dt, A, B, C, D and the bias of dt; activations have a dtype."""
    generator = torch.Generator().manual_seed(0)
    inputs = 1, tokens, work.heads
    shapes = (*inputs, work.width), inputs, (work.heads,), *((1, tokens, work.groups, work.state),) * 2
    x, dt, a, b, c = (torch.randn(shape, generator=generator) for shape in shapes)
    x, dt, b, c = (t.to(dtype) for t in (x, dt, b, c))
    return [t.requires_grad_() for t in (x, dt, -a.exp(), b, c, torch.ones(work.heads), torch.zeros(work.heads))]


def flops(work: Work, tokens: int) -> int:
    return 2 * tokens * work.heads * work.width * (2 * work.state + CHUNK)


def exact(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, bias: Tensor) -> Tensor:
    """Return the outputs by linear attention in torch operations."""
    dt = softplus(dt + bias)
    o, _ = expressions.delta_rule(c, b, dt[..., None] * x, None, dt * a, None, None, 1.0, 1, False)
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
    chosen = options(__doc__, threads=1, rounds=7, tokens=1024, dtype="float32")
    titles = "forward, ms", "forward + backward, ms", "a step, ms", "forward, GFLOP/s", "error"
    heading(chosen.threads, "layer", "candidate", *titles)
    module = importlib.import_module("transformers.models.mamba2.modeling_mamba2")
    functions = {
        "householder": (mamba.chunk_scan, mamba.state_update),
        "transformers": (module.mamba2_chunk_scan.__wrapped__, module.mamba2_selective_state_update.__wrapped__),
    }
    square = torch.randn(1024, 1024)
    for work in WORKS:
        tensors = operands(work, chosen.tokens, DTYPES[chosen.dtype])
        expected = results(exact, [t.detach().double().requires_grad_() for t in tensors])
        calls, errors = {"product": lambda: square @ square}, {}
        for name, (of_sequence, of_token) in functions.items():
            whole = scan(of_sequence, work)
            found = zip(results(whole, tensors), expected, strict=True)
            errors[name] = max(float((a - b).norm() / b.norm()) for a, b in found)
            calls[name, "forward"] = partial(torch.no_grad()(whole), *tensors)
            calls[name, "both"] = partial(results, whole, tensors)
            calls[name, "step"] = torch.no_grad()(step(of_token, work, tensors))
        times = interleaved(calls, chosen.rounds, 3, 300, clock(chosen.threads))
        for name, error in errors.items():
            cells = (times[name, part].median for part in ("forward", "both", "step"))
            rate = f"{flops(work, chosen.tokens) / times[name, 'forward'].median / 1e9:.3g}"
            rate += f" of {2 * 1024**3 / times['product'].median / 1e9:.3g}"
            row(work.name, name, *(1e3 * cell for cell in cells), rate, f"{error:.1e}")


if __name__ == "__main__":
    main()
