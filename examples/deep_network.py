"""A hundred layers, each with its own weight: gradients reach the first of them.

    python examples/deep_network.py [--layers 100] [--steps 100]

The network is to tell two spirals apart. Orthogonal layers with OPLU, which only reorders, keep the norm of every
gradient exactly; ordinary layers lose it, and with it what the first layers could learn.
"""

import argparse

import torch
from torch import nn

import householder.torch as ht

WIDTH, REFLECTIONS = 32, 4


def spirals(count):
    label = torch.randint(2, (count,))
    angle = 6 * torch.rand(count).sqrt()
    x = torch.stack([angle * torch.cos(angle + torch.pi * label), angle * torch.sin(angle + torch.pi * label)], 1)
    return x / 3 + 0.05 * torch.randn(count, 2), label


class Network(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.first, self.blocks, self.last = nn.Linear(2, WIDTH), nn.ModuleList(blocks), nn.Linear(WIDTH, 2)

    def forward(self, x):
        states = [self.first(x)]
        for block in self.blocks:
            states.append(block(states[-1]))
        return self.last(states[-1]), states


def gradient_norms(network, x, label):
    """Of the loss with respect to the input of each block, relative to the last."""
    logits, states = network(x)
    gradients = torch.autograd.grad(nn.functional.cross_entropy(logits, label), states)
    norms = torch.stack([gradient.norm() for gradient in gradients])
    return norms / norms[-1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small matrices
    networks = {
        "orthogonal + OPLU": Network(
            nn.Sequential(ht.Orthogonal(WIDTH, num_reflections=REFLECTIONS), ht.OPLU()) for _ in range(arguments.layers)
        ),
        "linear + tanh": Network(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(arguments.layers)),
    }
    x, label = spirals(500)
    for name, network in networks.items():
        optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
        before = gradient_norms(network, x, label)
        for _ in range(arguments.steps):
            chosen = torch.randint(len(x), (64,))
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[chosen])[0], label[chosen]).backward()
            optimizer.step()
        right = (network(x)[0].argmax(1) == label).float().mean()
        after = gradient_norms(network, x, label)
        print(f"{name}: {right:.0%} right after {arguments.steps} steps")
        print(f"  gradient at the first layer over that at the last: {before[0]:.1e} at first, {after[0]:.1e} trained")
