"""Many small matrices in one call, compared with the same reflections in plain JAX, compiled, and in torch.

    taskset -c 0 python benches/small_matrices.py [--rounds 20]

One thread: JAX's is that of the processor which ``taskset`` leaves. Each matrix has one vector. Gradients are those of
``u`` and ``h``. The loops over reflections are the natural ones, ``h - 2 v (v' h) / (v' v)``, for all matrices at once.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import torch
from measure import interleaved

import householder as hh
import householder.torch as ht

CASES = ((1024, 8, 8), (100_000, 4, 3), (16384, 8, 4), (1024, 32, 8), (16384, 16, 16))


def product(u, h, tril, where):
    """``W h`` of one matrix (JAX) or of all (torch)."""
    n, m = u.shape[-2:]
    v = tril(u)
    if m == n:  # the last column is a number
        h = where(n - 1, h, h * u[..., n - 1, n - 1, None])
    for j in reversed(range(min(m, n - 1))):
        a = v[..., j]
        h = h - a * (2 * (a * h).sum(-1) / (a * a).sum(-1))[..., None]
    return h


def by_jax(u, h):
    def all_of(u, h):
        return jax.vmap(
            lambda u, h: product(u, h, jnp.tril, lambda i, a, b: jnp.where(jnp.arange(a.shape[-1]) == i, b, a))
        )(u, h)

    forward = jax.jit(all_of)

    @jax.jit
    def both(u, h, g):
        return jax.value_and_grad(lambda u, h: (all_of(u, h) * g).sum(), (0, 1))(u, h)

    a, b = jnp.asarray(u), jnp.asarray(h)
    return (
        lambda: jax.block_until_ready(forward(a, b)),
        lambda: jax.block_until_ready(both(a, b, b)),
    )


def by_torch(function, u, h):
    u, h = torch.from_numpy(u), torch.from_numpy(h)
    leaves = u.clone().requires_grad_(), h.clone().requires_grad_()
    return (
        lambda: function(u, h),
        lambda: torch.autograd.grad(function(*leaves), leaves, h),
    )


def in_torch(u, h):
    return product(u, h, torch.tril, lambda i, a, b: torch.where(torch.arange(a.shape[-1]) == i, b, a))


def candidates(count, n, m):
    """Return {(what, by): call}."""
    rng = np.random.default_rng(0)
    u, h = (rng.standard_normal(shape).astype(np.float32) for shape in ((count, n, m), (count, n)))
    u = np.tril(u)
    jax_forward, jax_both = by_jax(u, h)
    ours, ours_both = by_torch(ht.apply, u, h)
    plain, plain_both = by_torch(in_torch, u, h)
    np.testing.assert_allclose(jax_forward(), hh.forward(u, h), rtol=0, atol=1e-4)

    def numpy_both():
        c = hh.forward(u, h)
        return c, hh.backward(u, h, h)

    return {
        ("forward", "householder"): lambda: hh.forward(u, h),
        ("forward", "householder.torch"): ours,
        ("forward", "JAX, compiled"): jax_forward,
        ("forward", "torch"): plain,
        ("both", "householder"): numpy_both,
        ("both", "householder.torch"): ours_both,
        ("both", "JAX, compiled"): jax_both,
        ("both", "torch"): plain_both,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--divide", type=int, default=1, help="of how many matrices one is taken")
    options = parser.parse_args()
    torch.set_num_threads(1)
    hh.set_num_threads(1)
    print("| matrices | | by | median, ms | times ours | min, ms | times ours |\n|---|---|---|---|---|---|---|")
    for count, n, m in CASES:
        times = interleaved(candidates(count // options.divide, n, m), options.rounds)
        for (what, by), (median, least) in times.items():
            ours = times[what, "householder"]
            ratios = f"{median * 1e3:.3f} | {median / ours[0]:.1f} | {least * 1e3:.3f} | {least / ours[1]:.1f}"
            print(f"| {count} of {n} x {m} | {what} | {by} | {ratios} |")


if __name__ == "__main__":
    main()
