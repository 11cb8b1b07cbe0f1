"""A layer that stores the Q of a QR decomposition as reflections, with torch's function and with ours.

    python examples/qr_layer.py [--steps 100] [--sizes 64 128 256] [--figure qr-layer.svg]

The layer projects data on a subspace and learns the one nearest to them. Its basis is ``householder_product(a, tau)``,
with ``a`` as ``torch.geqrf`` returns it. Nothing changes but the module that the function comes from.
"""

import argparse
import statistics
import time

import torch
from torch import nn

import householder.torch as ht

PRODUCTS = {
    "torch.linalg.householder_product": torch.linalg.householder_product,
    "householder.torch.householder_product": ht.householder_product,
}


class Projection(nn.Module):
    """``Q Q' x`` for an orthonormal basis ``Q (n, k)``."""

    def __init__(self, n, k, product):
        super().__init__()
        self.reflectors = nn.Parameter(torch.geqrf(torch.randn(n, k))[0])
        self.product = product

    def forward(self, x):
        tau = 2 / (1 + self.reflectors.tril(-1).square().sum(0))  # of exact reflections
        q = self.product(self.reflectors, tau)
        return x @ q @ q.mT


def train(n, steps, product):
    """The loss and the median time of a step, for data around a subspace of n / 8 dimensions."""
    torch.manual_seed(0)
    k, count = n // 8, 256
    x = torch.randn(count, k) @ torch.randn(k, n) / k**0.5 + 0.1 * torch.randn(count, n)
    layer = Projection(n, k, product)
    optimizer = torch.optim.Adam(layer.parameters(), 0.02)
    times = []
    for _ in range(steps):
        begun = time.perf_counter()
        loss = (layer(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - begun)
    return loss.item(), 1e3 * statistics.median(times)


def draw(path, sizes, times):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "householder", "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    for name, values in times.items():
        axes.loglog(sizes, values, "o-", label=name)
    axes.set(xlabel="n, with n / 8 reflections", ylabel="time of a training step, ms")
    axes.set_xticks(sizes, sizes)
    axes.minorticks_off()
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--figure", help="an SVG file to draw the times in")
    options = parser.parse_args()
    torch.set_num_threads(1)
    times = {name: [] for name in PRODUCTS}
    for n in options.sizes:
        for name, product in PRODUCTS.items():
            loss, step = train(n, options.steps, product)
            times[name].append(step)
            print(f"n = {n:4}  {name:38} loss {loss:.5f}, {step:.2f} ms a step")
    if options.figure:
        draw(options.figure, options.sizes, times)
