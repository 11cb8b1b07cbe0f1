"""Learn a rotation before a linear layer is quantised to 4 bits.

    python examples/quantisation.py [--steps 200] [--figure rotations.svg]

``W x = (W R') (R x)`` for every rotation R, but rounding both factors to 4 bits is not the same for all: a few large
channels, as language models have them, take the range of all others. A Hadamard matrix spreads them evenly. A product
of reflections, which starts there and learns from the layer's own inputs, does better. Errors are of the output on new
inputs, relative to its size.
"""

import argparse

import torch
from torch.nn.functional import mse_loss

import householder.torch as ht

N, OUTPUTS, BITS = 128, 128, 4


def hadamard(n):
    matrix = torch.ones(1, 1)
    while len(matrix) < n:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / n**0.5


def quantised(rows):
    """Round each row to BITS bits of its own range; gradients pass through ``round`` as if it were the identity."""
    step = rows.abs().amax(-1, keepdim=True) / (2 ** (BITS - 1) - 1)
    scaled = rows / step
    return step * (scaled + (scaled.round() - scaled).detach())


def inputs(count, mixing, sizes):
    """Correlated channels, some much larger than others."""
    return (torch.randn(count, N) @ mixing) * sizes


def error(weight, x, turn):
    """Compare the layer with turned and quantised operands to the layer itself."""
    expected = x @ weight.T
    return mse_loss(quantised(turn(x)) @ quantised(turn(weight)).T, expected) / expected.square().mean()


def near_the_identity():
    """A product of reflections in pairs that nearly undo each other."""
    turn = ht.Orthogonal(N, bias=False, num_reflections=N // 2)
    with torch.no_grad():
        pairs = torch.randn(N, N // 4).repeat_interleave(2, 1)
        turn.reflections.copy_(pairs + 0.01 * torch.randn_like(pairs))
    return turn


def draw(path, curve, others):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "householder", "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(*zip(*curve, strict=True), label="learned reflections")
    for (name, value), style in zip(others.items(), ("--", ":"), strict=True):
        axes.axhline(value, color="black", linestyle=style, label=name)
    axes.set(xlabel="steps", ylabel="squared error of the output, relative", yscale="log")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--figure", help="an SVG file to draw the errors in")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    mixing = torch.eye(N) + 0.05 * torch.randn(N, N)
    sizes = torch.randn(N).mul(0.5).exp()
    sizes[torch.randperm(N)[:4]] *= 30
    weight = torch.randn(OUTPUTS, N) / N**0.5
    x, new = inputs(4096, mixing, sizes), inputs(2048, mixing, sizes)
    start, turn = hadamard(N), near_the_identity()

    def rotation(rows):
        return turn(rows @ start)

    with torch.no_grad():
        others = {
            "no rotation": error(weight, new, lambda rows: rows),
            "Hadamard": error(weight, new, lambda rows: rows @ start),
        }
    optimizer = torch.optim.Adam(turn.parameters(), 0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    curve = []
    for step in range(options.steps + 1):
        if step % 10 == 0 or step == options.steps:
            with torch.no_grad():
                curve.append((step, error(weight, new, rotation).item()))
        optimizer.zero_grad()
        error(weight, x[torch.randint(len(x), (256,))], rotation).backward()
        optimizer.step()
        schedule.step()
    for name, value in (*others.items(), ("learned reflections", curve[-1][1])):
        print(f"{name:20} {100 * value:.2f} % squared error")
    if options.figure:
        draw(options.figure, curve, others)
