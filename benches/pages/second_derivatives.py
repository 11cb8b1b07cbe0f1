"""A gradient penalty through a recurrence, compared with ``torch.nn.RNN`` of as many units.

    python -m benches.pages.second_derivatives [--threads 1] [--rounds 15]

The penalty is the squared gradient of a loss with respect to the inputs. Loss, penalty and the gradients of the penalty
for all parameters are timed. Times are the processor's, medians of interleaved rounds.
"""

import torch
from torch import nn

import householder.torch as ht
from benches.measure import clock, heading, interleaved, options, row

SHAPES = [(10, 4, 8, 4), (20, 8, 32, 8), (50, 32, 128, 16), (50, 32, 128, 128), (100, 8, 32, 8), (200, 64, 256, 32)]


def penalty(layer, x):
    slope = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)[0]
    return torch.autograd.grad(slope.square().sum(), list(layer.parameters()))


def main():
    chosen = options(__doc__, threads=1, rounds=15)
    torch.manual_seed(0)
    heading(chosen.threads, "T", "batch", "n", "m", "OrthogonalRNN, ms", "nn.RNN, ms", "ratio")
    for steps, batch, n, m in SHAPES:
        layers = {
            "OrthogonalRNN": ht.OrthogonalRNN(8, n, num_reflections=m, nonlinearity="tanh"),
            "nn.RNN": nn.RNN(8, n),
        }
        x = torch.randn(steps, batch, 8, requires_grad=True)
        calls = {name: lambda layer=layer, x=x: penalty(layer, x) for name, layer in layers.items()}
        times = interleaved(calls, chosen.rounds, clock=clock(chosen.threads))
        ours, theirs = (1e3 * times[name].median for name in layers)
        row(steps, batch, n, m, ours, theirs, ours / theirs)


if __name__ == "__main__":
    main()
