"""Derivatives of the operators: first, second, forward mode, and which of them are computed."""

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import grad, jacfwd, jacrev, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import householder.torch as ht
from householder import _core
from tests.cases.torch import CASES
from tests.oracles.torch import explicit_matrix, problem

cases = pytest.mark.parametrize(("function", "inputs"), CASES.values(), ids=CASES)


@cases
@pytest.mark.filterwarnings("ignore:Please use .torch.vmap.:FutureWarning")  # older torch's own
def test_gradients_agree_with_finite_differences(function, inputs):
    assert gradcheck(function, inputs, check_batched_grad=True, fast_mode=False)


@cases
def test_forward_mode_agrees_with_finite_differences(function, inputs):
    assert gradcheck(function, inputs, check_forward_ad=True, check_backward_ad=False, fast_mode=True)


@cases
def test_second_derivatives_agree_with_finite_differences(function, inputs):
    assert gradgradcheck(function, inputs, fast_mode=True)


@cases
def test_vectorised_jacobians_in_forward_mode_are_those_of_jvp(function, inputs):
    """They batch tangents by torch's older vmap."""
    inputs = tuple(t.detach() for t in inputs)
    found = torch.autograd.functional.jacobian(function, inputs, vectorize=True, strategy="forward-mode")
    for i, jacobian in enumerate(found):
        along = [torch.zeros_like(t) for t in inputs]
        along[i].view(-1)[-1] = 1
        expected = jvp(function, inputs, tuple(along))[1]
        torch.testing.assert_close(jacobian.flatten(expected.dim())[..., -1], expected)


@cases
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch's own, of conj_physical
def test_forward_mode_goes_through_maps(function, inputs):
    inputs = tuple(t.detach() for t in inputs)
    many, tangents = ([torch.stack([t, scale * t]) for t in inputs] for scale in (0.5, -2.0))
    found = jvp(vmap(function), tuple(many), tuple(tangents))[1]
    each = [jvp(function, tuple(t[i] for t in many), tuple(t[i] for t in tangents))[1] for i in range(2)]
    torch.testing.assert_close(found, torch.stack(each))


@pytest.mark.parametrize(
    "layer",
    [
        ht.OrthogonalRNN(2, 4, nonlinearity="tanh", bidirectional=True, dtype=torch.float64),
        ht.OrthogonalRNN(2, 4, 2, "tanh", bidirectional=True, batch_first=True, dtype=torch.float64),
        ht.UnitaryRNN(2, 3, nonlinearity="tanh", bidirectional=True, dtype=torch.float64),
    ],
)
def test_forward_mode_goes_through_both_directions(layer):
    x = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(layer, x, check_forward_ad=True, fast_mode=True)


def test_third_derivatives():
    u, h = problem(3, 1)
    u.requires_grad_()

    def third(f):
        grad = f(u)
        for _ in range(3):
            (grad,) = torch.autograd.grad(grad.sin().sum(), u, create_graph=True)
        return grad

    torch.testing.assert_close(third(lambda u: ht.apply(u, h)), third(lambda u: explicit_matrix(u) @ h))


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e20, 1e30])
@pytest.mark.parametrize("function", [ht.apply, lambda u, h: ht.matrix(u) @ h], ids=["apply", "matrix"])
def test_second_derivatives_do_not_depend_on_the_norm_of_columns(function, scale):
    torch.manual_seed(0)
    u, w, h, g = torch.randn(9, 4), torch.randn(9, 4), torch.randn(9), torch.randn(9)

    def hessian_times_w(scale):
        """At columns times ``scale``, times ``scale``: the direction has grown with them."""
        scaled = (u * scale).requires_grad_()
        (first,) = torch.autograd.grad(g @ function(scaled, h), scaled, create_graph=True)
        return torch.autograd.grad(first, scaled, w * scale)[0] * scale

    torch.testing.assert_close(hessian_times_w(scale), hessian_times_w(1.0), rtol=1e-4, atol=1e-4)


def column(t):
    """The first column of ``H((1, t))``, whose entries sum to ``1 - 2 (1 + t) / (1 + t^2)``."""
    return torch.stack([torch.ones_like(t), t])[:, None], torch.tensor([1.0, 0.0], dtype=t.dtype)


