"""Rounding errors beside LAPACK's, on the same inputs.

    python benches/numerics.py [--sizes 128 1024] [--output docs/numerics.md]

LAPACK is ``torch.linalg.householder_product`` with autograd, on ``a = v / v_jj`` and ``tau = 2 / |a|^2``. Errors are
norms of differences relative to norms, against Algorithm 1 in the next wider precision (float64, long double).
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from rivals import lapack_form

import householder as hh
from householder import reference

ROWS = 4
BEGIN, END = "<!-- numerics.py: begin -->\n", "<!-- numerics.py: end -->\n"
WIDER = {np.dtype(np.float32): np.float64, np.dtype(np.float64): np.longdouble}
COLUMNS = ["input", "n", "m", "dtype", "by", "max &#124;W'W - I&#124;", "c", "dL/dU", "dL/dh"]


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--output", type=Path, help="a Markdown file whose table is replaced; else standard output")
    arguments = parser.parse_args()
    rows = [COLUMNS, ["---"] * len(COLUMNS)]
    with np.errstate(all="ignore"):
        for line in lines(arguments.sizes):
            print(*line, file=sys.stderr, flush=True)
            rows.append(line)
    table = "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)
    if arguments.output is None:
        print(table)
        return
    before, _, rest = arguments.output.read_text().partition(BEGIN)
    arguments.output.write_text(before + BEGIN + table + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
