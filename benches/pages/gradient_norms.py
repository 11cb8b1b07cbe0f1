"""How far back in time gradients reach: the norm of ``dL/dx_t`` against the distance to the loss.

    python -m benches.pages.gradient_norms [--steps 400] [--output docs/gradient-norms.svg]

A loss of the last state alone, ``L = <w, h_T>`` for a random w, 128 units, batches of 20 sequences of Gaussian inputs,
networks as they are before training. A norm is that of ``dL/dx_t`` relative to ``dL/dx_T``, the median of three seeds.
"""

from pathlib import Path
from statistics import median

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import nn

import householder.torch as ht
from benches.measure import options

PAGE = Path(__file__).parents[2] / "docs" / "gradient-norms.svg"
UNITS, BATCH, SEEDS = 128, 20, 3
SMALLEST = 1e-16
"""Norms below this are drawn here: float32 cannot add them to others."""


def with_orthogonal_start():
    """nn.RNN whose recurrent matrix is orthogonal before training."""
    rnn = nn.RNN(UNITS, UNITS)
    nn.init.orthogonal_(rnn.weight_hh_l0)
    return rnn


def ours(nonlinearity, num_reflections=None):
    return lambda: ht.OrthogonalRNN(UNITS, UNITS, num_reflections=num_reflections, nonlinearity=nonlinearity)


NETWORKS = {
    "OrthogonalRNN, OPLU": ours("oplu"),
    "OrthogonalRNN, modReLU (bias 0)": ours("modrelu"),
    "OrthogonalRNN, leaky ReLU (default)": ours("leaky_relu"),
    "OrthogonalRNN, tanh": ours("tanh"),
    "nn.LSTM": lambda: nn.LSTM(UNITS, UNITS),
    "nn.RNN, orthogonal start": with_orthogonal_start,
    "nn.RNN": lambda: nn.RNN(UNITS, UNITS),
}
DASHED = {name for name in NETWORKS if name.startswith("nn.")}


def norms(make, steps, seed):
    """The norms of ``dL/dx_t``, from the last step to the first, relative to that of the last."""
    torch.manual_seed(seed)
    network = make()
    x = torch.randn(steps, BATCH, UNITS, requires_grad=True)
    h = network(x)[0][-1]
    (torch.randn(UNITS) @ h.sum(0)).backward()
    found = x.grad.flip(0).flatten(1).double().norm(dim=1)
    return (found / found[0]).tolist()


def main():
    chosen = options(__doc__, threads=1, steps=400, output=PAGE)
    mpl.rcParams |= {"svg.hashsalt": "", "svg.fonttype": "none"}
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    print(f"{'network':38}{'10 steps':>10}{'100 steps':>11}{f'{chosen.steps - 1} steps':>12}")
    for name, make in NETWORKS.items():
        lines = [norms(make, chosen.steps, seed) for seed in range(SEEDS)]
        line = [median(values) for values in zip(*lines, strict=True)]
        far = [line[min(distance, chosen.steps - 1)] for distance in (10, 100, chosen.steps - 1)]
        print(f"{name:38}{far[0]:10.1e}{far[1]:11.1e}{far[2]:12.1e}", flush=True)
        axes.plot([max(value, SMALLEST) for value in line], label=name, linestyle="--" if name in DASHED else "-")
    axes.set(yscale="log", ylim=(SMALLEST, 30), xlabel="steps between an input and the loss")
    axes.set_ylabel("norm of the gradient, relative")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    figure.savefig(chosen.output, metadata={"Date": None})
    print(f"figure: {chosen.output}")


if __name__ == "__main__":
    main()