SUMS = {
    "matrix": lambda t: ht.matrix(column(t)[0])[:, 0].sum(),
    "apply": lambda t: ht.apply(*column(t)).sum(),
    "rnn": lambda t: ht.rnn(column(t)[0], t.new_zeros(1, 2), column(t)[1], nonlinearity="identity")[1].sum(),
}


def twice_backward(f, t):
    t.requires_grad_()
    (first,) = torch.autograd.grad(f(t), t, create_graph=True)
    return torch.autograd.grad(first, t)[0]


def dual_of_gradient(f, t):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(t.requires_grad_(), torch.ones_like(t))
        (first,) = torch.autograd.grad(f(dual), dual, create_graph=True)
        return forward_ad.unpack_dual(first).tangent


SECOND_DERIVATIVES = {
    "backward over backward": twice_backward,
    "forward over backward": lambda f, t: jvp(grad(f), (t,), (torch.ones_like(t),))[1],
    "dual numbers over backward": dual_of_gradient,
    "jacrev over jacrev": lambda f, t: jacrev(jacrev(f))(t),
    "jacfwd over jacrev": lambda f, t: jacfwd(jacrev(f))(t),
    "jacrev over jacfwd": lambda f, t: jacrev(jacfwd(f))(t),
    "jacfwd over jacfwd": lambda f, t: jacfwd(jacfwd(f))(t),
    "mapped": lambda f, t: vmap(jacfwd(jacrev(f)))(t[None])[0],
}


@pytest.mark.parametrize("derivative", SECOND_DERIVATIVES)
@pytest.mark.parametrize("name", SUMS)
def test_a_second_derivative_known_in_closed_form(name, derivative):
    t = torch.tensor(0.7, dtype=torch.float64)
    assert SECOND_DERIVATIVES[derivative](SUMS[name], t).item() == pytest.approx(1.556251320682393, abs=1e-12)


@cases
def test_only_wanted_gradients(function, inputs):
    torch.manual_seed(0)
    output = function(*inputs)
    grad = torch.randn_like(output)
    everything = torch.autograd.grad(output, inputs, grad)
    for wanted in range(1, 2 ** len(inputs)):
        chosen = [t.detach().requires_grad_(bool(wanted >> i & 1)) for i, t in enumerate(inputs)]
        function(*chosen).backward(grad)
        for t, expected in zip(chosen, everything, strict=True):
            assert (t.grad is None) == (not t.requires_grad)
            if t.grad is not None:
                torch.testing.assert_close(t.grad, expected)


def test_a_single_initial_state_for_one_sequence_differentiates_twice():
    layer = ht.OrthogonalRNN(3, 8, num_reflections=2, learn_h0=True, dtype=torch.float64)
    x, parameters = torch.randn(5, 1, 3, dtype=torch.float64), tuple(layer.parameters())

    def first(batch):
        states = layer(x.expand(5, batch, 3))[0]
        return torch.autograd.grad(states.square().sum() / batch, parameters, create_graph=True)

    one, two = ([*torch.autograd.grad(sum(g.sin().sum() for g in first(batch)), parameters)] for batch in (1, 2))
    torch.testing.assert_close(one, two)


def test_unwanted_gradients_are_not_computed(monkeypatch):
    operands = []
    monkeypatch.setattr(_core, "rnn_backward", lambda *a: operands.append(a[3:6]))
    u, x = problem(4, 2, 3, 2)
    ht.rnn(u, x.requires_grad_())[1].sum().backward()
    grad_h, grad_last, gradients = operands[0]
    assert grad_h is None  # the loss sees last states only
    assert grad_last is not None
    assert [gradient is None for gradient in gradients] == [True, False, *[True] * 6]


def test_a_gradient_penalty_on_the_input_multiplies_as_often_as_one_of_torchs_rnn():
    class Products(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.count += function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
            return function(*args, **kwargs or {})

    def products(layer):
        x = torch.randn(30, 2, 3, requires_grad=True)
        with Products() as products:
            (slope,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
            torch.autograd.grad(slope.square().sum(), list(layer.parameters()))
        return products.count

    ours = ht.OrthogonalRNN(3, 8, num_reflections=4, nonlinearity="tanh")
    assert products(ours) <= 1.2 * products(torch.nn.RNN(3, 8))
