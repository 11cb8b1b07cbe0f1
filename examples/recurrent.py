"""``OrthogonalRNN`` instead of ``torch.nn.RNN``: remember the first of many inputs.

    python examples/recurrent.py [--steps 100] [--length 100]

The class of a sequence is told by its first entry; all the others are noise. The two networks are built, called and
trained by the same lines.
"""

import argparse

import torch
from torch import nn

import householder.torch as ht

CLASSES, HIDDEN = 4, 64


class Classifier(nn.Module):
    def __init__(self, rnn):
        super().__init__()
        self.rnn, self.head = rnn, nn.Linear(HIDDEN, CLASSES)

    def forward(self, x):
        _, h_n = self.rnn(x)
        return self.head(h_n[-1])


def sequences(length, count):
    """Noise ``(length, count, 1 + CLASSES)`` that begins with the class, and the classes."""
    label = torch.randint(CLASSES, (count,))
    x = torch.zeros(length, count, 1 + CLASSES)
    x[:, :, 0] = 0.1 * torch.randn(length, count)
    x[0, torch.arange(count), 1 + label] = 1
    return x, label


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--length", type=int, default=100)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # small matrices
    for build in (nn.RNN, ht.OrthogonalRNN):
        torch.manual_seed(0)
        model = Classifier(build(1 + CLASSES, HIDDEN, nonlinearity="relu"))
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        for _ in range(arguments.steps):
            x, label = sequences(arguments.length, 32)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), label).backward()
            optimizer.step()
        x, label = sequences(arguments.length, 500)
        right = (model(x).argmax(1) == label).float().mean()
        numbers = sum(p.numel() for p in model.parameters())
        print(f"{build.__name__}, {numbers} parameters: {right:.0%} right ({1 / CLASSES:.0%} by chance)")
