"""The delta rule compared with other implementations on a CPU.

    python -m benches.pages.versus_delta --threads 2

The candidates are transformers' fallback functions, the naive chunk functions of flash-linear-attention where it is
installed, plain torch by chunks, and the last through torch.compile. The kernels of vLLM and of llama.cpp's ggml have
no backward pass. They are found where ``VLLM_ROOT`` and ``GGML_ROOT`` lead (``benches/delta_rivals.py``). Every
candidate is first compared with the float64 recurrence. Times are medians of interleaved rounds.

GFLOP/s is the arithmetic of the chunk form (``arithmetic``) over the time of both passes. The last column divides it by
the rate of torch's product of two 1024 x 1024 matrices, timed in the same rounds. Without a backward pass, ratio, error
and rates are those of the forward pass.
"""

import importlib
import re
import sys
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import householder.torch as ht
from benches import delta_rivals
from benches.measure import heading, interleaved, options, row
from householder.torch._base import expressions
from householder.torch.acceleration.pretrained import _delta_step

CHUNK = 32
PRODUCT = 1024
"""Rows and columns of the matrices whose product shows the processor's rate."""
SEGMENT = 1024
"""Tokens that the float64 recurrence keeps in memory at a time."""


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


def arithmetic(work: Work) -> int:
    """Count the operations of both passes: three times those of the forward pass, as each product has two gradients.

    A chunk of C steps and r steps per token multiplies, in each head, C x K by K x C and C/r x K by K x C for the pairs
    of keys and of queries with keys, a C x C inverse and a C/r x C matrix by C x V, and states by keys, by queries and
    by values: C, C/r and C rows of K V numbers. Triangular matrices count as whole squares. Value heads share the pairs
    of their key head unless channels have gates of their own. States computed again do not count.
    """
    steps = work.tokens * work.reflections
    pairs = (work.value_heads if work.gate == "channel" else work.heads) * work.keys
    squares = CHUNK * (steps + work.tokens) * (pairs + work.value_heads * work.values)
    states = (2 * steps + work.tokens) * work.value_heads * work.keys * work.values
    return 3 * 2 * (squares + states)


def plain(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None) -> Tensor:
    """Plain torch: all chunks' systems at once, then one or two products per chunk for the state."""
    group = v.shape[2] // q.shape[2]
    q, k = (q.shape[-1] ** -0.5 * q).repeat_interleave(group, 2), k.repeat_interleave(group, 2)
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


def naive(module, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None) -> Tensor:
    """The naive chunk functions of flash-linear-attention."""
    if g is not None and g.dim() == 4:
        return module.naive_chunk_kda(q, k, v, g, beta, chunk_size=CHUNK)[0]
    q, k = (x.repeat_interleave(v.shape[2] // q.shape[2], 2) for x in (q, k))
    if g is not None:
        return module.naive_chunk_gated_delta_rule(q, k, v, g, beta, chunk_size=CHUNK)[0]
    heads_first = [x.transpose(1, 2) for x in (q, k, v, beta)]
    return module.delta_rule_chunkwise(*heads_first, chunk_size=CHUNK)[0].transpose(1, 2)


def longer(function, reflections: int, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, _: None) -> Tensor:
    """DeltaProduct through a DeltaNet of so many times as many steps."""
    zeros = q.new_zeros(q.shape[0], q.shape[1], reflections - 1, *q.shape[2:])
    queries = torch.cat([zeros, q.unsqueeze(2)], 2).flatten(1, 2)
    return function(queries, k, v, beta, None)[:, reflections - 1 :: reflections]


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


def module_of(library: str, name: str):
    """A module, or None with a line about the library."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        print(f"left out {library}: {error}", file=sys.stderr)
        return None


def candidates(work: Work):
    """Functions of the operands by name, ours first."""
    found = {}
    fallbacks = {
        "head": ("qwen3_next", "torch_chunk_gated_delta_rule"),
        "channel": ("kimi_linear", "chunk_kimi_delta_attention"),
    }
    name, function = fallbacks.get(work.gate, (None, None))
    if name and (module := module_of("transformers", f"transformers.models.{name}.modeling_{name}")):
        fallback = getattr(module, function).__wrapped__
        found["transformers"] = lambda q, k, v, beta, g: fallback(q, k, v, g, beta)[0]
    name = {None: "delta_rule", "head": "gated_delta_rule", "channel": "kda"}[work.gate]
    if module := module_of("flash-linear-attention", f"fla.ops.{name}.naive"):
        found["flash-linear-attention"] = partial(naive, module)
    if work.gate != "channel":
        torch.compiler.reset()
        found |= {"plain torch": plain, "compiled torch": torch.compile(plain, dynamic=False)}
    if work.reflections > 1:
        found = {name: partial(longer, f, work.reflections) for name, f in found.items()}

    return {"householder": partial(ours, work)} | found


def ours(work: Work, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None) -> Tensor:
    return ht.delta_rule(q, k, v, beta=beta, g=g, num_householder=work.reflections)[0]


def runs(name: str, function, tensors) -> bool:
    """Return whether a candidate runs; a compiler may fail in many ways."""
    try:
        results(function, tensors)
    except Exception as error:
        print(f"left out {name}: {type(error).__name__}", file=sys.stderr)
        return False
    return True


def kernels(tensors, state):
    """Calls without a backward pass by name."""
    if tensors[-1] is None:
        return {}
    functions = {
        "householder, bfloat16": delta_rivals.ours,
        "vLLM, bfloat16": delta_rivals.vllm,
        "ggml": delta_rivals.ggml,
    }
    found = {name: function(*tensors, state) for name, function in functions.items()}
    return {name: call for name, call in found.items() if call}


def decoding(tensors, state):
    """Calls of one step with a state, without gradients."""
    q, k, v, beta, g = tensors
    options = {"initial_state": state, "output_final_state": True}
    cache = options | {"initial_state": state.clone()}
    found = {
        "householder": lambda: ht.delta_rule(q, k, v, beta=beta, g=g, **options)[0],
        "householder, in a cache": torch.no_grad()(lambda: _delta_step(q, k, v, g, beta, **cache)[0]),
    }
    if module := module_of("transformers", "transformers.models.qwen3_next.modeling_qwen3_next"):
        fallback = module.torch_recurrent_gated_delta_rule.__wrapped__
        found["transformers"] = lambda: fallback(q, k, v, g, beta, **options)[0]
    return found | kernels(tensors, state)


def recurrence(work: Work, *tensors):
    """The outputs in torch operations, segment by segment, of which the backward pass keeps the states alone."""
    outputs, state = [], None
    options = None, work.keys**-0.5, work.reflections, False
    lengths = [1, work.reflections, work.reflections, work.reflections, 1]  # rows of an operand per token
    for begin in range(0, work.tokens, SEGMENT):
        rows = [
            None if t is None else t[:, begin * length : (begin + SEGMENT) * length]
            for t, length in zip(tensors, lengths, strict=True)
        ]
        o, state = checkpoint(expressions.delta_rule, *rows, state, *options, use_reentrant=False)
        outputs.append(o)
    return torch.cat(outputs, 1)


def errors(work: Work, functions, tensors):
    """Outputs in float64, and each function's largest relative error of outputs and gradients."""
    wide = [None if t is None else t.detach().double().requires_grad_() for t in tensors]
    expected = results(partial(recurrence, work), wide)
    return expected[0], {name: max(map(error, results(f, tensors), expected)) for name, f in functions.items()}


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.reshape_as(expected) - expected).norm() / expected.norm())


