"""A million sequences of the delta rule, many in a call, against one step after the other in double precision.

    python tests/reliability/delta.py [--problems 1000000] [--seed 0]

A problem is one head of one sequence: its outputs, its final state and the gradients of all its operands. It has keys,
step sizes, gates and a length of its own. Lengths and widths are those at which the core changes its path. Errors are
relative to the largest number of the head, so that no other head hides them. A call is a function of seed and index.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

import householder as hh
import householder.torch as ht

sys.path.insert(0, str(Path(__file__).parents[1] / "tester"))
import oracle
from compare import FACTOR, LEVEL, ROUNDINGS, RUNS

OPERANDS = ("q", "k", "v", "beta", "g", "initial_state")
RESULTS = ("o", "final_state")
WIDTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33)
LENGTHS = (1, 4, 5, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 96, 97)
HALF = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
"""Half types, and what is computed with in their place."""


class Problems:
    """Sequences of one call, padded to one length: queries, steps and gates are zero where a sequence has ended."""

    def __init__(self, seed, index):
        rng = self.rng = np.random.default_rng((seed, index))
        self.dtype = (torch.float32, torch.float64, torch.float32, torch.bfloat16, torch.float16)[
            rng.choice(5, p=(0.4, 0.4, 0.1, 0.05, 0.05))
        ]
        self.reflections, self.heads, group = (
            int(rng.choice((1, 1, 2, 3))),
            int(rng.choice((1, 2))),
            rng.choice((1, 2, 3)),
        )
        self.value_heads = self.heads * int(group)
        self.keys, self.values = self._widths()
        self.gate = rng.choice((None, "head", "channel"))
        self.normalize, self.packed = bool(rng.integers(2)), bool(rng.integers(2))
        self.scale = float(rng.choice((self.keys**-0.5, 1.0, -2.0)))
        count = int(rng.integers(100, 250)) if self.keys * self.values < 200 else int(rng.integers(2, 9))
        self.lengths = self._lengths(count)
        self.tokens = int(self.lengths.max(initial=0))
        self.tensors = self._tensors(count)
        self.mask = torch.arange(self.tokens) < torch.from_numpy(self.lengths)[:, None]
        for name in {"q", "beta", "g"} & set(self.tensors):
            self.tensors[name][~self.rows(name)] = 0
        self.wanted = [name for name in self.tensors if rng.random() < 0.8] or ["v"]
        self.cotangents = {
            "o": self._normal(count, self.tokens, self.value_heads, self.values),
            "final_state": self._normal(count, self.value_heads, self.keys, self.values),
        }
        if rng.random() < 0.4:
            del self.cotangents[rng.choice(RESULTS)]

    @property
    def count(self):
        return len(self.lengths) * self.value_heads

    def _widths(self):
        small = self.rng.random() < 0.8
        pair = [int(self.rng.integers(1, 9)) if small else int(self.rng.choice(WIDTHS)) for _ in range(2)]
        if self.rng.random() < 0.02:
            pair[1] = int(self.rng.choice((127, 128, 129, 257)))
        return pair

    def _lengths(self, count):
        rng = self.rng
        found = rng.integers(0, 7, count)
        if rng.random() < 0.35:
            long = rng.random(count) < 0.6
            found[long] = np.maximum(rng.choice(LENGTHS, int(long.sum())) // self.reflections, 1)
        return found if self.packed else np.full(count, found[0])

    def _normal(self, *shape):
        return torch.from_numpy(self.rng.standard_normal(shape))

    def _tensors(self, count):
        rng, steps = self.rng, self.tokens * self.reflections

        def each(options, heads, *more):
            return rng.choice(options, (count, 1, heads, *more))

        k = rng.standard_normal((count, steps, self.heads, self.keys))
        k = np.where(each((False, False, True), self.heads, 1), k[:, :1], k)
        if not self.normalize:
            k /= np.linalg.norm(k, axis=-1, keepdims=True)
            k *= np.where(each((False, True), self.heads, 1), rng.random((*k.shape[:3], 1)), 1)
        k *= np.where(rng.random((*k.shape[:3], 1)) < each((0, 0, 0.3), self.heads, 1), 0, 1)
        beta = 2 * rng.random((count, steps, self.value_heads))
        kind = each((0, 1, 2, 3), self.value_heads)
        beta = np.select([kind == 0, kind == 1], [beta.round(), np.full_like(beta, 2)], beta)
        size = each((1e-3, 1, 1, 1e3), self.value_heads, 1) if self.dtype not in HALF else 1
        found = {
            "q": self._normal(count, self.tokens, self.heads, self.keys),
            "k": torch.from_numpy(k),
            "v": torch.from_numpy(size * rng.standard_normal((count, steps, self.value_heads, self.values))),
            "beta": torch.from_numpy(beta),
        }
        if self.gate is not None:
            width = (self.keys,) if self.gate == "channel" else ()
            shape = count, self.tokens, self.value_heads, *width
            ones = (1,) * len(width)
            g = -rng.random(shape) * each((0, 0.01, 1, 1, 60, 1e4), self.value_heads, *ones)
            extreme = each((-60, -60, -700, -np.inf), self.value_heads, *ones)
            found["g"] = torch.from_numpy(
                np.where(rng.random(shape) < each((0, 0, 0.1, 1), self.value_heads, *ones), extreme, g)
            )
        if rng.random() < 0.6:
            found["initial_state"] = self._normal(count, self.value_heads, self.keys, self.values)
        return {name: t.to(self.dtype) for name, t in found.items()}

    def describe(self):
        shapes = ", ".join(f"{name} {list(t.shape)}" for name, t in self.tensors.items())
        options = (
            f"reflections {self.reflections}, normalize {self.normalize}, packed {self.packed}, scale {self.scale:.3g}"
        )
        return f"{shapes}, {self.dtype}; {options}, gradients of {self.wanted} from {list(self.cotangents)}"

    def rows(self, name):
        """Where a tensor of tokens or of steps has numbers."""
        return self.mask.repeat_interleave(self.reflections, 1) if name in ("k", "v", "beta") else self.mask

    def given(self, name, t):
        """As the package takes it."""
        if name in ("initial_state", "final_state") or not self.packed:
            return t
        return t[self.rows(name)].unsqueeze(0)

    def padded(self, name, t, like):
        if name in ("initial_state", "final_state") or not self.packed:
            return t
        found = torch.zeros(like.shape, dtype=t.dtype)
        found[self.rows(name)] = t.squeeze(0)
        return found

    def ends(self):
        return torch.from_numpy(np.concatenate([[0], self.lengths.cumsum()])) if self.packed else None

    def expected(self, which=slice(None)):
        """Results of these sequences in double precision."""
        tensors = {name: oracle.wide(t[which]).requires_grad_() for name, t in self.tensors.items()}
        options = {"scale": self.scale, "reflections": self.reflections, "normalize": self.normalize}
        results = dict(zip(RESULTS, oracle.delta_rule(**tensors, **options), strict=True))
        total = sum((results[name] * cotangent[which]).sum() for name, cotangent in self.rounded_cotangents().items())
        found = [None] * len(self.wanted)
        if total.requires_grad:
            found = torch.autograd.grad(total, [tensors[name] for name in self.wanted], allow_unused=True)
        for name, grad in zip(self.wanted, found, strict=True):
            grad = torch.zeros_like(tensors[name]) if grad is None else grad
            if name != "initial_state":
                grad = grad * self.rows(name)[which].reshape(*grad.shape[:2], *(1,) * (grad.dim() - 2))
            results[f"gradient of {name}"] = grad
        return {name: t.detach() for name, t in results.items()}

    def rounded_cotangents(self):
        """The gradients of the results in the types that these have."""
        of_states = HALF.get(self.dtype, self.dtype)
        types = {"o": self.dtype, "final_state": of_states}
        return {name: t.to(types[name]).double() for name, t in self.cotangents.items()}

    def reach(self):
        """What a decay is multiplied by at most: those that would be subnormal are zeros."""
        numbers = [*self.cotangents.values(), *(t for name, t in self.tensors.items() if name != "g")]
        return float(np.prod([max(1.0, float(t.abs().max())) for t in numbers if t.numel()]))

    def by_torch(self, threads):
        torch.set_num_threads(threads)
        tensors = {
            name: self.given(name, t).detach().clone().requires_grad_(name in self.wanted)
            for name, t in self.tensors.items()
        }
        o, last = ht.delta_rule(
            **tensors, scale=self.scale, output_final_state=True, use_qk_l2norm_in_kernel=self.normalize,
            cu_seqlens=self.ends(), num_householder=self.reflections,
        )  # fmt: skip
        results = {"o": o, "final_state": last}
        cotangents = self.rounded_cotangents()
        given = [self.given(name, cotangents[name]).to(results[name].dtype) for name in cotangents]
        found = torch.autograd.grad(
            [results[name] for name in cotangents], [tensors[name] for name in self.wanted], given, allow_unused=True
        )
        torch.set_num_threads(1)
        results |= {
            f"gradient of {name}": torch.zeros_like(tensors[name]) if grad is None else grad
            for name, grad in zip(self.wanted, found, strict=True)
        }
        return {name: t.detach() for name, t in results.items()}

    def by_numpy(self, threads):
        hh.set_num_threads(threads)
        arrays = {name: self.given(name, t).numpy() for name, t in self.tensors.items()}
        ends = None if self.ends() is None else self.ends().numpy()
        options = {"scale": self.scale, "num_householder": self.reflections, "cu_seqlens": ends}
        results, vjp = hh.delta_rule_vjp(**arrays, **options)
        grads = {
            f"grad_{name}": self.given(name, t).to(self.dtype).numpy() for name, t in self.rounded_cotangents().items()
        }
        found = vjp(**grads)
        results = results._asdict() | {f"gradient of {name}": getattr(found, name) for name in self.wanted}
        return {name: torch.from_numpy(a) for name, a in results.items()}


def by_head(name, t):
    """The largest of the numbers of each head of each sequence, ``(N, heads)``."""
    rows = t.abs().movedim(1 if name.endswith("state") else 2, 1).flatten(2)
    return rows.amax(-1) if rows.shape[-1] else rows.new_zeros(rows.shape[:2])


def check(problems):
    """Names of wrong results, and how many heads needed the bound by disturbed runs of the oracle."""
    rng, expected, dtype = problems.rng, problems.expected(), problems.dtype
    run = problems.by_torch
    if dtype not in HALF and not problems.normalize and rng.random() < 0.4:
        run = problems.by_numpy
    threads = int(rng.integers(1, 4))
    found = run(threads)
    if rng.random() < 0.25:
        again = run(threads % 3 + 1)
        if not all(torch.equal(found[name], again[name]) for name in found):
            return ["bits"], 0
    steps = problems.tokens * problems.reflections + 1
    bound = torch.finfo(HALF.get(dtype, dtype)).eps * ((problems.keys + 8) * steps) ** 0.5
    errors, far, stored = {}, {}, {}
    for name, right in expected.items():
        mine = problems.padded(name.removeprefix("gradient of "), found[name], right)
        there = right.abs() < torch.finfo(mine.dtype).max / 8
        errors[name] = by_head(name, torch.where(there, mine.double() - right, 0))
        limits, size = torch.finfo(mine.dtype), by_head(name, right)
        stored[name] = ROUNDINGS * (limits.eps * size + limits.tiny * problems.reach())
        far[name] = ~(errors[name] <= stored[name] + ROUNDINGS * bound * size)
    names = [name for name in far if far[name].any()]
    which = torch.stack([each.any(-1) for each in far.values()]).any(0).nonzero().flatten()
    if not names:
        return [], 0
    with oracle.disturbed(LEVEL * bound, 0):
        others = problems.expected(which.repeat(RUNS))
    wrong = []
    for name in names:
        moved = by_head(name, others[name] - expected[name][which.repeat(RUNS)])
        moved = moved.unflatten(0, (RUNS, -1)).amax(0)
        if (far[name][which] & ~(errors[name][which] <= stored[name][which] + FACTOR * moved)).any():
            wrong.append(name)
    return wrong, sum(int(far[name].sum()) for name in names)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="index of the first call")
    options = parser.parse_args()
    torch.set_num_threads(1)
    begun, done, failed, second, index, told = time.perf_counter(), 0, 0, 0, options.first, 0
    while done < options.problems:
        problems = Problems(options.seed, index)
        wrong, needed = check(problems)
        if wrong:
            failed += 1
            print(f"call {index} of seed {options.seed}: {', '.join(wrong)}; {problems.describe()}", flush=True)
        done, second, index = done + problems.count, second + needed, index + 1
        if done // 100_000 > told:
            told = done // 100_000
            print(f"{done} problems in {index - options.first} calls, {failed} failed", flush=True)
    seconds = time.perf_counter() - begun
    print(f"{done} problems in {index - options.first} calls, {failed} failed, {seconds:.0f} s")
    print(f"results of heads judged by the second bound: {second}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
