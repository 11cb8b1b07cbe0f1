"""LAPACK's products of reflections beside ours: W itself, and W applied to few vectors.

    python benches/lapack.py [--sizes 512 1024] [--vectors 1 4 8] [--rounds 15] [--dtypes float32]

One thread, processor time, minima of interleaved rounds. LAPACK (``householder_product`` and ``ormqr``, MKL's in
torch's wheels) gets columns with ones on the diagonal and ``tau``, so that it computes no norms. ``nn.Linear``
multiplies by a matrix that is already there. The last column says where fewer vectors take more time than the next
larger number of them.
"""

import argparse
import time

import numpy as np
import torch
from measure import interleaved

import householder as hh
import householder.torch as ht

FALL = 0.95
"""Times that differ by less are equal."""


def problem(n, m, dtype):
    """Return u and LAPACK's columns and ``tau`` of the same product of reflections."""
    u = np.tril(np.random.default_rng(0).standard_normal((n, m))).astype(dtype)
    v = np.zeros((n, n), dtype)
    v[:, :m] = u / np.diagonal(u)
    tau = 2 / np.square(v[:, :m]).sum(0)
    return u, torch.from_numpy(np.asfortranarray(v)), torch.from_numpy(tau.astype(dtype))


def minima(calls, rounds):
    times = interleaved(calls, rounds, clock=time.process_time)
    return {name: 1e6 * times[name].minimum for name in calls}


def matrices(sizes, dtypes, rounds):
    print("| W of | dtype | `hh.matrix`, ms | with gradient | LAPACK, ms | LAPACK / ours |\n|---|---|---|---|---|---|")
    for dtype in dtypes:
        for n in sizes:
            u, v, tau = problem(n, n - 1, dtype)
            grad = torch.from_numpy(np.random.default_rng(1).standard_normal((n, n)).astype(dtype))
            leaf = torch.from_numpy(u).requires_grad_()
            calls = {
                "ours": lambda u=u: hh.matrix(u),
                "both": lambda leaf=leaf, grad=grad: torch.autograd.grad(ht.matrix(leaf), leaf, grad),
                "LAPACK": lambda v=v, tau=tau: torch.linalg.householder_product(v, tau),
            }
            ours, both, lapack = (us / 1000 for us in minima(calls, rounds).values())
            print(f"| ({n}, {n - 1}) | {dtype} | {ours:.3g} | {both:.3g} | {lapack:.3g} | {lapack / ours:.2f} |")


def vectors(sizes, counts, dtypes, rounds):
    print("\n| n = m | vectors | dtype | `hh.forward`, us | LAPACK | `nn.Linear` | with gradients | `nn.Linear` | |")
    print("|---|---|---|---|---|---|---|---|---|")
    for dtype in dtypes:
        for n in sizes:
            u, v, tau = problem(n, n, dtype)
            rng = np.random.default_rng(2)
            calls = {}
            for count in counts:
                h, g = (rng.standard_normal((count, n)).astype(dtype) for _ in range(2))
                x, grad = (torch.from_numpy(array) for array in (h, g))
                linear = torch.nn.Linear(n, n, bias=False, dtype=x.dtype)
                leaves = [linear.weight, x.clone().requires_grad_()]

                def both(u=u, h=h, g=g):
                    hh.forward(u, h)
                    hh.backward(u, h, g)

                def trained(linear=linear, leaves=leaves, grad=grad):
                    torch.autograd.grad(linear(leaves[1]), leaves, grad)

                columns = x.T  # column after column
                calls |= {
                    (count, "ours"): lambda u=u, h=h: hh.forward(u, h),
                    (count, "LAPACK"): lambda v=v, tau=tau, c=columns: torch.ormqr(v, tau, c),
                    (count, "linear"): torch.no_grad()(lambda linear=linear, x=x: linear(x)),
                    (count, "both"): both,
                    (count, "trained"): trained,
                }
            us = minima(calls, rounds)
            for count, following in zip(counts, [*counts[1:], None], strict=True):
                row = [us[count, name] for name in ("ours", "LAPACK", "linear", "both", "trained")]
                pairs = [(us[count, name], us.get((following, name))) for name in ("ours", "both")]
                falls = any(after is not None and after < FALL * before for before, after in pairs)
                cells = " | ".join(f"{x:.3g}" for x in row)
                print(f"| {n} | {count} | {dtype} | {cells} | {'falls' if falls else ''} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512, 1024, 2048])
    parser.add_argument("--vectors", type=int, nargs="+", default=[1, 2, 4, 8, 12, 16, 32])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hh.set_num_threads(1)
    matrices(options.sizes, options.dtypes, options.rounds)
    vectors(options.sizes, options.vectors, options.dtypes, options.rounds)


if __name__ == "__main__":
    main()
