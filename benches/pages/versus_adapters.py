"""Adapters of the peft library: HRA as it is, HRA after ``ht.accelerate``, and LoRA of equal size, on one layer.

    python -m benches.pages.versus_adapters [--threads 1] [--size 4096] [--rank 8] [--tokens 256] [--rounds 5]

Time of forward plus backward, with the gradients of the adapter and of the layer's input, as in the midst of a
network. Results and gradients are first compared with those of HRA as it is. Times are the processor's, medians of
interleaved rounds.
"""

import copy

import torch
from peft import HRAConfig, LoraConfig, get_peft_model
from torch import nn

import householder.torch as ht
from benches.measure import clock, heading, interleaved, options, row


def adapted(size, config):
    torch.manual_seed(0)
    return get_peft_model(nn.Sequential(nn.Linear(size, size, bias=False)), config)


def candidates(size, rank):
    """Models by name, each HRA followed by itself, accelerated."""
    models = {"frozen layer alone": nn.Sequential(nn.Linear(size, size, bias=False)).requires_grad_(False)}
    for name, gram_schmidt in (("HRA", False), ("HRA, Gram-Schmidt", True)):
        # Random vectors: by default they are equal in pairs, from which Gram-Schmidt makes rounding errors.
        config = HRAConfig(r=rank, apply_GS=gram_schmidt, target_modules=["0"], init_weights=not gram_schmidt)
        models[name] = adapted(size, config)
        models[f"{name}, accelerated"] = copy.deepcopy(models[name])
        ht.accelerate(models[f"{name}, accelerated"])
    half = rank // 2  # as many numbers: n r
    models[f"LoRA of rank {half}"] = adapted(size, LoraConfig(r=half, target_modules=["0"]))
    return models


def step(model, x, grad):
    y = model(x)
    return [y, *torch.autograd.grad(y, [x, *(p for p in model.parameters() if p.requires_grad)], grad)]


def main():
    chosen = options(__doc__, threads=1, size=4096, rank=8, tokens=256, rounds=5)
    models = candidates(chosen.size, chosen.rank)
    x, grad = torch.randn(2, chosen.tokens, chosen.size)
    calls = {name: lambda model=model: step(model, x.requires_grad_(), grad) for name, model in models.items()}
    errors = {}
    for name in calls:
        if name.endswith(", accelerated"):
            pairs = zip(calls[name](), calls[name.removesuffix(", accelerated")](), strict=True)
            errors[name] = max(((a - b).norm() / b.norm()).item() for a, b in pairs)
    found = interleaved(calls, chosen.rounds, at_least=3, clock=clock(chosen.threads))
    times = {name: taken.median for name, taken in found.items()}
    heading(chosen.threads, "", "median, ms", "ratio", "relative difference from HRA")
    for name, seconds in times.items():
        error = f"{errors[name]:.1e}" if name in errors else ""
        row(name, 1e3 * seconds, f"{seconds / times['HRA, accelerated']:.2f}", error)


if __name__ == "__main__":
    main()
