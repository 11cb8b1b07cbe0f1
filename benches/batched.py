"""Many small matrices in one call, compared with torch's batched LAPACK routines.

    python benches/batched.py [--count 1024] [--size 32] [--reflections 8] [--threads 1] [--rounds 20]

``householder_product`` multiplies reflectors, ``ormqr`` applies them. Both take them as LAPACK stores them; only times
with gradients count the conversion. Reflectors padded with zeros give all n columns of W, others the first m.
"""

import argparse

import torch
from measure import interleaved
from rivals import lapack_form
from torch.nn.functional import pad

import householder as hh
import householder.torch as ht


def product(u):
    """Form all columns of W."""
    v, tau = lapack_form(u)
    return torch.linalg.householder_product(pad(v, (0, u.shape[1] - u.shape[2])), tau)


def candidates(count, n, m, dtype):
    """Return {(what, by): call}."""
    torch.manual_seed(0)
    u, h = torch.randn(count, n, m, dtype=dtype).tril(), torch.randn(count, n, dtype=dtype)
    v, tau = lapack_form(u)
    padded, column = pad(v, (0, n - m)), h.unsqueeze(2)
    torch.testing.assert_close(ht.matrix(u), torch.linalg.householder_product(padded, tau), rtol=0, atol=1e-5)
    leaf, vectors = u.clone().requires_grad_(), h.clone().requires_grad_()
    grad_w, grad_c = torch.randn(count, n, n, dtype=dtype), torch.randn(count, n, dtype=dtype)
    forward = {
        ("W", "ours"): lambda: ht.matrix(u),
        ("W", "householder_product"): lambda: torch.linalg.householder_product(padded, tau),
        ("W", "householder_product, m columns"): lambda: torch.linalg.householder_product(v, tau),
        ("W h", "ours"): lambda: ht.apply(u, h),
        ("W h", "householder_product"): lambda: torch.linalg.householder_product(padded, tau) @ column,
        ("W h", "ormqr"): lambda: torch.ormqr(v, tau, column),
    }
    both = {
        ("W and gradient", "ours"): lambda: torch.autograd.grad(ht.matrix(leaf), leaf, grad_w),
        ("W and gradient", "householder_product"): lambda: torch.autograd.grad(product(leaf), leaf, grad_w),
        ("W h and gradients", "ours"): lambda: torch.autograd.grad(ht.apply(leaf, vectors), (leaf, vectors), grad_c),
        ("W h and gradients", "householder_product"): lambda: torch.autograd.grad(
            (product(leaf) @ vectors.unsqueeze(2)).squeeze(2), (leaf, vectors), grad_c
        ),
    }
    return forward | both


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("count", 1024), ("size", 32), ("reflections", 8), ("threads", 1), ("rounds", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    hh.set_num_threads(options.threads)
    print("| | dtype | by | median, ms | times ours | min, ms | times ours |\n|---|---|---|---|---|---|---|")
    for dtype in (torch.float32, torch.float64):
        calls = candidates(options.count, options.size, options.reflections, dtype)
        times = interleaved(calls, options.rounds)
        for (what, by), (median, least) in times.items():
            ours = times[what, "ours"]
            ratios = f"{median * 1e3:.2f} | {median / ours[0]:.1f} | {least * 1e3:.2f} | {least / ours[1]:.1f}"
            print(f"| {what} | {str(dtype).removeprefix('torch.')} | {by} | {ratios} |")


if __name__ == "__main__":
    main()