def results(function, tensors):
    o = function(*tensors)
    return [o.detach(), *torch.autograd.grad(o, [t for t in tensors if t is not None], torch.ones_like(o))]


def main():
    chosen = options(__doc__, threads=2, rounds=7, works=[""], candidates=[""], tokens=int)
    titles = ("forward, ms", "forward + backward, ms", "times householder's", "error", "GFLOP/s", "share")
    heading(chosen.threads, "work", "candidate", *titles)
    for work in WORKS:
        if any(re.search(expression, work.name) for expression in chosen.works):
            own = work.tokens if work.tokens == 1 or not chosen.tokens else chosen.tokens
            measure(work._replace(tokens=own), chosen.rounds, chosen.candidates)


def measure(work: Work, rounds: int, names: list[str]):
    """Print the rows of a work, of these candidates."""

    def wanted(found):
        return {name: value for name, value in found.items() if names == [""] or name in names}

    tensors = problem(work)
    detached = [None if t is None else t.detach() for t in tensors]
    state = torch.zeros(1, work.value_heads, work.keys, work.values)
    if work.tokens == 1:
        step(work, detached, state.normal_(), rounds, wanted)
        return
    functions, alone = wanted(candidates(work)), wanted(kernels(detached, state))
    functions = {name: f for name, f in functions.items() if name != "compiled torch" or runs(name, f, tensors)}
    outputs, wrong = errors(work, functions, tensors)
    wrong |= {name: error(call(), outputs) for name, call in alone.items()}
    calls = {(name, False): lambda f=f: f(*detached) for name, f in functions.items()}
    calls |= {(name, False): call for name, call in alone.items()}
    calls |= {(name, True): lambda f=f: results(f, tensors) for name, f in functions.items()}
    a, b = torch.randn(2, PRODUCT, PRODUCT)
    calls["product"] = lambda: a @ b
    times = interleaved(calls, rounds, at_least=3)
    fastest, first = 2 * PRODUCT**3 / times["product"].median, next(iter(wrong))
    for name in wrong:
        whole = name in functions
        forward, last = times[name, False].median, times[name, whole].median
        ratio = last / times[first, whole].median if (first, whole) in times else ""
        rate = arithmetic(work) / (1 if whole else 3) / last
        rates = f"{rate / 1e9:.0f}", f"{100 * rate / fastest:.0f} %"
        row(work.name, name, 1e3 * forward, 1e3 * last if whole else "", ratio, f"{wrong[name]:.1e}", *rates)


def step(work: Work, tensors, state: Tensor, rounds: int, wanted):
    """Print the rows of one step of decoding, and the time of a copy of its states."""
    wide = [t.double() for t in tensors]
    expected, _ = expressions.delta_rule(*wide, state.double(), None, work.keys**-0.5, 1, False)
    calls = wanted(decoding(tensors, state))
    wrong = {name: f"{error(call(), expected):.1e}" for name, call in calls.items()}
    target = torch.empty_like(state)
    calls["copy of the state"] = lambda: target.copy_(state)
    times = interleaved(calls, rounds)
    for name, time in times.items():
        ratio = time.median / times[next(iter(times))].median
        row(work.name, name, 1e3 * time.median, "", ratio, wrong.get(name, ""), "", "")


if __name__ == "__main__":
    main()
