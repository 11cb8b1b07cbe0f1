"""The operators as functions of the tensors that they are differentiable in, small enough to check every derivative."""

import torch

import householder.torch as ht
from householder._base.spec import NONLINEARITIES
from tests.conftest import of_arrays


def results(function, tensors):
    """The values of a function, and the gradients of all tensors that are there."""
    values = function(*tensors)
    values = values if isinstance(values, tuple) else (values,)
    of_values = [
        torch.linspace(-1, 1, value.numel(), dtype=value.real.dtype).reshape(value.shape).to(value.device, value.dtype)
        for value in values
    ]
    grads = torch.autograd.grad(values, [t for t in tensors if t is not None], of_values)
    return [*(value.detach() for value in values), *grads]


def _random(*shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in shapes]


def _sequence(*results, **options):
    def run(u, x, h0, input_weight, bias):
        h, last_state = of_arrays(ht.rnn)(u, x, h0, input_weight=input_weight, bias=bias, **options)
        return (h, last_state)[results[0]] if results else torch.cat([h.flatten(), last_state.flatten()])

    return run


def _biased(nonlinearity):
    return lambda u, x, b: ht.rnn(u, x, nonlinearity=nonlinearity, nonlinearity_bias=b)[0]


def _unitary(u, x, h0, phases, **options):
    h, last = of_arrays(ht.rnn)(u, x, h0, phases=phases, **options)
    return torch.cat([h.flatten(), last.flatten()])


def _of_columns(u, x, h0, tau, **options):
    h, last = of_arrays(ht.rnn)(u, x, h0, tau=tau, columns="full", **options)
    return torch.cat([h.flatten(), last.flatten()])


def _delta(q, k, v, beta, *others, **options):
    """Outputs and final states; the others are gates, then initial states."""
    g, state = [*others, None, None][:2]
    results = ht.delta_rule(
        q,
        k,
        v,
        beta=beta,
        g=None if g is None else -g.square(),
        initial_state=state,
        output_final_state=True,
        **options,
    )
    return torch.cat([x.flatten() for x in results])


def _linear(q, k, v, g=None, state=None, **options):
    """Outputs and final states of linear attention."""
    g = None if g is None else -g.square()
    results = ht.linear_attention(q, k, v, g=g, initial_state=state, output_final_state=True, **options)
    return torch.cat([x.flatten() for x in results])


PHASES = torch.linspace(-1, 2, 4, dtype=torch.float64).requires_grad_()
COMPLEX = _random((4, 2), (3, 2, 4), (2, 4), dtype=torch.complex128)
SIZES = ((4, 2), (3, 2, 3), (2, 4), (4, 3), (4,))  # u, x, h0, input_weight, bias

