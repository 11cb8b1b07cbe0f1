"""What a small call costs: ``ht.apply`` (16, 4) of a vector, ``ht.OrthogonalRNN`` (64, 8) over 8 steps of a sequence.

    python -m benches.pages.small_calls [--threads 1] [--rounds 40]

The core alone computes without allocation, checks and autograd. With gradients, a function that computes nothing is the
least that torch takes, and one that calls the core and checks nothing the least that ours can take. It would be wrong
under forward mode, transforms, tracers and modes: the next reads torch's flags in both passes, as ours has to.
"""

import torch
from torch.autograd import Function, grad

import householder.torch as ht
from benches.measure import clock, heading, interleaved, options, row
from householder import _core
from householder.torch._ops.route import route

HOW = None, False, "auto"
HOW_OF_SEQUENCES = "leaky_relu", 0.1, False, False, "trapezoidal", "auto"


class Nothing(Function):
    @staticmethod
    def forward(ctx, u, h):
        ctx.u = u.detach()
        return h.detach()

    @staticmethod
    def backward(ctx, grad_c):
        return ctx.u, grad_c


class Core(Function):
    @staticmethod
    def forward(ctx, u, h):
        c = torch.empty_like(h)
        _core.forward(u, h, c, *HOW)
        ctx.save_for_backward(u, h)
        return c

    @staticmethod
    def backward(ctx, grad_c):
        u, h = ctx.saved_tensors
        grad_u, grad_h = torch.empty_like(u), torch.empty_like(h)
        _core.backward(u, h, grad_c, (grad_u, grad_h, None, None), *HOW)
        return grad_u, grad_h


class CoreAndFlags(Core):
    @staticmethod
    def forward(ctx, u, h):
        route()
        return Core.forward(ctx, u, h)

    @staticmethod
    def backward(ctx, grad_c):
        route()
        return Core.backward(ctx, grad_c)


class CoreOfSequences(Function):
    @staticmethod
    def forward(ctx, *tensors):
        u, x, *_ = tensors
        h, last = x.new_empty(*x.shape[:-1], len(u)), x.new_empty(x.shape[1], len(u))
        ctx.kept = _core.rnn_forward(in_slots(*tensors), HOW_OF_SEQUENCES, h, last, True)
        ctx.save_for_backward(*tensors, h)
        return h

    @staticmethod
    def backward(ctx, grad_h):
        *tensors, h = ctx.saved_tensors
        u, _, weight, bias = map(torch.empty_like, tensors)
        gradients = u, None, None, weight, bias, None, None, None
        _core.rnn_backward(in_slots(*tensors), HOW_OF_SEQUENCES, h, grad_h, None, gradients, ctx.kept)
        return u, None, weight, bias


def in_slots(u, x, weight, bias):
    """The operands of a sequence that begins with zeros."""
    return u, x, None, weight, bias, None, None, None, None


def application():
    u, h, g = torch.randn(16, 4).tril().requires_grad_(), torch.randn(1, 16, requires_grad=True), torch.randn(1, 16)
    fixed_u, fixed_h, c = u.detach(), h.detach(), torch.empty(1, 16)

    def differentiated(function):
        return lambda: grad(function(u, h), (u, h), g)

    without = {"core": lambda: _core.forward(fixed_u, fixed_h, c, *HOW), "ht.apply": lambda: ht.apply(fixed_u, fixed_h)}
    functions = {"nothing": Nothing, "core": Core, "core and flags": CoreAndFlags}
    return without, {
        **{name: differentiated(function.apply) for name, function in functions.items()},
        "ht.apply": differentiated(ht.apply),
    }


def sequence():
    layer = ht.OrthogonalRNN(1, 64, num_reflections=8)
    (cell,) = layer.cells
    x, g, weights = torch.randn(8, 1, 1), torch.randn(8, 1, 64), [cell.reflections, cell.weight_ih, cell.bias]
    fixed, h, last = [t.detach() for t in (weights[0], x, *weights[1:])], torch.empty(8, 1, 64), torch.empty(1, 64)
    frozen = ht.OrthogonalRNN(1, 64, num_reflections=8).requires_grad_(False)
    without = {
        "core": lambda: _core.rnn_forward(in_slots(*fixed), HOW_OF_SEQUENCES, h, last, False),
        "ht.OrthogonalRNN": lambda: frozen(x),
    }
    return without, {
        "core": lambda: grad(CoreOfSequences.apply(weights[0], x, *weights[1:]), weights, g),
        "ht.OrthogonalRNN": lambda: grad(layer(x)[0], weights, g),
    }


def main() -> None:
    chosen = options(__doc__, threads=1, rounds=40)
    torch.manual_seed(0)
    heading(chosen.threads, "", "", "median, us", "min, us")
    for work, (without, differentiated) in {"apply": application(), "recurrence": sequence()}.items():
        for kind, calls in {work: without, f"{work}, with gradients": differentiated}.items():
            times = interleaved(calls, chosen.rounds, budget=20.0, clock=clock(chosen.threads))
            for name, seconds in times.items():
                row(kind, name, *(1e6 * s for s in seconds))


if __name__ == "__main__":
    main()
