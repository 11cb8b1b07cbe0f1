"""Train a network, and write what a C++ program needs to run it: ``python examples/cpp/package.py FOLDER``."""

import statistics
import sys
import timeit
from functools import partial
from pathlib import Path

import torch
from torch import nn

import householder.torch as ht


class Network(nn.Module):
    """Predict the next number of a sequence from all numbers before it."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = ht.OrthogonalRNN(1, 64, num_reflections=8)
        self.last = nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.recurrent(x)[0])


def train(network: Network, steps: int) -> float:
    """Learn sine waves of any phase; return the last loss."""
    optimizer, loss = torch.optim.Adam(network.parameters(), 3e-3), torch.tensor(0.0)
    for _ in range(steps):
        waves = torch.sin(0.2 * torch.arange(51.0)[:, None, None] + 6.3 * torch.rand(16, 1))
        loss = nn.functional.mse_loss(network(waves[:-1]), waves[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


folder = Path(sys.argv[1])
torch.manual_seed(0)
network = Network()
print(f"loss {train(network, 200):.5f}")

x = torch.sin(0.2 * torch.arange(50.0)[:, None, None])  # (time, batch, 1)
with torch.no_grad():
    exported = torch.export.export(network.eval(), (x,))
    package = torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / "network.pt2"))
    loaded = torch._inductor.aoti_load_package(package)
    y = loaded(x)
    torch.testing.assert_close(y, network(x))
    for name, call in {"ordinary call": network, "package in Python": loaded}.items():
        times = timeit.repeat(partial(call, x), number=10, repeat=100)
        print(f"{name}: {statistics.median(times) * 1e5:.1f} us a call")
torch.save([x], folder / "inputs.pt")
y.numpy().tofile(folder / "expected")
