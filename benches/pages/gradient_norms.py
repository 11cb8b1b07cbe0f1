"""How far back in time gradients reach, before and after training: the norm of ``dL/dx_t`` against the distance.

    python -m benches.pages.gradient_norms [--steps 400] [--updates 500] [--output docs/gradient-norms.svg]

A loss of the last state alone, ``L = <w, h_T>`` for a random w, 128 units, batches of 20 sequences of Gaussian inputs.
A norm is that of ``dL/dx_t`` relative to ``dL/dx_T``, the median of three seeds. In between, each network learns to
copy ten symbols after 100 steps, by so many updates of Adam with a rate of 0.001 and gradients clipped at 1. The
symbols are its first ten inputs; the other inputs are 0 meanwhile, so their weights keep their random start.
"""

from pathlib import Path
from statistics import median

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

import householder.torch as ht
from benches.measure import options
from householder_experiments.models.free import FreeRNN
from householder_experiments.tasks.copying import CopySettings

PAGE = Path(__file__).parents[2] / "docs" / "gradient-norms.svg"
UNITS, BATCH, SEEDS = 128, 20, 3
DISTANCES = (10, 100, 399)
RANGE = (1e-12, 1e6)
"""Norms outside are drawn at the border."""


def with_orthogonal_start():
    """nn.RNN whose recurrent matrix is orthogonal before training."""
    rnn = nn.RNN(UNITS, UNITS)
    nn.init.orthogonal_(rnn.weight_hh_l0)
    return rnn


def ours(nonlinearity):
    return lambda: ht.OrthogonalRNN(UNITS, UNITS, nonlinearity=nonlinearity)


NETWORKS = {
    "OrthogonalRNN, OPLU": ours("oplu"),
    "OrthogonalRNN, modReLU": ours("modrelu"),
    "OrthogonalRNN, leaky ReLU (default)": ours("leaky_relu"),
    "OrthogonalRNN, tanh": ours("tanh"),
    "free matrix, orthogonal start, OPLU": lambda: FreeRNN(UNITS, UNITS, "oplu"),
    "nn.RNN (tanh), orthogonal start": with_orthogonal_start,
    "nn.RNN (tanh)": lambda: nn.RNN(UNITS, UNITS),
    "nn.LSTM": lambda: nn.LSTM(UNITS, UNITS),
}
DASHED = {name for name in NETWORKS if not name.startswith("OrthogonalRNN")}


def train(network, updates, seed):
    """Train a network on the copying task with a delay of 100; a random readout is trained with it."""
    task = CopySettings().load()
    readout = nn.Linear(UNITS, task.output_size)
    parameters = [*network.parameters(), *readout.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.001)
    random = np.random.default_rng(seed)
    for _ in range(updates):
        batch = task.draw(random, BATCH)
        inputs = nn.functional.pad(batch.inputs, (0, UNITS - task.input_size))
        loss = task.loss(readout(network(inputs)[0]), batch.targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()


def norms(network, steps):
    """The norms of ``dL/dx_t``, from the last step to the first, relative to that of the last."""
    x = torch.randn(steps, BATCH, UNITS, requires_grad=True)
    h = network(x)[0][-1]
    (torch.randn(UNITS) @ h.sum(0)).backward()
    of_steps = x.grad.flip(0).flatten(1).double().norm(dim=1)
    return (of_steps / of_steps[0]).tolist()


def before_and_after(make, steps, updates):
    """The medians of the norms over the seeds, before and after training."""
    before, after = [], []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        network = make()
        before.append(norms(network, steps))
        train(network, updates, seed)
        after.append(norms(network, steps))
    return [[median(values) for values in zip(*lines, strict=True)] for lines in (before, after)]


def main():
    chosen = options(__doc__, threads=1, steps=400, updates=500, output=PAGE)
    mpl.rcParams |= {"svg.hashsalt": "", "svg.fonttype": "none"}
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    distances = [min(distance, chosen.steps - 1) for distance in DISTANCES]
    heads = "".join(f"{f'{distance} steps':>11}" for distance in distances)
    print(f"{'network':38}{heads}{heads}  (before, after {chosen.updates} updates)")
    for name, make in NETWORKS.items():
        lines = before_and_after(make, chosen.steps, chosen.updates)
        print(f"{name:38}" + "".join(f"{line[distance]:11.1e}" for line in lines for distance in distances), flush=True)
        for axes, line in zip(panels, lines, strict=True):
            axes.plot(np.clip(line, *RANGE), label=name, linestyle="--" if name in DASHED else "-")
    for axes, title in zip(panels, ("before training", f"after {chosen.updates} updates"), strict=True):
        axes.set(yscale="log", ylim=RANGE, xlabel="steps between an input and the loss", title=title)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("norm of the gradient, relative")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(chosen.output, metadata={"Date": None})
    print(f"figure: {chosen.output}")


if __name__ == "__main__":
    main()
