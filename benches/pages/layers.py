"""What a layer costs over the operators under it: forward plus backward of an ``OrthogonalRNN``.

    python -m benches.pages.layers [--threads 2] [--hidden 128] [--reflections 16] [--batch 50]
                                   [--steps 400] [--rounds 200]

The bare operator is the least that torch differentiates: an ``autograd.Function`` that calls the operators and checks
nothing. ``ht.rnn`` adds checks, transforms and types, the layer adds modules. The operators by themselves, forward and
backward, show what autograd takes. Gradients are of all parameters and the initial state.
"""

import torch
from torch.autograd import Function

import householder.torch as ht
from benches.measure import heading, interleaved, options, row

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
    sizes = {"input": 2, "hidden": 128, "reflections": 16, "batch": 50, "steps": 400}
    chosen = options(__doc__, threads=2, rounds=200, **sizes)
    torch.manual_seed(0)

    layer = ht.OrthogonalRNN(chosen.input, chosen.hidden, num_reflections=chosen.reflections)
    x = torch.randn(chosen.steps, chosen.batch, chosen.input)
    hx = torch.randn(1, chosen.batch, chosen.hidden, requires_grad=True)
    grad = torch.randn(chosen.steps, chosen.batch, chosen.hidden)
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
        chosen.rounds,
        budget=20.0,
    )
    heading(chosen.threads, "", "median, ms", "over the bare operator", "min, ms", "over the bare operator")
    for name, seconds in times.items():
        pairs = zip(seconds, times[BARE], strict=True)
        row(name, *(cell for s, base in pairs for cell in (1e3 * s, f"{100 * (s / base - 1):+.1f} %")))


if __name__ == "__main__":
    main()
