"""What a layer costs over the operators under it: forward plus backward of an ``OrthogonalRNN``.

    python benches/layers.py [--threads 2] [--hidden 128] [--reflections 16] [--batch 50] [--steps 400] [--rounds 200]

The operators are called as they stand, forward and backward, with no autograd and no checks; the function adds both,
the layer adds modules and the latent ``u_1``. All gradients of parameters and the initial state are computed.
"""

import argparse

import torch
from measure import interleaved, machine

import householder.torch as ht


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2, help="of torch and householder")
    for name, default in (("input", 2), ("hidden", 128), ("reflections", 16), ("batch", 50), ("steps", 400)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)

    layer = ht.OrthogonalRNN(options.input, options.hidden, num_reflections=options.reflections)
    x = torch.randn(options.steps, options.batch, options.input)
    hx = torch.randn(1, options.batch, options.hidden, requires_grad=True)
    grad = torch.randn(options.steps, options.batch, options.hidden)
    (cell,) = layer.cells
    parameters = [cell.reflections, cell.weight_ih, cell.bias]
    names = {"input_weight": cell.weight_ih, "bias": cell.bias}

    tensors = [t.detach() for t in (cell.reflections, x, hx[0], cell.weight_ih, cell.bias)] + [None] * 3
    how = ("leaky_relu", 0.1, False, "auto")
    wanted = [True, False, True, True, True, False, False]

    def operators():
        h, _, tape = torch.ops.householder.rnn(*tensors, *how, True)
        return torch.ops.householder.rnn_backward(*tensors, h, tape, grad, None, wanted, *how)

    def differentiated(run):
        return lambda: torch.autograd.grad(run()[0], [*parameters, hx], grad)

    times = interleaved(
        {
            "operators": operators,
            "function": differentiated(lambda: ht.rnn(cell.reflections, x, hx[0], **names)),
            "layer": differentiated(lambda: layer(x, hx)),
        },
        options.rounds,
        budget=20.0,
    )
    print("".join(f"- {heading}: {value}\n" for heading, value in machine(options.threads).items()))
    print("| | median, ms | over the operators | min, ms | over the operators |\n|---|---|---|---|---|")
    base = times["operators"]
    for name, seconds in times.items():
        cells = (f"{1e3 * s:.3f} | {100 * (s / b - 1):+.1f} %" for s, b in zip(seconds, base, strict=True))
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
