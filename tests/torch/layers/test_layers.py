"""``Orthogonal``, ``Unitary``, ``SVDLinear``, and the nonlinearities of pairs."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import householder.torch as ht
from householder.torch.layers import base
from tests.oracles.torch import explicit_matrix, phi

F64, C128 = torch.float64, torch.complex128
SQUARE = [(6, 6, 6), (6, 6, 2), (1, 1, 1)]
FRAMES = [(6, 4, 4), (4, 6, 4), (6, 4, 1), (4, 6, 2), (5, 1, 1), (1, 5, 1)]


def frame_layer(kind, sizes, **options):
    torch.manual_seed(1)
    in_features, out_features, m = sizes
    dtype = F64 if kind is ht.Orthogonal else C128
    module = kind(in_features, out_features, num_reflections=m, dtype=dtype, **options)
    torch.nn.init.normal_(module.bias)
    return module, torch.randn(3, in_features, dtype=dtype)


kinds = pytest.mark.parametrize("kind", [ht.Orthogonal, ht.Unitary])


@kinds
@pytest.mark.parametrize("sizes", [*SQUARE[1:2], *FRAMES], ids=str)
def test_a_layer_multiplies_by_a_frame_of_the_product(kind, sizes):
    module, x = frame_layer(kind, sizes)
    in_features, out_features, _ = sizes
    w = explicit_matrix(module.reflections.detach(), None if module.phases is None else module.phases.detach())
    expected = w[:, :in_features] if out_features >= in_features else w[:, :out_features].mH
    torch.testing.assert_close(module.matrix(), expected)
    torch.testing.assert_close(module(x), x @ expected.mT + module.bias)
    gram = expected.mH @ expected if out_features >= in_features else expected @ expected.mH
    torch.testing.assert_close(gram, torch.eye(len(gram), dtype=gram.dtype))


@kinds
@pytest.mark.parametrize("sizes", [(6, 6, 2), (6, 6, 5), (4, 6, 4)], ids=str)
def test_inverse_restores(kind, sizes):
    module, x = frame_layer(kind, sizes)
    torch.testing.assert_close(module.inverse(module(x)), x)


@kinds
def test_the_inverse_of_a_narrowing_frame_is_its_pseudo_inverse(kind):
    module, x = frame_layer(kind, (6, 4, 3))
    y = module(x)
    torch.testing.assert_close(module.inverse(y), (y - module.bias) @ module.matrix().conj())
    torch.testing.assert_close(module(module.inverse(y)), y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("constraint", ["hard", "soft"])
@pytest.mark.parametrize("latent", [-math.inf, -2.0, -0.5, -0.0, 0.0, 1e-40, 0.5, 2.0, math.inf, math.nan])
def test_a_constrained_sign_is_the_same_for_every_observer(latent, constraint, dtype):
    u = torch.full((2, 3, 3), 0.25, dtype=dtype)
    u[1, -1, -1] = latent
    found = base.constrain(u, constraint)
    with FlopCounterMode(display=False):
        assert_close(base.constrain(u, constraint), found, equal_nan=True, rtol=0, atol=0)
    expected = (1.0 if latent > 0 else -1.0) if constraint == "hard" else min(max(latent, -1), 1)
    u[:, -1, -1] = torch.tensor([1.0 if constraint == "hard" else 0.25, expected], dtype=dtype)
    assert_close(found, u, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("constraint", ["hard", "soft"])
@pytest.mark.parametrize("n", [1, 5])
def test_a_full_product_inverts_and_has_a_determinant(constraint, n):
    module, x = frame_layer(ht.Orthogonal, (n, n, n), constraint=constraint)
    module.reflections.data[-1, -1] = -0.4
    torch.testing.assert_close(module.inverse(module(x)), x)
    torch.testing.assert_close(module.logdet, torch.linalg.slogdet(module.matrix())[1], atol=1e-12, rtol=0)
    assert (module.logdet == 0) == (constraint == "hard")


@kinds
def test_logdet_is_zero_and_real(kind):
    logdet = frame_layer(kind, (5, 5, 2))[0].logdet
    assert logdet == 0
    assert not logdet.is_complex()
    with pytest.raises(ValueError, match=r"a frame of shape \(4, 6\) has no determinant"):
        frame_layer(kind, (6, 4, 2))[0].logdet  # noqa: B018


@pytest.mark.parametrize(
    ("layer", "first_line"),
    [
        (ht.Orthogonal(6, 4), "Orthogonal(in_features=6, out_features=4, num_reflections=4, bias=True)"),
        (ht.SVDLinear(6, 4), "in_features=6, out_features=4, margin=0.1, bias=True"),
        (ht.OrthogonalAdapter(nn.Linear(6, 4), 2), "in_features=6, out_features=4, num_reflections=2, merged=False"),
        (ht.orthogonal(nn.Linear(6, 4)).parametrizations.weight[0], "(4, 6), num_reflections=4"),
        (ht.OrthogonalRNN(3, 8, 2), "3, 8, num_layers=2"),
        (ht.UnitaryRNNCell(3, 8), "3, 8, num_reflections=7, nonlinearity='modrelu', bias=True"),
        (ht.ModReLU(4), "4"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_layers_show_their_sizes(layer, first_line):
    assert first_line in repr(layer)


@pytest.mark.parametrize(
    ("kind", "sizes", "m"),
    [(ht.Orthogonal, (64,), 32), (ht.Orthogonal, (512, 300), 37), (ht.Unitary, (8,), 7), (ht.SVDLinear, (64,), 32)],
)
def test_the_default_number_of_reflections(kind, sizes, m):
    layer = kind(*sizes)
    assert (layer.left if kind is ht.SVDLinear else layer).num_reflections == m


PRECISIONS = {
    F64: (C128, F64),
    C128: (C128, F64),
    torch.float32: (torch.complex64, torch.float32),
    torch.complex64: (torch.complex64, torch.float32),
    torch.float16: (torch.complex64, torch.float32),
    torch.bfloat16: (torch.complex64, torch.float32),
}
CONVERSIONS = {
    "double": (nn.Module.double, F64),
    "float": (nn.Module.float, torch.float32),
    "half": (nn.Module.half, torch.float16),
    "bfloat16": (nn.Module.bfloat16, torch.bfloat16),
    **{f"to({dtype})": (lambda module, dtype=dtype: module.to(dtype), dtype) for dtype in PRECISIONS},
}


def unitary_layers(dtype):
    """A layer, its nonlinearity and a recurrence."""
    torch.manual_seed(4)
    rnn = ht.UnitaryRNN(4, 4, learn_h0=True, dtype=dtype)
    return nn.ModuleList([ht.Unitary(4, dtype=dtype), ht.ModReLU(4), rnn])


def run(layers, x):
    layer, phi, rnn = layers
    return rnn(phi(layer(x)))[0]


@pytest.mark.parametrize(("convert", "dtype"), CONVERSIONS.values(), ids=list(CONVERSIONS))
@pytest.mark.parametrize("before", [torch.complex64, C128])
def test_conversions_of_unitary_layers_choose_the_precision(convert, dtype, before):
    layers = unitary_layers(before)
    values = {name: p.detach().clone() for name, p in layers.named_parameters() if not name.startswith("1.")}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Complex modules are a new feature")
        convert(layers)
    for name, value in values.items():
        after = layers.get_parameter(name)
        assert after.dtype == PRECISIONS[dtype][not value.is_complex()]
        torch.testing.assert_close(after, value.to(after.dtype))
    assert not layers[1].bias.is_complex()
    kind = PRECISIONS[dtype][0]
    h = run(layers, torch.randn(3, 2, 4, dtype=kind))
    assert h.dtype == kind
    h.abs().sum().backward()
    assert all(p.grad.dtype == p.dtype for p in layers.parameters())


def test_real_layers_may_be_of_a_half_type():
    assert ht.Orthogonal(4).half().reflections.dtype == torch.float16
    assert ht.ModReLU(4).bfloat16().bias.dtype == torch.bfloat16


def test_conversions_keep_parameters_and_gradients():
    layers = unitary_layers(torch.complex64)
    run(layers, torch.randn(3, 2, 4, dtype=torch.complex64)).abs().sum().backward()
    parameters = list(layers.parameters())
    gradients = [p.grad.clone() for p in parameters]
    layers.double()
    assert all(after is before for after, before in zip(layers.parameters(), parameters, strict=True))
    for p, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient.to(p.dtype))


@pytest.mark.parametrize("layer", [ht.Orthogonal(4, 4), ht.OrthogonalRNN(2, 4), ht.SVDLinear(4, 4)])
def test_real_layers_refuse_complex_numbers_of_a_state_dict(layer):
    before = copy.deepcopy(layer.state_dict())
    name = next(iter(before))
    with pytest.raises(RuntimeError, match=rf"{name} is real, but has dtype torch\.complex64 in the state dict"):
        layer.load_state_dict(before | {name: before[name] + 1j})
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)


def test_modrelu_starts_again():
    phi = ht.ModReLU(3)
    nn.init.ones_(phi.bias)
    phi.reset_parameters()
    assert not phi.bias.any()


def test_unitary_layers_move():
    layers = unitary_layers(C128)
    kinds = [p.dtype for p in layers.parameters()]
    assert all(p.is_shared() for p in layers.share_memory().parameters())
    layers.to("meta")
    assert all(p.is_meta for p in layers.parameters())
    layers.to_empty(device="cpu")
    assert [p.dtype for p in layers.parameters()] == kinds
    assert all(p.device.type == "cpu" for p in layers.parameters())


@pytest.mark.parametrize("kind", [ht.Orthogonal, ht.SVDLinear])
def test_an_output_that_cannot_be_inverted_is_named(kind):
    with pytest.raises(ValueError, match=r"output has shape \(2, 6\), expected a last axis of 4"):
        kind(6, 4).inverse(torch.ones(2, 6))
    with pytest.raises(TypeError, match=r"output is on meta but the layer is on cpu"):
        kind(6, 4).inverse(torch.ones(3, 4, device="meta"))


def test_complex_reflections_are_of_the_larger_size():
    assert ht.Unitary(1, 2)(torch.ones(3, 1, dtype=torch.complex64)).shape == (3, 2)


def test_the_inverse_under_the_soft_constraint_divides_by_a_small_number():
    layer = ht.Orthogonal(3, num_reflections=3, constraint="soft", bias=False)
    with torch.no_grad():
        layer.reflections.copy_(torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, -1.0, 1e-25]]))
    x = torch.tensor([[1.0, 2.0, 3.0]])
    torch.testing.assert_close(layer.inverse(layer(x))[:, :2], x[:, :2])
    unit = layer.matrix().mT / torch.tensor([1.0, 1.0, 1e-25])[:, None]  # W_1'
    torch.testing.assert_close(layer.inverse(x), x @ unit.mT / torch.tensor([1.0, 1.0, 1e-25]))


def test_the_inverse_under_the_soft_constraint_keeps_the_type():
    layer = ht.Orthogonal(6, num_reflections=6, constraint="soft")
    assert layer.inverse(torch.ones(2, 6, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("sizes", [(6, 6, 3), (6, 4, 2), (4, 6, 4)], ids=str)
def test_svd_linear_has_the_singular_values_it_says(sizes):
    torch.manual_seed(2)
    in_features, out_features, m = sizes
    module = ht.SVDLinear(in_features, out_features, num_reflections=m, margin=0.3, dtype=F64)
    torch.nn.init.normal_(module.spectrum, std=3)
    torch.nn.init.normal_(module.bias)
    x = torch.randn(5, in_features, dtype=F64)
    w, s = module.matrix(), module.singular_values()
    torch.testing.assert_close(torch.linalg.svdvals(w), s.sort(descending=True).values)
    assert (s - 1).abs().max() < 0.3
    torch.testing.assert_close(module(x), x @ w.T + module.bias)
    y = module(x)
    torch.testing.assert_close(module.inverse(y), (y - module.bias) @ torch.linalg.pinv(w).T)
    if in_features == out_features:
        torch.testing.assert_close(module.logdet, torch.linalg.slogdet(w)[1])
    else:
        with pytest.raises(ValueError, match="has no determinant"):
            module.logdet  # noqa: B018


def test_oplu_sorts_pairs_and_keeps_the_norm():
    x = torch.randn(3, 4, 8, dtype=F64)
    y = ht.OPLU()(x)
    torch.testing.assert_close(y, phi(x, "oplu"))
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1))
    assert (y[..., :4] >= y[..., 4:]).all()
    assert torch.autograd.gradcheck(ht.OPLU(), x.requires_grad_(), fast_mode=True)


def test_equal_numbers_of_a_pair_keep_their_gradients():
    """As in the recurrence, whose zero states are ties: shared gradients would have another norm."""
    x = torch.zeros(4, requires_grad=True)
    grad = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert torch.equal(torch.autograd.grad(ht.OPLU()(x), x, grad)[0], grad)
    rnn = ht.OrthogonalRNN(1, 8, nonlinearity="oplu")
    output, _ = rnn(torch.zeros(3, 1, 1))
    state, weights = None, torch.arange(8.0)
    for step in torch.zeros(3, 1, 1):
        state = rnn.cells[0](step, state)
    bias = rnn.cells[0].bias
    torch.testing.assert_close(*(torch.autograd.grad((h * weights).sum(), bias) for h in (output[-1], state)))


@pytest.mark.parametrize("activation", [ht.OPLU(), ht.ModReLU(4)])
def test_nan_stays(activation):
    x = torch.ones(8)
    x[1] = torch.nan
    assert activation(x).isnan().any()


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 1e-19, 1e-30, 1e-40])
def test_modrelu_of_small_moduli(scale, is_complex):
    module = ht.ModReLU(1)
    torch.nn.init.constant_(module.bias, 0.5)
    x = (torch.tensor([[0.6, 0.8]], dtype=F64) * scale).float().requires_grad_()
    parts = torch.view_as_real(module(torch.view_as_complex(x))) if is_complex else module(x)
    torch.testing.assert_close(parts[0], torch.tensor([0.3 + 0.6 * scale, 0.4 + 0.8 * scale]))
    if scale > 1e-38:
        # h = z + b z / |z|, and the gradient of x / |z| is (y, -x) y / |z|^3
        (grad,) = torch.autograd.grad(parts[0, 0], x)
        torch.testing.assert_close(grad[0], torch.tensor([1 + 0.32 / scale, -0.24 / scale]))


@pytest.mark.parametrize("dtype", [F64, C128])
def test_modrelu_changes_moduli_only(dtype):
    module = ht.ModReLU(4, dtype=F64)
    module.bias.data.copy_(torch.tensor([-1.0, -0.3, 0.2, 0.0]))
    x = torch.randn(50, 4, dtype=C128)
    y = module(x)
    alive = x.abs() + module.bias > 0
    torch.testing.assert_close(y[alive].angle(), x[alive].angle())
    torch.testing.assert_close(y.abs(), (x.abs() + module.bias).clamp(min=0))
    if dtype == F64:
        parts = torch.cat([x.real, x.imag], -1)
        torch.testing.assert_close(module(parts), torch.cat([y.real, y.imag], -1))
        x = parts
    assert torch.autograd.gradcheck(module, x[:5].clone().requires_grad_(), fast_mode=True)
    assert not module(torch.zeros_like(x)).any()
    zero = torch.zeros_like(x).requires_grad_()
    module(zero).abs().sum().backward()
    assert zero.grad.isfinite().all()


def test_a_unitary_recurrence_keeps_norms():
    module = ht.UnitaryRNN(3, 8, nonlinearity="identity", bias=False)
    hx = torch.randn(1, 2, 8, dtype=torch.complex64)
    output, _ = module(torch.zeros(50, 2, 3), hx)
    torch.testing.assert_close(output[-1].norm(dim=-1), hx[0].norm(dim=-1))
    w = module.cells[0].matrix()
    torch.testing.assert_close(w.mH @ w, torch.eye(8, dtype=w.dtype), atol=1e-5, rtol=0)


def test_a_unitary_layer_takes_real_vectors():
    layer, x = ht.Unitary(8, 5), torch.randn(3, 8)
    assert torch.equal(layer(x), layer(x.to(torch.complex64)))
    y = torch.randn(3, 5)
    assert torch.equal(layer.inverse(y), layer.inverse(y.to(torch.complex64)))
    with pytest.raises(TypeError, match=r"input has dtype torch\.float64 but the layer has dtype torch\.complex64"):
        layer(x.double())


@pytest.mark.parametrize("kind", [ht.Orthogonal, ht.Unitary, ht.SVDLinear])
def test_a_linear_layer_takes_the_place_of_torchs(kind):
    """The same positional arguments, a bias by default, and a weight."""
    layer = kind(6, 4, True, "cpu", torch.complex128 if kind is ht.Unitary else F64)
    assert layer.bias.shape == (4,)
    assert not layer.bias.any()
    assert kind(6, 4, False).bias is None
    x = torch.randn(3, 6, dtype=layer.bias.dtype)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))
