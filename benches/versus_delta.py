"""The delta rule compared with transformers' fallback functions on a CPU and with plain torch by chunks.

    python benches/versus_delta.py --threads 2

Every candidate is first compared with the float64 recurrence. Times are medians of interleaved rounds.
"""

import argparse
import importlib
import re
from typing import NamedTuple

import torch
from measure import interleaved, machine
from torch import Tensor

import householder.torch as ht
from householder.torch import delta_expression

CHUNK = 32


class Work(NamedTuple):
    name: str
    heads: int
    value_heads: int
    tokens: int
    keys: int
    values: int
    gate: str | None = None
    reflections: int = 1


WORKS = [
    Work("gated DeltaNet", 8, 8, 2048, 128, 128, "head"),
    Work("gated DeltaNet, grouped", 16, 32, 2048, 128, 128, "head"),
    Work("KDA", 8, 8, 2048, 128, 128, "channel"),
    Work("DeltaNet", 6, 6, 4096, 256, 512),
    Work("DeltaProduct, 2 reflections", 8, 8, 1024, 128, 128, None, 2),
    Work("decoding step", 32, 32, 1, 128, 128, "head"),
]


def plain(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None, scale: float) -> Tensor:
    """Plain torch: all chunks' systems at once, then one or two products per chunk for the state."""
    group = v.shape[2] // q.shape[2]
    q, k = (scale * q).repeat_interleave(group, 2), k.repeat_interleave(group, 2)
    (batch, steps, heads, _), size = k.shape, min(CHUNK, k.shape[1])
    q, k, v = (x.transpose(1, 2).reshape(batch, heads, steps // size, size, -1) for x in (q, k, v))
    beta = beta.transpose(1, 2).reshape(batch, heads, -1, size, 1)
    c = torch.zeros_like(beta) if g is None else g.transpose(1, 2).reshape(beta.shape).cumsum(-2)
    later = torch.ones(size, size, dtype=torch.bool).triu(1)
    decay = (c - c.mT).masked_fill(later, -torch.inf).exp()
    system = torch.eye(size, dtype=q.dtype) + (beta * (k @ k.mT * decay)).tril(-1)
    by_keys = k * c.exp()
    right = torch.cat([beta * v, beta * by_keys], -1)
    u, w = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True).split(
        [v.shape[-1], k.shape[-1]], -1
    )
    pairs, by_queries = q @ k.mT * decay, q * c.exp()
    last = c[..., -1:, :]
    to_end, whole = k * (last - c).exp(), last.exp()
    state, outputs = q.new_zeros(batch, heads, k.shape[-1], v.shape[-1]), []
    for i in range(k.shape[2]):
        d = u[:, :, i] - w[:, :, i] @ state
        outputs.append(by_queries[:, :, i] @ state + pairs[:, :, i] @ d)
        state = whole[:, :, i] * state + to_end[:, :, i].mT @ d
    return torch.cat(outputs, 2).transpose(1, 2)


def twice_as_long(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, reflections: int, scale: float) -> Tensor:
    """DeltaProduct through the plain DeltaNet of so many times as many steps."""
    zeros = q.new_zeros(q.shape[0], q.shape[1], reflections - 1, *q.shape[2:])
    queries = torch.cat([zeros, q.unsqueeze(2)], 2).flatten(1, 2)
    return plain(queries, k, v, beta, None, scale)[:, reflections - 1 :: reflections]


def problem(work: Work) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(1, *shape, generator=generator)

    steps = work.tokens * work.reflections
    gates = {None: None, "head": (work.value_heads,), "channel": (work.value_heads, work.keys)}[work.gate]
    tensors = [
        torch.nn.functional.normalize(normal(work.tokens, work.heads, work.keys), dim=-1),
        torch.nn.functional.normalize(normal(steps, work.heads, work.keys), dim=-1),
        normal(steps, work.value_heads, work.values),
        normal(steps, work.value_heads).sigmoid(),
        None if gates is None else torch.nn.functional.logsigmoid(normal(work.tokens, *gates)),
    ]
    return [None if t is None else t.requires_grad_() for t in tensors]


def candidates(work: Work):
    """Functions of the operands by name, ours first."""
    scale, found = work.keys**-0.5, {}
    found["householder"] = lambda q, k, v, beta, g: ht.delta_rule(q, k, v, beta, g, num_householder=work.reflections)[0]
    names = {
        "head": ("qwen3_next", "torch_chunk_gated_delta_rule"),
        "channel": ("kimi_linear", "chunk_kimi_delta_attention"),
    }
    if work.tokens == 1:
        names["head"] = ("qwen3_next", "torch_recurrent_gated_delta_rule")
    if work.gate:
        module, name = names[work.gate]
        try:
            module = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
        except ImportError:
            print(f"transformers is not installed: no fallback for {work.name}")
        else:
            fallback = getattr(module, name).__wrapped__
            found["transformers"] = lambda q, k, v, beta, g: fallback(q, k, v, g, beta)[0]
    if work.reflections > 1:
        found["plain torch"] = lambda q, k, v, beta, _: twice_as_long(q, k, v, beta, work.reflections, scale)
    elif work.gate != "channel" and work.tokens > 1:
        found["plain torch"] = lambda q, k, v, beta, g: plain(q, k, v, beta, g, scale)
    return found


def decoding(work: Work, tensors):
    """One step with a state, without gradients."""
    q, k, v, beta, g = (t.detach() for t in tensors)
    state = torch.randn(1, work.value_heads, work.keys, work.values)
    module = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    fallback = module.torch_recurrent_gated_delta_rule.__wrapped__
    options = {"initial_state": state, "output_final_state": True}
    target = torch.empty_like(state)
    return {
        "householder": lambda: ht.delta_rule(q, k, v, beta, g, **options),
        "transformers": lambda: fallback(q, k, v, g, beta, **options),
        "copy of the state": lambda: target.copy_(state),
    }


def errors(work: Work, functions, tensors):
    """Largest relative error of outputs and gradients against float64."""
    given = [t for t in tensors if t is not None]
    wide = [None if t is None else t.detach().double().requires_grad_() for t in tensors]
    arguments = (*wide, None, None, work.keys**-0.5, work.reflections, False)
    expected = results(lambda *_: delta_expression.delta_rule(*arguments)[0], wide, [t for t in wide if t is not None])
    return {
        name: max(float((a - b).norm() / b.norm()) for a, b in zip(results(f, tensors, given), expected, strict=True))
        for name, f in functions.items()
    }


def results(function, tensors, given):
    o = function(*tensors)
    return [o.detach(), *torch.autograd.grad(o, given, torch.ones_like(o))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--works", nargs="*", help="regular expressions of names; all by default")
    parser.add_argument("--candidates", nargs="*", help="names; all by default")
    parser.add_argument("--tokens", type=int, help="in place of each work's own number")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(" | ".join(f"{name}: {text}" for name, text in machine(options.threads).items()))
    print("| work | candidate | forward, ms | forward + backward, ms | times householder's | error |")
    print("|---|---|---|---|---|---|")
    for work in WORKS:
        if not options.works or any(re.search(expression, work.name) for expression in options.works):
            own = work.tokens if work.tokens == 1 or not options.tokens else options.tokens
            measure(work._replace(tokens=own), options.rounds, options.candidates)


def measure(work: Work, rounds: int, names: list[str] | None):
    """Print the rows of a work, of these candidates."""
    tensors = problem(work)
    if work.tokens == 1:
        times = interleaved(decoding(work, tensors), rounds)
        for name, time in times.items():
            ratio = time.median / times["householder"].median
            print(f"| {work.name} | {name} | {1e3 * time.median:.3f} | | {ratio:.2f} | |")
        return
    functions = {name: f for name, f in candidates(work).items() if not names or name in names}
    given = [t for t in tensors if t is not None]
    wrong = errors(work, functions, tensors)
    detached = [None if t is None else t.detach() for t in tensors]
    calls = {(name, False): lambda f=f: f(*detached) for name, f in functions.items()}
    calls |= {(name, True): lambda f=f: results(f, tensors, given) for name, f in functions.items()}
    times = interleaved(calls, rounds, at_least=3)
    for name in functions:
        forward, both = (times[name, whole].median for whole in (False, True))
        ratio = both / times[next(iter(functions)), True].median
        print(f"| {work.name} | {name} | {1e3 * forward:.1f} | {1e3 * both:.1f} | {ratio:.2f} | {wrong[name]:.1e} |")


if __name__ == "__main__":
    main()
