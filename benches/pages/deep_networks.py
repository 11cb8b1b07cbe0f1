"""Deep networks without weight sharing: time per training step, and gradients from the last layer to the first.

    python -m benches.pages.deep_networks [--threads 2] [--rounds 20] [--depths 1 10 30 100] [--widths 64 128 256 512]
                                    [--output docs/deep-networks.png]

A network is L layers ``x -> OPLU(W x)`` of width n, each with an orthogonal W of its own; a step is forward, backward
and SGD on a batch of 64. Ours has m = n / 8 reflections per layer; torch's parametrizations have an n x n matrix, and
ours is compared with the faster of them. Times are the least of interleaved rounds, which other work disturbs least.
"""

from pathlib import Path

import torch
from torch import nn

import householder.torch as ht
from benches.measure import heading, interleaved, options, row
from benches.rivals import parametrized

BATCH = 64
OURS, FREE = "ht.Orthogonal, m = n / 8", "nn.Linear (not orthogonal)"
STARTED = "nn.Linear, orthogonal start"
LAYERS = {
    OURS: lambda n: ht.Orthogonal(n, bias=False, num_reflections=n // 8),
    "torch's orthogonal, matrix_exp": parametrized("matrix_exp"),
    "torch's orthogonal, cayley": parametrized("cayley"),
    FREE: lambda n: nn.Linear(n, n, bias=False),
}
DEPTH, WIDTH = 5, 128
"""What one of both is while the other varies."""


def with_orthogonal_start(n):
    layer = nn.Linear(n, n, bias=False)
    nn.init.orthogonal_(layer.weight)
    return layer


OF_GRADIENTS = {OURS: LAYERS[OURS], FREE: LAYERS[FREE], STARTED: with_orthogonal_start}
"""Layers whose gradients are compared."""
NAMES = {OURS: "ht.Orthogonal", FREE: "nn.Linear", STARTED: "nn.Linear, orthogonal start,"}


def network(make, depth, n, nonlinearity=ht.OPLU):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(make(n), nonlinearity()) for _ in range(depth)))


def step(kind, depth, n):
    """One step of training, as a call."""
    model, x = network(LAYERS[kind], depth, n), torch.randn(BATCH, n)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def call():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return call


def gradient_norms(kind, nonlinearity, depth=100, n=128):
    """Norms of the gradients of a loss with respect to the inputs of all layers, last to first, over the last."""
    model, states = network(OF_GRADIENTS[kind], depth, n, nonlinearity), [torch.randn(BATCH, n, requires_grad=True)]
    for layer in model:
        states.append(layer(states[-1]))
    gradients = torch.autograd.grad(nn.functional.mse_loss(states[-1], torch.randn(BATCH, n)), states)
    norms = torch.stack([gradient.norm() for gradient in reversed(gradients)])
    return norms / norms[0]


def draw(times, depths, widths, path):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 4.6), layout="constrained")
    for axis, sizes, which, label in (
        (axes[0], depths, 0, f"layers L (n = {WIDTH})"),
        (axes[1], widths, 1, f"width n (L = {DEPTH})"),
    ):
        for kind in LAYERS:
            axis.loglog(
                [size[which] for size in sizes], [1e3 * times[size][kind][1] for size in sizes], "o-", label=kind
            )
        ticks = [size[which] for size in sizes]
        axis.set(xlabel=label, ylabel="ms per step")
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
    axes[0].legend(fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.2), frameon=False)
    # Lines that lie on one another: a broad one below, dashes above.
    broad, dashed = {"linewidth": 5, "alpha": 0.4}, {"linestyle": "--", "color": "black"}
    looks = (broad, {}, dashed, {"linewidth": 3}, {"linestyle": ":"})
    pairs = ((OURS, ht.OPLU), (OURS, nn.Tanh), (STARTED, ht.OPLU), (FREE, ht.OPLU), (FREE, nn.Tanh))
    for (kind, nonlinearity), look in zip(pairs, looks, strict=True):
        norms = gradient_norms(kind, nonlinearity)
        axes[2].semilogy(norms, label=f"{NAMES[kind]} + {nonlinearity.__name__}", **look)
    axes[2].set(xlabel="layers back from the last", ylabel="norm of the gradient, relative")
    axes[2].legend(fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.2), ncols=2, frameon=False)
    figure.savefig(path, dpi=90)


def main() -> None:
    sizes = {"depths": [1, 10, 30, 100], "widths": [64, 128, 256, 512]}
    chosen = options(__doc__, threads=2, rounds=20, **sizes, output=Path)
    heading(chosen.threads, "L", "n", *(f"{kind}, ms" for kind in LAYERS), "torch's over ours")
    depths, widths = [(depth, WIDTH) for depth in chosen.depths], [(DEPTH, n) for n in chosen.widths]
    times = {}
    for depth, n in dict.fromkeys(depths + widths):
        steps = {kind: step(kind, depth, n) for kind in LAYERS}
        times[depth, n] = interleaved(steps, chosen.rounds, at_least=3, budget=4.0)
        least = [1e3 * times[depth, n][kind][1] for kind in LAYERS]
        row(depth, n, *least, f"{min(least[1:3]) / least[0]:.1f}")
    if chosen.output:
        draw(times, depths, widths, chosen.output)


if __name__ == "__main__":
    main()
