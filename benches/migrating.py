"""What FastH and torch-householder compute, by themselves and by householder, in one run.

    python benches/migrating.py [--threads 1] [--size 512] [--batch 32] [--rounds 7]

FastH's own kernels are for GPUs. Its loop, reflection by reflection, and its blocks are written in torch here.
torch-householder takes part where it is installed. Candidates of a work are first compared with each other. Times are
the processor's, of forward plus backward, medians of interleaved rounds.
"""

import argparse
import time
from importlib.util import find_spec

import rivals
import torch
from measure import interleaved, machine

import householder.torch as ht


def applications(n, batch):
    """``W h`` for as many reflections as coordinates, the last a sign."""
    u = torch.randn(n, n).tril()
    u[-1, -1] = 1.0
    leaves = u.requires_grad_(), torch.randn(batch, n, requires_grad=True)
    functions = {
        "ht.apply": ht.apply,
        "FastH's loop": rivals.with_last_number(rivals.explicit),
        "FastH's blocks": rivals.with_last_number(rivals.Blocked.apply),
    }
    if find_spec("torch_householder"):
        functions["torch_householder_orgqr, then a product"] = rivals.with_last_number(rivals.torch_householder)
    return leaves, functions


def frames(n, m):
    """The first m columns of a product of m reflections."""
    u = torch.randn(n, m).tril(-1) + torch.eye(n, m)
    functions = {"ht.frame": ht.frame}
    if find_spec("torch_householder"):
        from torch_householder import torch_householder_orgqr

        functions["torch_householder_orgqr"] = lambda u: torch_householder_orgqr(u.tril())
    return (u.requires_grad_(),), functions


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    n = options.size
    works = {
        f"{n} reflections, {options.batch} vectors": applications(n, options.batch),
        f"frame of {4 * n} x {n // 4}": frames(4 * n, n // 4),
    }
    print(" | ".join(f"{heading}: {text}" for heading, text in machine(options.threads).items()))
    print("| | | median, ms | times ours |\n|---|---|---|---|")
    for work, (leaves, functions) in works.items():

        def call(function, leaves=leaves):
            y = function(*leaves)
            return y, *torch.autograd.grad(y, leaves, torch.ones_like(y))

        calls = {name: lambda function=function, call=call: call(function) for name, function in functions.items()}
        ours, *others = (run() for run in calls.values())
        for other in others:
            for found, expected in zip(other, ours, strict=True):
                # torch-householder has gradients above the diagonal as well
                torch.testing.assert_close(found.tril(), expected.tril(), atol=1e-3, rtol=1e-3)
        times = interleaved(calls, options.rounds, at_least=3, clock=time.process_time)
        fastest = next(iter(times.values())).median
        for name, taken in times.items():
            print(f"| {work} | {name} | {1e3 * taken.median:.3g} | {taken.median / fastest:.1f} |")


if __name__ == "__main__":
    main()
