"""A flow on images whose 1 x 1 convolutions are products of reflections, compared with dense ones in LU form.

    python examples/image_flow.py [--steps 200] [--figure image-flow.svg]

Images are scikit-learn's digits, 8 x 8 pixels of 17 levels, as 16 channels at 2 x 2 places. Each step of the flow
scales channels, mixes them by a 1 x 1 convolution, and changes one half as the other half tells. The convolution is
n / 2 reflections, or P L U as in Glow: both cost n^2 multiplications per place. Reflections are fewer numbers,
have no determinant to compute, and their inverse is the same reflections in reverse order.
"""

import argparse
import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import pixel_unshuffle

import householder.torch as ht

CHANNELS, PLACES, LEVELS, DEPTH = 16, 4, 17, 8


class Reflections(nn.Module):
    """Mix channels by n / 2 reflections."""

    def __init__(self):
        super().__init__()
        self.turn = ht.Orthogonal(CHANNELS, bias=False, num_reflections=CHANNELS // 2)

    def forward(self, x):
        return self.turn(x.movedim(1, -1)).movedim(-1, 1), self.turn.logdet

    def inverse(self, y):
        return self.turn.inverse(y.movedim(1, -1)).movedim(-1, 1)


class DenseLU(nn.Module):
    """Mix channels by any matrix, P L U, which starts as a rotation."""

    def __init__(self):
        super().__init__()
        p, lower, upper = torch.linalg.lu(nn.init.orthogonal_(torch.empty(CHANNELS, CHANNELS)))
        self.register_buffer("p", p)
        self.register_buffer("signs", upper.diagonal().sign())
        self.sizes = nn.Parameter(upper.diagonal().abs().log())
        self.lower, self.upper = nn.Parameter(lower.tril(-1)), nn.Parameter(upper.triu(1))

    def weight(self):
        lower = self.lower.tril(-1) + torch.eye(CHANNELS)
        return self.p @ lower @ (self.upper.triu(1) + torch.diag(self.signs * self.sizes.exp()))

    def forward(self, x):
        return torch.einsum("oc,bchw->bohw", self.weight(), x), PLACES * self.sizes.sum()

    def inverse(self, y):
        return torch.einsum("oc,bchw->bohw", self.weight().inverse(), y)


class Step(nn.Module):
    """Scale channels, mix them, and change one half as the other half tells."""

    def __init__(self, mixing, hidden=64):
        super().__init__()
        self.mixing = mixing()
        self.scale, self.shift = (nn.Parameter(torch.zeros(CHANNELS, 1, 1)) for _ in range(2))
        half = CHANNELS // 2
        self.net = nn.Sequential(
            nn.Conv2d(half, hidden, 3, padding=1), nn.ReLU(), nn.Conv2d(hidden, 2 * half, 3, padding=1)
        )
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def coupling(self, first):
        scale, shift = self.net(first).chunk(2, 1)
        return scale.tanh(), shift

    def forward(self, x):
        x, mixed = self.mixing((x + self.shift) * self.scale.exp())
        first, second = x.chunk(2, 1)
        scale, shift = self.coupling(first)
        logdet = PLACES * self.scale.sum() + mixed + scale.sum((1, 2, 3))
        return torch.cat([first, second * scale.exp() + shift], 1), logdet

    def inverse(self, y):
        first, second = y.chunk(2, 1)
        scale, shift = self.coupling(first)
        x = self.mixing.inverse(torch.cat([first, (second - shift) * (-scale).exp()], 1))
        return x * (-self.scale).exp() - self.shift


class Flow(nn.Module):
    def __init__(self, mixing):
        super().__init__()
        self.steps = nn.ModuleList(Step(mixing) for _ in range(DEPTH))

    def bits(self, images):
        """Bits for each pixel of ``images (B, 8, 8)`` of whole numbers, to which noise is added."""
        level = (images + torch.rand_like(images)) / LEVELS
        level = 0.05 + 0.9 * level  # away from the ends, where the logit is infinite
        x = pixel_unshuffle(level.logit()[:, None], 4)
        total = (math.log(0.9 / LEVELS) - level.log() - (1 - level).log()).sum((1, 2))
        for step in self.steps:
            x, logdet = step(x)
            total = total + logdet
        total = total - 0.5 * (x.square() + math.log(2 * math.pi)).sum((1, 2, 3))
        return -total.mean() / (images[0].numel() * math.log(2))


def trained(mixing, images, new, steps):
    """Train a flow; gives it and the bits for each pixel of new images, as pairs with the number of steps."""
    torch.manual_seed(0)
    flow, curve = Flow(mixing), []
    optimizer = torch.optim.Adam(flow.parameters(), 0.003)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.003, total_steps=steps)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        flow.bits(images[torch.randint(len(images), (128,))]).backward()
        optimizer.step()
        schedule.step()
        if step % 25 == 0 or step == steps:
            with torch.no_grad():
                curve.append((step, flow.bits(new).item()))
    return flow, curve


def draw(path, curves):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "householder", "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    for name, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), label=name)
    axes.set(xlabel="steps", ylabel="bits for each pixel of new images")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--figure", help="an SVG file to draw the curves in")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = torch.tensor(load_digits().images, dtype=torch.float32)
    images, new = data[torch.randperm(len(data))].tensor_split([1400])
    curves = {}
    for name, mixing in (("n / 2 reflections", Reflections), ("dense, P L U", DenseLU)):
        flow, curves[name] = trained(mixing, images, new, options.steps)
        x = torch.randn(8, CHANNELS, 2, 2)
        with torch.no_grad():
            back = max((step.inverse(step(x)[0]) - x).abs().max() for step in flow.steps)
        print(f"{name:18} {curves[name][-1][1]:.3f} bits a pixel, inverse to {back:.0e}")
    if options.figure:
        draw(options.figure, curves)