CASES = {
    "apply": (ht.apply, _random((4, 2), (3, 4))),
    "apply transposed": (lambda u, h: ht.apply(ht.Reflections(u).H, h), _random((4, 3), (4,))),
    "apply, m == n": (ht.apply, _random((3, 3), (2, 3))),
    "apply transposed, m == n": (lambda u, h: ht.apply(ht.Reflections(u).H, h), _random((3, 3), (2, 3))),
    "apply many": (ht.apply, _random((2, 1, 4, 2), (3, 4))),
    "apply reflections": (lambda u, h: ht.apply(u, h, method="reflections"), _random((4, 2), (2, 4))),
    "apply, full": (lambda u, h: ht.apply(ht.Reflections(u, columns="full"), h), _random((3, 5), (2, 3))),
    "apply many, full": (lambda u, h: ht.apply(ht.Reflections(u, columns="full").H, h), _random((2, 1, 3, 4), (3, 3))),
    "apply, tau": (lambda u, h, tau: ht.apply(ht.Reflections(u, tau), h), _random((4, 3), (2, 4), (3,))),
    "apply, full, tau": (
        lambda u, h, tau: ht.apply(ht.Reflections(u, tau, columns="full").H, h),
        _random((3, 4), (2, 3), (4,)),
    ),
    "apply, tau, complex": (
        lambda u, h, tau: ht.apply(ht.Reflections(u, tau, columns="full"), h),
        _random((3, 2), (2, 3), (2,), dtype=torch.complex128),
    ),
    "matrix, full": (lambda u: ht.matrix(ht.Reflections(u, columns="full")), _random((3, 4))),
    "householder_product": (ht.householder_product, _random((2, 4, 3), (2, 2))),
    "ormqr": (ht.ormqr, _random((4, 3), (3,), (4, 2))),
    "matrix": (ht.matrix, _random((4, 2))),
    "matrix, m == n": (ht.matrix, _random((2, 3, 3))),
    "rnn": (_sequence(nonlinearity="tanh"), _random(*SIZES)),
    "rnn, all states": (_sequence(0), _random(*SIZES)),
    "rnn, last state": (_sequence(1, nonlinearity="relu"), _random(*SIZES)),
    "rnn transposed": (_sequence(nonlinearity="identity", transpose=True), _random(*SIZES)),
    "rnn reversed": (_sequence(nonlinearity="tanh", reverse=True), _random(*SIZES)),
    "rnn, m == n": (_sequence(nonlinearity="tanh"), _random((4, 4), *SIZES[1:])),
    "rnn unbatched": (_sequence(nonlinearity="tanh"), _random((4, 2), (3, 3), (4,), (4, 3), (4,))),
    "rnn, one h0": (_sequence(nonlinearity="tanh"), _random((4, 2), (3, 2, 3), (4,), (4, 3), (4,))),
    "rnn packed": (
        _sequence(nonlinearity="tanh", batch_sizes=torch.tensor([3, 2, 2, 1])),
        _random((4, 2), (8, 3), (3, 4), (4, 3), (4,)),
    ),
    "rnn, bare": (lambda u, x: ht.rnn(u, x, nonlinearity="tanh")[0], _random((4, 2), (3, 2, 4))),
    "rnn, dense": (_sequence(nonlinearity="tanh", method="dense"), _random(*SIZES)),
    "rnn, oplu": (_sequence(nonlinearity="oplu"), _random(*SIZES)),
    **{
        f"rnn, {phi.name}": (_biased(phi.name), _random((4, 2), (3, 2, 4), (phi.moduli(4, False),)))
        for phi in NONLINEARITIES.values()
        if phi.has_bias
    },
    "rnn, full": (
        lambda u, x: ht.rnn(ht.Reflections(u, columns="full"), x, nonlinearity="tanh")[0],
        _random((3, 5), (3, 2, 3)),
    ),
    "rnn, tau": (
        lambda u, x, tau: ht.rnn(ht.Reflections(u, tau).H, x, nonlinearity="tanh")[0],
        _random((4, 3), (3, 2, 4), (3,)),
    ),
    "rnn, full, tau": (
        lambda *tensors: _of_columns(*tensors, nonlinearity="tanh"),
        _random((3, 4), (3, 2, 3), (2, 3), (4,)),
    ),
    "rnn, tau, complex": (
        lambda *tensors: _of_columns(*tensors, nonlinearity="identity", method="dense"),
        _random((3, 2), (3, 2, 3), (2, 3), (2,), dtype=torch.complex128),
    ),
    "apply, complex": (lambda u, h, p: ht.apply(ht.Reflections(u, phases=p), h), [*COMPLEX[:2], PHASES]),
    "apply transposed, complex": (lambda u, h, p: ht.apply(ht.Reflections(u, phases=p).H, h), [*COMPLEX[:2], PHASES]),
    "matrix, complex": (lambda u, p: ht.matrix(ht.Reflections(u, phases=p)), [COMPLEX[0], PHASES]),
    "rnn, complex": (lambda *a: _unitary(*a, nonlinearity="identity"), [*COMPLEX, PHASES]),
    "rnn transposed, complex": (lambda *a: _unitary(*a, nonlinearity="identity", transpose=True), [*COMPLEX, PHASES]),
    "rnn reversed, complex": (lambda *a: _unitary(*a, nonlinearity="identity", reverse=True), [*COMPLEX, PHASES]),
    "rnn dense, complex": (lambda *a: _unitary(*a, nonlinearity="identity", method="dense"), [*COMPLEX, PHASES]),
    "rnn, complex tanh": (lambda *a: _unitary(*a, nonlinearity="tanh"), [*COMPLEX, PHASES]),
    "rnn, complex leaky": (lambda *a: _unitary(*a, nonlinearity="leaky_relu"), [*COMPLEX, PHASES]),
    "rnn, complex modrelu": (
        lambda u, x, p, b: ht.rnn(ht.Reflections(u, phases=p), x, nonlinearity="modrelu", nonlinearity_bias=b)[0],
        [*COMPLEX[:2], PHASES, *_random((4,))],
    ),
    "delta rule": (_delta, _random((1, 3, 1, 2), (1, 3, 1, 2), (1, 3, 2, 2), (1, 3, 2))),
    "delta rule, gated": (
        lambda *tensors: _delta(*tensors, use_qk_l2norm_in_kernel=True),
        _random((1, 3, 1, 2), (1, 3, 1, 2), (1, 3, 1, 2), (1, 3, 1), (1, 3, 1), (1, 1, 2, 2)),
    ),
    "delta rule, a gate a channel": (
        lambda *tensors: _delta(*tensors, num_householder=2),
        _random((1, 2, 1, 2), (1, 4, 1, 2), (1, 4, 1, 2), (1, 4, 1), (1, 2, 1, 2), (1, 1, 2, 2)),
    ),
    "delta rule, packed": (
        lambda *tensors: _delta(
            *tensors,
            cu_seqlens=torch.tensor([0, 2, 2, 3], device=tensors[0].device),
            use_qk_l2norm_in_kernel=True,
        ),
        _random((1, 3, 1, 2), (1, 3, 1, 2), (1, 3, 1, 2), (1, 3, 1), (1, 3, 1), (3, 1, 2, 2)),
    ),
    "linear attention": (_linear, _random((1, 3, 1, 2), (1, 3, 1, 2), (1, 3, 2, 2))),
    "linear attention, a gate a channel": (
        lambda *tensors: _linear(*tensors, use_qk_l2norm_in_kernel=True),
        _random((1, 3, 1, 2), (1, 3, 1, 2), (1, 3, 1, 2), (1, 3, 1, 2), (1, 1, 2, 2)),
    ),
    "linear attention, packed": (
        lambda *tensors: _linear(*tensors, cu_seqlens=torch.tensor([0, 2, 2, 3], device=tensors[0].device)),
        _random((1, 3, 1, 2), (1, 3, 1, 2), (1, 3, 1, 2), (1, 3, 1), (3, 1, 2, 2)),
    ),
}
