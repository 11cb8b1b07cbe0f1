"""One step at a time, without gradients: a recurrence whose inputs arrive one after the other.

    python benches/streaming.py [--rounds 15]

The rivals are torch.nn.RNNCell, the same cell in torch operations, and the step in NumPy, all with a dense matrix.
Times are the processor's on one thread, medians of interleaved rounds.
"""

import argparse
import time

import numpy as np
import torch
from measure import interleaved, machine
from torch import nn

import householder as hh
import householder.torch as ht

SHAPES = [(32, 32), (64, 8), (128, 16), (256, 32), (512, 64), (512, 512)]
WIDTH = 8


def in_numpy(n, m):
    rng = np.random.default_rng(0)
    u, v, bias, x, h = (rng.standard_normal(shape).astype("f4") for shape in ((n, m), (n, WIDTH), n, WIDTH, n))
    recurrence, w = hh.Recurrence(u, input_weight=v, bias=bias, nonlinearity="tanh"), hh.matrix(u)
    return {"Recurrence": lambda: recurrence.step(h, x), "NumPy": lambda: np.tanh(w @ h + v @ x + bias)}


def in_torch(n, m):
    x, h = torch.randn(1, WIDTH), torch.randn(1, n)
    options = {"num_reflections": m, "nonlinearity": "tanh"}
    cell, layer = ht.OrthogonalRNNCell(WIDTH, n, **options), ht.OrthogonalRNN(WIDTH, n, **options)
    rival, rivals = nn.RNNCell(WIDTH, n), nn.RNN(WIDTH, n)
    w, v, bias = cell.matrix().mT.contiguous(), cell.weight_ih.mT.contiguous(), cell.bias
    return {
        "OrthogonalRNNCell": lambda: cell(x, h),
        "nn.RNNCell": lambda: rival(x, h),
        "torch operations": lambda: torch.tanh_(torch.addmm(torch.addmm(bias, x, v), h, w)),
        "OrthogonalRNN": lambda: layer(x[None], h[None]),
        "nn.RNN": lambda: rivals(x[None], h[None]),
    }


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    hh.set_num_threads(1)
    torch.manual_seed(0)
    print(" | ".join(f"{heading}: {text}" for heading, text in machine(1).items()))
    for number, (n, m) in enumerate(SHAPES):
        times = interleaved(in_numpy(n, m) | in_torch(n, m), rounds, clock=time.process_time)
        if number == 0:
            print("| n, m | " + " | ".join(f"{name}, us" for name in times) + " |\n|" + "---|" * (len(times) + 1))
        print(f"| {n}, {m} | " + " | ".join(f"{1e6 * t.median:.3g}" for t in times.values()) + " |")


if __name__ == "__main__":
    main()
