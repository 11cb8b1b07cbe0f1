"""A step of training on MNIST pixel by pixel, compared with ``torch.nn.RNN`` of as many units.

    python benches/training_step.py [--threads 2] [--hidden 256] [--reflections 32] [--batch 50] [--rounds 5]
                                    [--flush-denormal]

Images are random: what a step costs does not depend on them. A step takes a batch, the loss, gradients of everything,
clips them and updates by Adam. Gradients that vanish on their way back become denormal numbers, on which processors
take long; ``--flush-denormal`` has torch replace them by zeros.
"""

import argparse

import torch
from measure import interleaved, machine
from torch import nn
from torch.nn.functional import cross_entropy

import householder.torch as ht

PIXELS, CLASSES, IMAGES = 784, 10, 55_000


class Classifier(nn.Module):
    """The last state of a recurrence, read out."""

    def __init__(self, recurrence, hidden):
        super().__init__()
        self.recurrence = recurrence
        self.readout = nn.Linear(hidden, CLASSES)

    def forward(self, x):
        return self.readout(self.recurrence(x)[1][-1])


def step(recurrence, options):
    """One step of training such a network, as a function."""
    model = Classifier(recurrence, options.hidden)
    adam = torch.optim.Adam(model.parameters(), 1e-3)
    x, y = torch.rand(PIXELS, options.batch, 1), torch.randint(CLASSES, (options.batch,))

    def run():
        adam.zero_grad()
        cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("threads", 2), ("hidden", 256), ("reflections", 32), ("batch", 50), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--flush-denormal", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(options.flush_denormal)
    torch.manual_seed(0)
    n = options.hidden
    ours = ht.OrthogonalRNN(1, n, num_reflections=options.reflections, nonlinearity="leaky_relu")
    modules = {"OrthogonalRNN": ours, "nn.RNN": nn.RNN(1, n, nonlinearity="relu")}
    times = interleaved({name: step(module, options) for name, module in modules.items()}, options.rounds, budget=60.0)
    print("".join(f"- {heading}: {value}\n" for heading, value in machine(options.threads).items()))
    print("| | median, ms a step | times ours | s an epoch |\n|---|---|---|---|")
    for name, (median, _) in times.items():
        epoch = median * IMAGES / options.batch
        print(f"| {name} | {median * 1e3:.1f} | {median / times['OrthogonalRNN'][0]:.1f} | {epoch:.0f} |")


if __name__ == "__main__":
    main()
