"""What a layer costs over the operators under it: forward plus backward of an ``OrthogonalRNN``.

    python benches/layers.py [--threads 2] [--hidden 128] [--reflections 16] [--batch 50] [--steps 400] [--rounds 200]

The bare operator is the least that torch differentiates: an ``autograd.Function`` that calls the operators and checks
nothing. ``ht.rnn`` adds checks, transforms and types, the layer adds modules. The operators by themselves, forward and
backward, show what autograd takes. Gradients are of all parameters and the initial state.
"""

import argparse

import torch
from measure import interleaved, machine
from torch.autograd import Function

import householder.torch as ht

HOW = ("leaky_relu", 0.1, False, False, "trapezoidal", "auto")
WANTED = [True, False, True, True, True, False, False, False]
BARE = "bare operator"


def forward(*tensors):
    h, _, tape = torch.ops.householder.rnn(*tensors, *[None] * 4, True, *HOW)
    return h, tape


def backward(*tensors_h_tape_grad):
    *tensors, h, tape, grad = tensors_h_tape_grad
    return torch.ops.householder.rnn_backward(*tensors, *[None] * 4, h, tape, grad, None, WANTED, *HOW)


class BareOperator(Function):
    @staticmethod
    def forward(ctx, *tensors):
        h, tape = forward(*tensors)
        ctx.save_for_backward(*tensors, h, tape)
        return h

    @staticmethod
    def backward(ctx, grad):
        return backward(*ctx.saved_tensors, grad)[:5]


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
    h0 = hx[0].detach().requires_grad_()
    tensors = [cell.reflections, x, h0, cell.weight_ih, cell.bias]
    detached = [t.detach() for t in tensors]

    def differentiated(run, state):
        return lambda: torch.autograd.grad(run(), [cell.reflections, cell.weight_ih, cell.bias, state], grad)

    times = interleaved(
        {
            "without autograd": lambda: backward(*detached, *forward(*detached), grad),
            BARE: differentiated(lambda: BareOperator.apply(*tensors), h0),
            "ht.rnn": differentiated(
                lambda: ht.rnn(cell.reflections, x, h0, input_weight=cell.weight_ih, bias=cell.bias)[0], h0
            ),
            "ht.OrthogonalRNN": differentiated(lambda: layer(x, hx)[0], hx),
        },
        options.rounds,
        budget=20.0,
    )
    print("".join(f"- {heading}: {value}\n" for heading, value in machine(options.threads).items()))
    print("| | median, ms | over the bare operator | min, ms | over the bare operator |\n|---|---|---|---|---|")
    base = times[BARE]
    for name, seconds in times.items():
        cells = (f"{1e3 * s:.3f} | {100 * (s / b - 1):+.1f} %" for s, b in zip(seconds, base, strict=True))
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
