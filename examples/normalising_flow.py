"""A normalising flow: learned rotations, whose log-determinant is zero, between affine couplings.

    python examples/normalising_flow.py [--steps 600]

The data are four bananas ``(a, b + a^2)``, mixed by a rotation of their eight dimensions; their entropy is known.
"""

import argparse
import math

import torch
from torch import nn

import householder.torch as ht

N = 8


class Coupling(nn.Module):
    """Scale and shift one half of the features as the other half tells."""

    def __init__(self, hidden=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(N // 2, hidden), nn.Tanh(), nn.Linear(hidden, N))

    def forward(self, x):
        first, second = x.chunk(2, -1)
        scale, shift = self.net(first).chunk(2, -1)
        return torch.cat([first, second * scale.exp() + shift], -1), scale.sum(-1)

    def inverse(self, y):
        first, second = y.chunk(2, -1)
        scale, shift = self.net(first).chunk(2, -1)
        return torch.cat([first, (second - shift) * (-scale).exp()], -1)


class Flow(nn.Module):
    def __init__(self, depth):
        super().__init__()
        # with N reflections the sign of the determinant could flip: a jump in the middle of training
        self.turns = nn.ModuleList(ht.Orthogonal(N, bias=False, num_reflections=N - 1) for _ in range(depth))
        self.couplings = nn.ModuleList(Coupling() for _ in range(depth))

    def log_density(self, x):
        logdet = 0
        for turn, coupling in zip(self.turns, self.couplings, strict=True):
            x, stretched = coupling(turn(x))
            logdet = logdet + turn.logdet + stretched  # turn.logdet is 0
        return logdet - 0.5 * (x.square().sum(-1) + N * math.log(2 * math.pi))

    def sample(self, count):
        x = torch.randn(count, N)
        for turn, coupling in zip(reversed(self.turns), reversed(self.couplings), strict=True):
            x = turn.inverse(coupling.inverse(x))
        return x


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    torch.set_num_threads(1)  # small matrices
    a, b = torch.randn(20000, 2, N // 2).unbind(1)
    data = torch.cat([a, 0.5 * b + a * a], -1) @ nn.init.orthogonal_(torch.empty(N, N))
    flow = Flow(depth=6)
    optimizer = torch.optim.Adam(flow.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=steps)
    for _ in range(steps):
        optimizer.zero_grad()
        (-flow.log_density(data[torch.randint(len(data), (256,))]).mean()).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        nats, spread = -flow.log_density(data).mean(), flow.sample(20000).T.cov() - data.T.cov()
    gauss = -torch.distributions.MultivariateNormal(data.mean(0), data.T.cov()).log_prob(data).mean()
    entropy = N / 2 * (1 + math.log(math.pi))
    print(f"nats per point: Gaussian {gauss:.2f}, flow {nats:.2f}, entropy of the data {entropy:.2f}")
    print(f"covariances of its samples and of the data differ by at most {spread.abs().max():.2f}")
