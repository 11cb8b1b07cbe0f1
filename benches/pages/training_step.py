"""A step of training on MNIST pixel by pixel, compared with ``torch.nn.RNN`` of as many units.

    python -m benches.pages.training_step [--threads 2] [--hidden 256] [--reflections 32] [--batch 50] [--rounds 5]
                                    [--flush-denormal]

Images are random: what a step costs does not depend on them. A step takes a batch, the loss, gradients of everything,
clips them and updates by Adam. Gradients that vanish on their way back become denormal numbers, on which processors
take long; ``--flush-denormal`` has torch replace them by zeros.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import householder.torch as ht
from benches.measure import heading, interleaved, options, row

PIXELS, CLASSES, IMAGES = 784, 10, 55_000


class Classifier(nn.Module):
    """The last state of a recurrence, read out."""

    def __init__(self, recurrence, hidden):
        super().__init__()
        self.recurrence = recurrence
        self.readout = nn.Linear(hidden, CLASSES)

    def forward(self, x):
        return self.readout(self.recurrence(x)[1][-1])


def step(recurrence, hidden, batch):
    """One step of training such a network, as a function."""
    model = Classifier(recurrence, hidden)
    adam = torch.optim.Adam(model.parameters(), 1e-3)
    x, y = torch.rand(PIXELS, batch, 1), torch.randint(CLASSES, (batch,))

    def run():
        adam.zero_grad()
        cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()

    return run


def main():
    sizes = {"hidden": 256, "reflections": 32, "batch": 50}
    chosen = options(__doc__, threads=2, rounds=5, **sizes, flush_denormal=False)
    torch.set_flush_denormal(chosen.flush_denormal)
    torch.manual_seed(0)
    n = chosen.hidden
    ours = ht.OrthogonalRNN(1, n, num_reflections=chosen.reflections, nonlinearity="leaky_relu")
    modules = {"OrthogonalRNN": ours, "nn.RNN": nn.RNN(1, n, nonlinearity="relu")}
    steps = {name: step(module, n, chosen.batch) for name, module in modules.items()}
    times = interleaved(steps, chosen.rounds, budget=60.0)
    heading(chosen.threads, "", "median, ms a step", "times ours", "s an epoch")
    for name, (median, _) in times.items():
        row(name, median * 1e3, median / times["OrthogonalRNN"].median, median * IMAGES / chosen.batch)


if __name__ == "__main__":
    main()
