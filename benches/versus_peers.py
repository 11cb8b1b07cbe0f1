"""What one would use instead, on the same work, side by side.

    python benches/versus_peers.py [--quick] [--threads 2] [--only REGEX] [--output DIR] [--device cpu|cuda]

Times are forward plus backward with the gradients of every parameter, of single applications' inputs and
of sequences' initial states. Every candidate is compared with float64 before it is timed; those of a case
are timed in turn, round after round. ``error`` is the largest over results and gradients, each relative to
its largest entry; ``memory`` is by how much one call raises the peak of a fresh process.
"""

import argparse
import copy
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import rivals
import torch
from measure import interleaved, machine, peak_increment
from torch import Tensor, nn
from torch.nn.functional import pad

import householder.torch as ht

TOLERANCES = 1e-3, 1e-2
"""Of results, by their largest error, and of gradients, by their norm: of ten million ReLUs a few switch elsewhere than
in float64, in every candidate, and a long sequence's gradient jumps there in single entries."""


class Candidate(NamedTuple):
    """``run`` returns the result and its gradients; ``exact`` the same in float64."""

    name: str
    run: Callable[[], tuple[Tensor, ...]]
    exact: Callable[[], tuple[Tensor, ...]]


def gradients(function, leaves, grad):
    def run():
        output = function()
        return output, *torch.autograd.grad(output, leaves, grad)

    return run


@dataclass(frozen=True)
class Sequence:
    """``h_t = relu(W h_{t-1} + V x_t + b)`` for an input of shape (T, B, d)."""

    d: int
    n: int
    m: int
    B: int
    T: int
    ours = "householder.torch.OrthogonalRNN"
    measures_memory = True

    def __str__(self):
        return f"sequence d={self.d} n={self.n} m={self.m} B={self.B} T={self.T}"

    def candidates(self) -> Iterator[Candidate]:
        torch.manual_seed(0)
        x = torch.randn(self.T, self.B, self.d)
        h0 = torch.randn(1, self.B, self.n, requires_grad=True)
        grad = torch.randn(self.T, self.B, self.n)
        layer = ht.OrthogonalRNN(self.d, self.n, num_reflections=self.m, nonlinearity="relu")
        rnn, lstm = nn.RNN(self.d, self.n, nonlinearity="relu"), nn.LSTM(self.d, self.n)
        rnn.load_state_dict(rivals.dense_weights(layer))

        def work(module, x, h0, grad):
            state = (h0, h0) if isinstance(module, nn.LSTM) else h0
            return gradients(lambda: module(x, state)[0], [*module.parameters(), h0], grad)

        for name, module in ((self.ours, layer), ("nn.RNN", rnn), ("nn.LSTM", lstm)):
            double = rivals.DenseTwin(layer) if module is layer else copy.deepcopy(module).double()
            exact = work(double, x.double(), h0.detach().double().requires_grad_(), grad.double())
            yield Candidate(name, work(module, x, h0, grad), exact)


@dataclass(frozen=True)
class Application:
    """``c = W h`` for the rows of an h of shape (B, n)."""

    n: int
    m: int
    B: int
    ours = "householder.torch.apply"
    measures_memory = False

    def __str__(self):
        return f"application n={self.n} m={self.m} B={self.B}"

    def candidates(self) -> Iterator[Candidate]:
        torch.manual_seed(0)
        u = torch.randn(self.n, self.m).tril()
        if self.m == self.n:
            u[-1, -1] = -1
        h, grad = torch.randn(self.B, self.n), torch.randn(self.B, self.n)

        def of_reflections(function, *tensors):
            u, h, grad = (tensor.clone().requires_grad_() for tensor in tensors)
            return gradients(lambda: function(u, h), [u, h], grad.detach())

        def of_module(module, h, grad):
            h = h.clone().requires_grad_()
            return gradients(lambda: module(h), [*module.parameters(), h], grad)

        exact = of_reflections(rivals.with_last_number(rivals.explicit), u.double(), h.double(), grad.double())
        for name, function in {self.ours: ht.apply, **rivals.same_parameters()}.items():
            yield Candidate(name, of_reflections(function, u, h, grad), exact)
        for name, build in rivals.other_parameters().items():
            module = build(self.n)
            double = copy.deepcopy(module).double()
            yield Candidate(name, of_module(module, h, grad), of_module(double, h.double(), grad.double()))


