"""Rounding errors, compared with LAPACK's on the same inputs.

    python -m benches.pages.numerics [--sizes 128 1024] [--output docs/numerics.md]

LAPACK is ``torch.linalg.householder_product`` with autograd, on ``a = v / v_jj`` and ``tau = 2 / |a|^2``. Errors are
norms of differences relative to norms, against Algorithm 1 in the next wider precision (float64, long double).

A second table tells, in float32, how orthogonal ``W`` is and how far the length of a state drifts over many steps of a
recurrence without nonlinearity, compared with a ``W`` that was formed in float64 and rounded. Its figures are the worst
of several seeds.
"""

import sys
from pathlib import Path

import numpy as np
import torch

import householder as hh
from benches.measure import options
from benches.rivals import lapack_form
from householder import reference

ROWS = 4
SEEDS = 12
STEPS = 10_000
WIDER = {np.dtype(np.float32): np.float64, np.dtype(np.float64): np.longdouble}
COLUMNS = ["input", "n", "m", "dtype", "by", "max &#124;W'W - I&#124;", "c", "dL/dU", "dL/dh"]
DRIFT_COLUMNS = [
    "n", "m", "max &#124;W'W - I&#124;", "the same, rounded W", "drift", "drift, method=\"wy\"", "drift, rounded W"
]  # fmt: skip


def random(rng, n, m):
    return rng.standard_normal((n, m))


def collinear(rng, n, m):
    """1e-6 apart."""
    below = np.arange(n)[:, None] >= m
    return below * rng.standard_normal((n, 1)) + 1e-6 * rng.standard_normal((n, m))


def duplicated(rng, n, m):
    below = np.arange(n)[:, None] >= m
    return below * np.repeat(rng.standard_normal((n, -(-m // 2))), 2, axis=1)[:, :m]


def tiny(rng, n, m):
    return 1e-30 * random(rng, n, m)


def huge(rng, n, m):
    return 1e30 * random(rng, n, m)


def vanishing(rng, n, m):
    """Every third column zero, every third denormal in float32 and in float64."""
    u = random(rng, n, m)
    u[:, ::3] = 0
    u[:, 1::3] = 1e-310
    return u


INPUTS = {
    "random": random,
    "collinear, 1e-6 apart": collinear,
    "duplicated": duplicated,
    "times 1e-30": tiny,
    "times 1e30": huge,
    "zero and denormal": vanishing,
}


def exact(u, h, g):
    """c, dL/dU and dL/dh in wider precision; what vanishes in u's own precision is zero."""
    wider = WIDER[u.dtype]
    kept = np.tril(u) * (hh.normalize(u) != 0).any(axis=0)
    u, h, g = (a.astype(wider) for a in (kept, h, g))
    states = reference.tape(u, h)
    return states[0], *reference.backward_algorithm_1(u, h, states, g)[:2]


def ours(u, h, g):
    grads = hh.backward(u, h, g)
    return hh.matrix(u), hh.forward(u, h), grads.u, grads.h


def lapack(u, h, g):
    u, h, g = (torch.from_numpy(a) for a in (u, h, g))
    u.requires_grad_()
    h.requires_grad_()
    n, m = u.shape
    v = u.tril()[:, : m - (m == n)]
    a, tau = lapack_form(v)
    q = torch.linalg.householder_product(
        torch.cat([a, a.new_zeros(n, n - len(tau))], 1), torch.cat([tau, tau.new_zeros(n - len(tau))])
    )
    w = torch.cat([q[:, :-1], q[:, -1:] * u[-1, -1]], 1) if m == n else q
    c = h @ w.mT
    return tuple(t.detach().numpy() for t in (w, c, *torch.autograd.grad(c, (u, h), g)))


def orthogonality(w):
    """max |W'W - I| over 64 columns, in wider precision."""
    w = w.astype(WIDER[w.dtype])
    some = np.linspace(0, len(w) - 1, min(len(w), 64)).astype(int)
    return abs(w.T @ w[:, some] - np.eye(len(w))[:, some]).max()


def error(actual, expected):
    scale = abs(expected).max()
    return np.linalg.norm((actual - expected) / scale) / np.linalg.norm(expected / scale)


def lines(sizes):
    for name, make in INPUTS.items():
        for n in sizes:
            m = n if make is random else n // 2
            for dtype in WIDER:
                rng = np.random.default_rng(n)
                u = make(rng, n, m).astype(dtype)
                if m == n:
                    u[-1, -1] = -1
                h, g = (rng.standard_normal((ROWS, n)).astype(dtype) for _ in range(2))
                expected = exact(u, h, g)
                for by, candidate in (("householder", ours), ("LAPACK", lapack)):
                    w, *results = candidate(u, h, g)
                    errors = [orthogonality(w), *map(error, results, expected)]
                    yield [name, n, m, dtype, by, *(f"{e:.1e}" for e in errors)]


def drift(u, h0, **options):
    x = np.zeros((STEPS, 1, len(u)), u.dtype)
    h = hh.rnn(u, x, h0, nonlinearity="identity", **options)[0][-1].astype(float)
    return abs(np.linalg.norm(h) / np.linalg.norm(h0.astype(float)) - 1)


def drift_of_matrix(w, h0):
    """Of the same steps by float32 products with ``w``."""
    h = h0
    for _ in range(STEPS):
        h = h @ w.T
    return abs(np.linalg.norm(h.astype(float)) / np.linalg.norm(h0.astype(float)) - 1)


def recurrent_lines():
    for n in (2, 8, 64, 256):
        for m in sorted({max(1, n // 8), n}):
            worst = np.zeros(5)
            for seed in range(SEEDS):
                rng = np.random.default_rng(seed)
                u = hh.snap(rng.standard_normal((n, m)).astype(np.float32))
                h0 = rng.standard_normal((1, n)).astype(np.float32)
                w, rounded = hh.matrix(u), hh.matrix(u.astype(float)).astype(np.float32)
                figures = [orthogonality(w), orthogonality(rounded)]
                figures += [drift(u, h0), drift(u, h0, method="wy"), drift_of_matrix(rounded, h0)]
                worst = np.maximum(worst, figures)
            yield [n, m, *(f"{figure:.1e}" for figure in worst)]


def table(columns, lines):
    rows = [columns, ["---"] * len(columns)]
    for line in lines:
        print(*line, file=sys.stderr, flush=True)
        rows.append(line)
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


def main():
    arguments = options(__doc__, threads=2, sizes=[128, 1024], output=Path)
    with np.errstate(all="ignore"):
        tables = {"errors": table(COLUMNS, lines(arguments.sizes)), "drift": table(DRIFT_COLUMNS, recurrent_lines())}
    for name, text in tables.items():
        if arguments.output is None:
            print(text)
            continue
        begin, end = (f"<!-- numerics.py: {name}, {edge} -->\n" for edge in ("begin", "end"))
        before, _, rest = arguments.output.read_text().partition(begin)
        arguments.output.write_text(before + begin + text + end + rest.partition(end)[2])


if __name__ == "__main__":
    main()
