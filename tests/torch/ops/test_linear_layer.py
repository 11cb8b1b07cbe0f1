"""The causal convolution and the gated norm of linear attention: values, derivatives, types, strides, transforms."""

from functools import partial

import pytest
import torch

from householder.torch import _ops
from householder.torch._base import expressions
from householder.torch.functions.convolution import causal_convolution
from householder.torch.functions.gated_norm import gated_norm

HALVES = pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])


def convolution_operands(tokens=9, channels=5, taps=4, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = (2, tokens, channels), (channels, taps), (channels,)
    return [2 * torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def norm_operands(rows=7, width=6, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [
        2 * torch.randn(shape, generator=generator, dtype=dtype) for shape in ((rows, width), (rows, width), (width,))
    ]


def by_torch(x, weight, bias, silu):
    """The convolution as layers of transformers compute it."""
    a = torch.nn.functional.conv1d(x.mT, weight[:, None], bias, padding=weight.shape[1] - 1, groups=len(weight))
    a = a[..., : x.shape[1]].mT
    return torch.nn.functional.silu(a) if silu else a


def norm_by_torch(x, z, weight, epsilon, silu):
    n = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    return weight * n * (torch.nn.functional.silu(z) if silu else z.sigmoid())


def results(function, tensors):
    """Outputs and all gradients."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in tensors]
    y = function(*leaves)
    weights = (torch.arange(y.numel()).reshape(y.shape) % 5 - 2).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, [t for t in leaves if t is not None], weights)]


@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("tokens", "channels", "taps"), [(1, 1, 1), (2, 5, 4), (9, 5, 4), (70, 33, 6), (600, 520, 4)])
def test_convolutions_are_those_of_torch(tokens, channels, taps, has_bias, silu):
    x, weight, bias = convolution_operands(tokens, channels, taps)
    tensors = [x, weight, bias if has_bias else None]
    expected = results(partial(by_torch, silu=silu), tensors)
    torch.testing.assert_close(results(partial(causal_convolution, silu=silu), tensors), expected)
    operations = results(lambda *given: expressions.causal_convolution(*given, silu), tensors)
    torch.testing.assert_close(operations, expected)


@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (7, 6), (17, 128), (530, 33)])
def test_norms_are_those_of_torch(rows, width, silu):
    tensors, options = norm_operands(rows, width), {"epsilon": 1e-3, "silu": silu}
    expected = results(partial(norm_by_torch, **options), tensors)
    torch.testing.assert_close(results(partial(gated_norm, **options), tensors), expected)
    operations = results(lambda *given: expressions.gated_norm(*given, *options.values()), tensors)
    torch.testing.assert_close(operations, expected)


@HALVES
@pytest.mark.parametrize(
    ("function", "operands"),
    [
        (partial(causal_convolution, silu=True), convolution_operands),
        (partial(gated_norm, epsilon=1e-6, silu=True), norm_operands),
    ],
    ids=["convolution", "norm"],
)
def test_half_types_are_rounded_once(function, operands, half):
    tensors = [t.to(half) for t in operands()]
    found = results(function, tensors)
    assert all(t.dtype is half for t in found)
    exact = results(function, [t.double() for t in tensors])
    for got, want in zip(found, exact, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=torch.finfo(half).eps, atol=1e-3)
    assert torch.equal(found[0], function(*(t.float() for t in tensors)).to(half))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_convolutions_read_rows_where_they_are(dtype):
    wide, weight, bias = convolution_operands(9, 12)
    wide = wide.to(dtype)
    views = {
        "a part of the channels": wide[..., 3:8],
        "later tokens": wide[:, 4:, 3:8],
        "every other token": wide[:, ::2, :5],
        "channels first": wide.mT.contiguous().mT[..., 3:8],
        "one sequence for all": wide[:1, :, :5].expand(2, -1, -1),
        "from the end": wide[..., :5].flip(1),
    }
    for name, x in views.items():
        given = weight[:5], bias[:5]
        expected = causal_convolution(x.contiguous(), *given, silu=True)
        assert torch.equal(causal_convolution(x, *given, silu=True), expected), name
        gradients = [
            torch.autograd.grad(causal_convolution(leaf, *given, silu=True).double().square().sum(), leaf)[0]
            for leaf in (x.detach().requires_grad_(), x.contiguous().detach().requires_grad_())
        ]
        assert torch.equal(*gradients), name


def test_convolutions_do_not_copy_what_they_read(monkeypatch):
    monkeypatch.setattr(_ops.operator, "laid_out", None)
    x, weight, _ = convolution_operands(50, 40, dtype=torch.float32)
    leaf = x[:, 3:, 5:30].detach().requires_grad_()
    y = causal_convolution(leaf, weight[:25], silu=True)
    assert y.is_contiguous()
    torch.autograd.grad(y, leaf, torch.ones_like(y))


def test_operators_are_registered_correctly():
    tensors = convolution_operands()
    torch.library.opcheck(torch.ops.householder.causal_convolution.default, (*tensors, True))
    arguments = (*tensors, torch.ones_like(tensors[0]), [True, True, True], True)
    torch.library.opcheck(torch.ops.householder.causal_convolution_backward.default, arguments)
    tensors = norm_operands()
    torch.library.opcheck(torch.ops.householder.gated_norm.default, (*tensors, 1e-6, True))
    arguments = (*tensors, torch.ones_like(tensors[0]), [True, True, True], 1e-6, False)
    torch.library.opcheck(torch.ops.householder.gated_norm_backward.default, arguments)


def test_derivatives_of_any_order():
    operands = [t.requires_grad_() for t in convolution_operands(4, 2, 3)]
    function = partial(causal_convolution, silu=True)
    assert torch.autograd.gradcheck(function, operands, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, operands)
    operands = [t.requires_grad_() for t in norm_operands(3, 4)]
    function = partial(gated_norm, epsilon=1e-3, silu=True)
    assert torch.autograd.gradcheck(function, operands, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, operands)


@pytest.mark.parametrize("maps_weights", [False, True])
def test_mapped_calls_are_calls_one_by_one(maps_weights):
    x, weight, bias = (torch.stack([t, 2 * t, -t]) for t in convolution_operands())
    given = (x, weight, bias) if maps_weights else (x, weight[0], bias[0])
    dims = (0, 0, 0) if maps_weights else (0, None, None)
    compare_maps(partial(causal_convolution, silu=True), given, dims)
    x, z, weight = (torch.stack([t, 2 * t, -t]) for t in norm_operands())
    given = (x, z, weight) if maps_weights else (x, z[0], weight[0])
    compare_maps(partial(gated_norm, epsilon=1e-3, silu=True), given, dims)


def test_nothing_to_map_over():
    for function, operands in (
        (partial(causal_convolution, silu=True), convolution_operands()),
        (partial(gated_norm, epsilon=1e-3, silu=True), norm_operands()),
    ):
        loss = torch.func.grad(lambda *tensors, function=function: function(*tensors).sum(), (0, 1, 2))
        none, dims = [operands[0][None][:0], *operands[1:]], (0, None, None)
        assert torch.func.vmap(function, dims)(*none).shape == none[0].shape
        assert [g.shape for g in torch.func.vmap(loss, dims)(*none)] == [(0, *t.shape) for t in operands]


def compare_maps(function, given, dims):
    def both(*tensors):
        y, pull_back = torch.func.vjp(function, *tensors)
        return y, pull_back(y)

    found = torch.func.vmap(both, in_dims=dims)(*given)
    one_by_one = [both(*(t if d is None else t[i] for t, d in zip(given, dims, strict=True))) for i in range(3)]
    expected = (
        torch.stack([y for y, _ in one_by_one]),
        tuple(map(torch.stack, zip(*(g for _, g in one_by_one), strict=True))),
    )
    torch.testing.assert_close(found, expected)


def test_torch_operations_take_other_devices():
    for module, tensors, options in (
        (_ops.convolution, convolution_operands(), (True,)),
        (_ops.gated_norm, norm_operands(), (1e-6, True)),
    ):
        operation = module.operator.operation
        inputs = operation.inputs_type(*(t.to("meta") for t in tensors))
        assert module.operator(inputs, operation.options_type(*options)).shape == tensors[0].shape


def test_a_token_that_is_not_finite_changes_none_before_it():
    x, weight, bias = convolution_operands(20)
    changed = x.clone()
    changed[0, 10, 2] = float("nan")
    good, bad = (causal_convolution(t, weight, bias, silu=True) for t in (x, changed))
    differs = torch.zeros_like(good, dtype=torch.bool)
    differs[0, 10:14, 2] = True
    assert torch.equal(bad.isnan(), differs)
    assert torch.equal(good[~differs], bad[~differs])