@dataclass(frozen=True)
class Batch:
    """``c = W h`` for ``count`` matrices, one vector each: one call for all."""

    count: int
    n: int
    m: int
    ours = "householder.torch.apply"
    measures_memory = False

    def __str__(self):
        return f"batch count={self.count} n={self.n} m={self.m}"

    def candidates(self) -> Iterator[Candidate]:
        torch.manual_seed(0)
        u = torch.randn(self.count, self.n, self.m).tril().requires_grad_()
        h = torch.randn(self.count, self.n, requires_grad=True)
        grad = torch.randn(self.count, self.n)
        u64, h64 = (tensor.detach().double().requires_grad_() for tensor in (u, h))
        exact = gradients(
            lambda: torch.vmap(lambda u, h: rivals.explicit(u, h[None])[0])(u64, h64), [u64, h64], grad.double()
        )

        def householder_product():
            v, tau = rivals.lapack_form(u)
            w = torch.linalg.householder_product(pad(v, (0, self.n - self.m)), tau)
            return (w @ h.unsqueeze(2)).squeeze(2)

        yield Candidate(self.ours, gradients(lambda: ht.apply(u, h), [u, h], grad), exact)
        yield Candidate("torch.linalg.householder_product", gradients(householder_product, [u, h], grad), exact)


@dataclass(frozen=True)
class Columns:
    """``c = W h`` along m vectors of n entries each, for the rows of an h of shape (B, n)."""

    n: int
    m: int
    B: int
    ours = "householder.torch.apply, shape='full'"
    measures_memory = False

    def __str__(self):
        return f"full columns n={self.n} m={self.m} B={self.B}"

    def candidates(self) -> Iterator[Candidate]:
        torch.manual_seed(0)
        u, h, grad = torch.randn(self.n, self.m), torch.randn(self.B, self.n), torch.randn(self.B, self.n)

        def explicit(u, h):
            for v in reversed(u.unbind(1)):
                h = h - (2 / (v @ v)) * torch.outer(h @ v, v)
            return h

        def work(function, double=False):
            leaves = [(t.double() if double else t.clone()).requires_grad_() for t in (u, h)]
            return gradients(lambda: function(*leaves), leaves, grad.double() if double else grad)

        full = lambda u, h: ht.apply(u, h, shape="full")  # noqa: E731
        exact = work(explicit, double=True)
        yield Candidate(self.ours, work(full), exact)
        if self.m <= self.n:
            trapezoid = rivals.with_last_number(lambda u, h: explicit(u.tril(), h))
            yield Candidate("householder.torch.apply", work(ht.apply), work(trapezoid, double=True))
        yield Candidate("one reflection after the other", work(explicit), exact)


@dataclass(frozen=True)
class Product:
    """The first m columns of ``H_1 .. H_m`` from LAPACK's vectors and ``tau``, with both gradients."""

    count: int
    n: int
    m: int
    ours = "householder.torch.householder_product"
    measures_memory = False

    def __str__(self):
        return f"product count={self.count} n={self.n} m={self.m}"

    def candidates(self) -> Iterator[Candidate]:
        torch.manual_seed(0)
        given = torch.geqrf(torch.randn(self.count, self.n, self.m).squeeze(0))
        grad = torch.randn(self.count, self.n, self.m).squeeze(0)

        def work(function, double=False):
            leaves = [(t.double() if double else t.clone()).requires_grad_() for t in given]
            return gradients(lambda: function(*leaves), leaves, grad.double() if double else grad)

        theirs = torch.linalg.householder_product
        exact = work(theirs, double=True)
        yield Candidate(self.ours, work(ht.householder_product), exact)
        yield Candidate("torch.linalg.householder_product", work(theirs), exact)


@dataclass(frozen=True)
class Reflected:
    """``c = W h`` from LAPACK's vectors and ``tau``, for the rows of an h of shape (B, n), with all gradients."""

    n: int
    m: int
    B: int
    ours = "householder.torch.apply, tau"
    measures_memory = False

    def __str__(self):
        return f"product with vectors n={self.n} m={self.m} B={self.B}"

    def candidates(self) -> Iterator[Candidate]:
        torch.manual_seed(0)
        given = (*torch.geqrf(torch.randn(self.n, self.m)), torch.randn(self.B, self.n))
        grad = torch.randn(self.B, self.n)

        def work(function, double=False):
            leaves = [(t.double() if double else t.clone()).requires_grad_() for t in given]
            return gradients(lambda: function(*leaves), leaves, grad.double() if double else grad)

        def theirs(a, tau, h):
            return h @ torch.linalg.householder_product(pad(a, (0, self.n - self.m)), tau).mT

        exact = work(theirs, double=True)
        yield Candidate(self.ours, work(lambda a, tau, h: ht.apply(a, h, tau=tau)), exact)
        yield Candidate("torch.linalg.householder_product", work(theirs), exact)


