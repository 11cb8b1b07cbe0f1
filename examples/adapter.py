"""Fine-tune a frozen transformer by turning the inputs of its linear layers.

    python examples/adapter.py [--steps 60]

A small transformer learns to copy sequences of digits. Then its weights are frozen, and reflections alone learn to give
each digit's complement instead. Merged into the weights in the end, they cost nothing.
"""

import argparse

import torch
from torch import nn

import householder.torch as ht

DIGITS, LENGTH, WIDTH = 10, 8, 64


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.place = nn.Embedding(DIGITS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, DIGITS)

    def forward(self, tokens):
        x = self.token(tokens) + self.place.weight
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def digits():
    return torch.randint(DIGITS, (64, LENGTH))


def right(model, target):
    tokens = digits()
    return f"{(model(tokens).argmax(-1) == target(tokens)).float().mean():.0%}"


def train(model, target, steps, lr):
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    for _ in range(steps):
        tokens = digits()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), target(tokens).flatten()).backward()
        optimizer.step()


def complement(tokens):
    return DIGITS - 1 - tokens


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small matrices
    model = Transformer()
    train(model, torch.clone, 100, 1e-3)
    print(f"pretrained: {right(model, torch.clone)} copied, {right(model, complement)} complemented")
    model.requires_grad_(False)
    adapters = {}
    for block in model.blocks:
        for name in ("linear1", "linear2"):
            adapters[block, name] = ht.OrthogonalAdapter(getattr(block, name), num_reflections=8)
            setattr(block, name, adapters[block, name])
    model.head = adapters[model, "head"] = ht.OrthogonalAdapter(model.head, num_reflections=8)
    print(f"with adapters at the identity: {right(model, torch.clone)} copied")
    numbers = [sum(p.numel() for p in model.parameters() if p.requires_grad == trained) for trained in (True, False)]
    train(model, complement, steps, 0.02)
    print(f"{numbers[0]} numbers trained, {numbers[1]} frozen: {right(model, complement)} complemented")
    for (module, name), adapter in adapters.items():
        setattr(module, name, adapter.merge())
    print(f"merged: {right(model, complement)} complemented")