CASES = [
    Sequence(2, 128, 16, 50, 400),
    Sequence(1, 256, 32, 50, 784),
    Sequence(64, 512, 32, 64, 512),
    Sequence(64, 512, 64, 64, 512),
    Sequence(49, 512, 510, 1, 300),
    Sequence(49, 512, 64, 1, 300),
    Sequence(2, 128, 128, 50, 400),
    Sequence(1, 256, 256, 50, 784),
    Application(16, 4, 1),
    Application(128, 16, 50),
    Application(256, 32, 50),
    Application(512, 64, 64),
    Application(1024, 64, 256),
    Application(512, 512, 32),
    Application(1024, 1024, 256),
    Batch(1024, 32, 8),
    Columns(128, 16, 50),
    Columns(512, 64, 64),
    Columns(256, 512, 64),
    Reflected(128, 16, 50),
    Reflected(512, 64, 64),
    Product(1, 128, 16),
    Product(1, 512, 64),
    Product(1024, 32, 8),
]
QUICK = [
    Sequence(2, 64, 8, 10, 50),
    Sequence(2, 24, 24, 3, 20),
    Application(64, 8, 10),
    Application(32, 32, 5),
    Batch(8, 16, 4),
    Columns(24, 40, 5),
    Reflected(24, 8, 5),
    Product(4, 16, 4),
]


def largest_error(case, candidate: Candidate) -> float:
    """Return the largest error of results and gradients, each relative to its largest entry, once it is no mistake."""
    largest, in_norm = [], []
    for found, exact in zip(candidate.run(), candidate.exact(), strict=True):
        errors = torch.stack(((found - exact).flatten(), exact.flatten()))
        for norm, kept in ((torch.inf, largest), (2, in_norm)):
            error, size = errors.norm(norm, dim=1)
            kept.append((error / size.clamp(min=1e-30)).item())
    for error, tolerance in zip((largest[0], max(in_norm[1:])), TOLERANCES, strict=True):
        if not error < tolerance:
            raise SystemExit(f"{case}: {candidate.name} is wrong by {error:.2g}")
    return max(largest)


def memory(case, name: str, threads: int) -> float:
    """Return the peak increment in MB of one call, in a process of its own."""
    options = ["--memory-of", name, "--only", f"^{re.escape(str(case))}$", "--threads", str(threads)]
    options += ["--quick"] * (case in QUICK)
    done = subprocess.run([sys.executable, __file__, *options], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1e6


def compare(case, rounds: int, threads: int) -> list[dict]:
    """Check and time the candidates of a case; return a row for each."""
    candidates = list(case.candidates())
    rows = {candidate.name: {"candidate": candidate.name} for candidate in candidates}
    for candidate in candidates:
        rows[candidate.name]["error"] = largest_error(case, candidate)
    for name, (median, minimum) in interleaved({c.name: c.run for c in candidates}, rounds).items():
        rows[name] |= {"median_ms": 1e3 * median, "min_ms": 1e3 * minimum}
    for name, row in rows.items():
        for kind in ("median", "min"):
            row[f"{kind}_ratio"] = row[f"{kind}_ms"] / rows[case.ours][f"{kind}_ms"]
        if case.measures_memory and sys.platform == "linux":
            row["memory_mb"] = memory(case, name, threads)
    return list(rows.values())


def markdown(case, rows: list[dict]) -> str:
    """Return a case's table."""
    heads = ["median, ms", "times ours", "min, ms", "times ours", "error"]
    keys = {"median_ms": ".3g", "median_ratio": ".2f", "min_ms": ".3g", "min_ratio": ".2f", "error": ".1e"}
    if all("memory_mb" in row for row in rows):
        heads, keys = [*heads, "memory, MB"], keys | {"memory_mb": ".1f"}
    lines = [f"### {case}", "", f"| | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    table = [[row["candidate"], *(format(row[key], how) for key, how in keys.items())] for row in rows]
    lines += [f"| {' | '.join(cells)} |" for cells in table]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small cases and few rounds, to see that everything runs")
    parser.add_argument("--threads", type=int, default=2, help="of torch and householder (default: 2)")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose title matches, e.g. 'sequence.*n=128'")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write versus_peers.json and versus_peers.md there")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: by householder gpu-check")
    parser.add_argument("--memory-of", metavar="CANDIDATE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cuda":
        if ignored := [f"--{name}" for name in ("only", "threads") if vars(options)[name] != parser.get_default(name)]:
            parser.error(f"--device cuda times all of its own cases; leave out {', '.join(ignored)}")
        from householder.cli import main as householder

        quick = ["--quick"] if options.quick else []
        sys.exit(householder(["gpu-check", "--only-timings", "--output", str(options.output or "."), *quick]))
    torch.set_num_threads(options.threads)
    cases = [case for case in (QUICK if options.quick else CASES) if re.search(options.only, str(case))]
    if options.memory_of:
        (run,) = (c.run for case in cases for c in case.candidates() if c.name == options.memory_of)
        run()
        print(peak_increment(run))
        return
    about = machine(options.threads)
    text = "".join(f"- {heading}: {value}\n" for heading, value in about.items())
    print(text)
    results = []
    for case in cases:
        rows = compare(case, 3 if options.quick else 20, options.threads)
        results.append({"case": str(case), "rows": rows})
        print(markdown(case, rows), flush=True)
        text += "\n" + markdown(case, rows)
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "versus_peers.json").write_text(json.dumps({"machine": about, "cases": results}, indent=2))
        (options.output / "versus_peers.md").write_text(text)


if __name__ == "__main__":
    main()
