"""``ht.orthogonal`` in the place of ``torch.nn.utils.parametrizations.orthogonal``."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import householder.torch as ht

F64 = torch.float64


def orthonormal(w):
    tall = w if w.shape[-2] >= w.shape[-1] else w.mT
    return torch.testing.assert_close(
        tall.mT @ tall, torch.eye(tall.shape[-1], dtype=w.dtype).expand(*w.shape[:-2], -1, -1)
    )


@pytest.mark.parametrize("shape", [(6, 6), (6, 4), (4, 6), (1, 1), (5, 1), (1, 5)])
@pytest.mark.parametrize("m", [None, 1])
def test_a_linear_layer_becomes_orthogonal(shape, m):
    layer = ht.orthogonal(nn.Linear(*shape, dtype=F64), num_reflections=m)
    orthonormal(layer.weight)
    x = torch.randn(3, shape[0], dtype=F64)
    torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)
    layer(x).square().sum().backward()
    gradient = layer.parametrizations.weight.original.grad
    u = layer.parametrizations.weight.original.detach().requires_grad_()
    w = ht.matrix(u)
    w = w[:, : shape[0]] if shape[0] <= shape[1] else w[:, : shape[1]].T
    if u.shape[0] > 1:
        (x @ w.T + layer.bias).square().sum().backward()
        torch.testing.assert_close(gradient, u.grad)


def test_another_weight_is_replaced_by_its_q():
    layer = nn.Linear(4, 6, dtype=F64)
    q, r = torch.linalg.qr(layer.weight.detach())
    torch.testing.assert_close(ht.orthogonal(layer).weight, q * r.diagonal().sign())


@pytest.mark.parametrize("shape", [(6, 6), (6, 4), (4, 6)])
def test_an_orthogonal_matrix_is_kept_and_may_be_assigned(shape):
    layer = nn.Linear(*shape[::-1], dtype=F64)
    q = nn.init.orthogonal_(layer.weight).detach().clone()
    torch.testing.assert_close(ht.orthogonal(layer).weight, q)
    layer.weight = -q
    torch.testing.assert_close(layer.weight, -q)


@pytest.mark.parametrize("shape", [(6, 6), (6, 4), (4, 6)])
def test_of_another_matrix_that_is_assigned_q_is_taken_with_a_warning_that_says_how_far_it_moves(shape):
    layer = ht.orthogonal(nn.Linear(*shape[::-1], dtype=F64))
    given = torch.randn(shape, dtype=F64)
    with pytest.warns(UserWarning, match="is not orthogonal or not made of") as record:
        layer.weight = given
    q, r = torch.linalg.qr(given if shape[0] >= shape[1] else given.mT)
    q = q * r.diagonal().sign()
    torch.testing.assert_close(layer.weight, q if shape[0] >= shape[1] else q.mT)
    assert record[0].filename == __file__
    distance = (layer.weight - given).abs().max().item()
    assert float(str(record[0].message).rpartition(" ")[2]) == pytest.approx(distance, rel=0.01)


def test_autocast_leaves_the_check_its_precision():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer = ht.orthogonal(nn.Linear(6, 6))
        layer.weight = nn.init.orthogonal_(torch.empty(6, 6))


def test_a_matrix_out_of_reach_is_replaced_by_one_that_is_reached():
    layer = ht.orthogonal(nn.Linear(6, 6, dtype=F64), num_reflections=2)
    reached = ht.matrix(torch.randn(6, 2, dtype=F64))
    layer.weight = reached
    torch.testing.assert_close(layer.weight, reached)
    with pytest.warns(UserWarning, match="not made of 2 reflections"):
        layer.weight = nn.init.orthogonal_(torch.empty(6, 6, dtype=F64))
    orthonormal(layer.weight)


@pytest.mark.slow_combinations
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(
    ("rows", "columns", "m"),
    [(16, 16, 8), (64, 64, 16), (64, 64, 48), (128, 128, 64), (70, 20, 13), (20, 70, 13), (9, 6, 5), (4, 3, 1)],
)
def test_what_the_reflections_reach_is_found(rows, columns, m, dtype, bound):
    """Assigned back, and parametrised again."""
    torch.manual_seed(0)
    for _ in range(200 if rows * columns < 1000 else 20):
        layer = torch.nn.Linear(columns, rows, dtype=dtype)
        ht.orthogonal(layer, num_reflections=m)
        weight = layer.weight.detach().clone()
        layer.weight = weight
        assert (layer.weight - weight).abs().max() < bound
        parametrize.remove_parametrizations(layer, "weight")
        ht.orthogonal(layer, num_reflections=m)
        assert (layer.weight - weight).abs().max() < bound


@pytest.mark.parametrize("m", [3, 6])
def test_an_identity_among_the_reflections_is_found_again(m):
    torch.manual_seed(0)
    u = torch.randn(8, m, dtype=F64)
    u[:, 1] = 0
    layer = ht.orthogonal(nn.Linear(8, 8, dtype=F64), num_reflections=m)
    layer.weight = ht.matrix(u)
    torch.testing.assert_close(layer.weight, ht.matrix(u))


def test_an_orthogonal_weight_out_of_reach_is_replaced_with_a_warning_that_says_how_far_it_moves():
    layer = torch.nn.Linear(6, 6)
    torch.nn.init.orthogonal_(layer.weight)
    before = layer.weight.detach().clone()
    with pytest.warns(UserWarning, match="not made of 3 reflections") as record:
        ht.orthogonal(layer, num_reflections=3)
    distance = (layer.weight - before).abs().max().item()
    assert float(str(record[0].message).rpartition(" ")[2]) == pytest.approx(distance, rel=0.01)


@pytest.mark.parametrize(("shape", "other"), [((6, 6), (6, 4)), ((6, 4), (4, 6)), ((4, 6), (2, 12))])
def test_a_weight_of_another_shape_is_refused(shape, other):
    layer = ht.orthogonal(nn.Linear(*shape[::-1], dtype=F64))
    with pytest.raises(ValueError, match=rf"of shape \({other[0]}, {other[1]}\).* expected \({shape[0]}, {shape[1]}\)"):
        layer.weight = torch.eye(*other, dtype=F64)


def test_a_weight_that_is_not_finite_is_refused():
    linear = nn.Linear(3, 3)
    bad = torch.eye(3)
    bad[1, 2] = torch.nan
    with torch.no_grad():
        linear.weight.copy_(bad)
    with pytest.raises(ValueError, match=r"the weight of shape \(3, 3\) has entries that are not finite"):
        ht.orthogonal(linear)
    linear = ht.orthogonal(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="not finite"):
        linear.weight = bad


def test_a_matrix_is_no_weight_of_a_convolution():
    layer = ht.orthogonal(nn.Conv2d(1, 4, 2))
    with pytest.raises(ValueError, match=r"of shape \(4, 4\) is assigned, expected \(4, 1, 2, 2\)"):
        layer.weight = torch.eye(4)
    layer.weight = torch.eye(4).reshape(4, 1, 2, 2)
    torch.testing.assert_close(layer.weight.flatten(1), torch.eye(4))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(6, 6), (60, 40), (40, 60)])
def test_a_layer_converted_to_half_precision_is_assigned(half, shape):
    layer = ht.orthogonal(nn.Linear(*shape[::-1])).to(half)
    q = nn.init.orthogonal_(torch.empty(shape)).to(half)
    layer.weight = q
    assert layer.parametrizations.weight.original.dtype == half
    torch.testing.assert_close(layer.weight, q, rtol=0, atol=2 * torch.finfo(half).eps)
    with pytest.warns(UserWarning, match="is not orthogonal"):
        layer.weight = 1.1 * q
    torch.testing.assert_close(layer.weight, q, rtol=0, atol=4 * torch.finfo(half).eps)


def test_half_precision_does_not_hide_that_reflections_are_too_few():
    layer = ht.orthogonal(nn.Linear(6, 6), num_reflections=2).bfloat16()
    layer.weight = torch.eye(6, dtype=torch.bfloat16)
    torch.testing.assert_close(layer.weight, torch.eye(6, dtype=torch.bfloat16))
    with pytest.warns(UserWarning, match="not made of 2 reflections"):
        layer.weight = torch.eye(6, dtype=torch.bfloat16).flip(0)


def test_a_linear_layer_never_forms_its_weight(monkeypatch):
    from householder import _core

    layer = ht.orthogonal(nn.Linear(32, 32), num_reflections=4)
    monkeypatch.setattr(_core, "matrix", None)
    assert layer(torch.randn(5, 32)).shape == (5, 32)


def test_further_parametrizations_are_respected():
    layer = ht.orthogonal(nn.Linear(5, 5, dtype=F64))

    class Double(nn.Module):
        def forward(self, w):
            return 2 * w

    parametrize.register_parametrization(layer, "weight", Double())
    x = torch.randn(3, 5, dtype=F64)
    torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)
    torch.testing.assert_close((layer(x) - layer.bias).norm(dim=-1), 2 * x.norm(dim=-1))


def test_parametrizations_are_removed():
    layer = ht.orthogonal(nn.Linear(5, 5, dtype=F64))
    x = torch.randn(3, 5, dtype=F64)
    before = layer(x)
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Linear
    torch.testing.assert_close(layer(x), before)


def test_a_parametrization_in_the_place_of_a_removed_one():
    layer = ht.orthogonal(nn.Linear(5, 5, dtype=F64))
    parametrize.register_parametrization(layer, "bias", nn.Tanh())
    parametrize.remove_parametrizations(layer, "weight")
    x = torch.randn(3, 5, dtype=F64)
    torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)
    parametrizations.weight_norm(layer)
    torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_empty_weights(shape):
    layer = ht.orthogonal(nn.Linear(*shape[::-1]))
    theirs = parametrizations.orthogonal(nn.Linear(*shape[::-1]))
    theirs.bias = layer.bias
    x = torch.randn(3, shape[1])
    assert torch.equal(layer(x), theirs(x))
    layer(x).sum().backward()
    layer.weight = torch.empty(shape)
    assert layer.weight.shape == shape


def test_an_empty_stack():
    module = nn.Module()
    module.heads = nn.Parameter(torch.empty(0, 3, 4))
    assert ht.orthogonal(module, "heads").heads.shape == (0, 3, 4)
    assert module.parametrizations.heads.original.shape == (0, 4, 3)


def test_cached_weights_are_formed_once(monkeypatch):
    from householder import _core

    calls = []
    matrix = _core.matrix
    monkeypatch.setattr(_core, "matrix", lambda *a: calls.append(1) or matrix(*a))
    cell = ht.orthogonal(nn.RNNCell(3, 8), "weight_hh")
    calls.clear()
    with parametrize.cached():
        h = None
        for _ in range(5):
            h = cell(torch.randn(2, 3), h)
        h.sum().backward()
    assert len(calls) == 1


def test_a_copy_is_independent_of_what_is_removed_from_the_other():
    """As an averaged model for export is, which torch copies with ``deepcopy``."""
    cell, x = nn.RNNCell(3, 8, dtype=F64), torch.randn(2, 3, dtype=F64)
    for name in ("weight_hh", "weight_ih"):
        ht.orthogonal(cell, name)
    before, averaged = cell(x), torch.optim.swa_utils.AveragedModel(copy.deepcopy(cell))
    parametrize.remove_parametrizations(averaged.module, "weight_hh")
    assert set(cell.parametrizations) == {"weight_hh", "weight_ih"}
    assert set(averaged.module.parametrizations) == {"weight_ih"}
    for module in (cell, averaged.module):
        torch.testing.assert_close(module(x), before)
    parametrize.remove_parametrizations(averaged.module, "weight_ih")
    assert type(averaged.module) is nn.RNNCell
    linear = ht.orthogonal(nn.Linear(8, 8, dtype=F64))
    twin = copy.deepcopy(linear)
    parametrize.remove_parametrizations(linear, "weight")
    torch.testing.assert_close(twin(before), linear(before))
    assert type(linear) is nn.Linear
    assert isinstance(twin.parametrizations.weight[0], nn.Module)


def test_a_copy_of_a_module_that_torch_parametrised_is_constrained_alone():
    """torch gives the copy the class of the original, with the properties of both."""
    original = parametrizations.weight_norm(nn.RNNCell(3, 8), "weight_ih")
    ht.orthogonal(copy.deepcopy(original), "weight_hh")
    assert isinstance(original.weight_hh, nn.Parameter)


@pytest.mark.parametrize("convolution", [nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d])
def test_the_weight_of_a_convolution_is_one_matrix(convolution):
    layer = ht.orthogonal(convolution(4, 6, 3, dtype=F64))
    orthonormal(layer.weight.flatten(1))
    x = torch.randn(2, 4, *[7] * (layer.weight.dim() - 2), dtype=F64)
    layer(x).sum().backward()
    assert layer.parametrizations.weight.original.grad.isfinite().all()


@pytest.mark.parametrize("convolution", [nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d])
def test_a_convolution_may_be_the_stack_of_matrices_that_it_is_to_torch(convolution):
    layer, theirs = (convolution(4, 6, 3, dtype=F64) for _ in range(2))
    ht.orthogonal(layer, stack=True)
    parametrizations.orthogonal(theirs)
    orthonormal(layer.weight)
    assert layer.weight.shape == theirs.weight.shape
    layer.weight = theirs.weight.detach()
    torch.testing.assert_close(layer.weight, theirs.weight)


COMPLEX = torch.complex128


@pytest.mark.parametrize("dtype", [torch.complex64, COMPLEX], ids=str)
@pytest.mark.parametrize("shape", [(6, 6), (6, 4), (4, 6), (5, 1), (1, 5), (2, 3, 5, 4)], ids=str)
def test_a_complex_weight_becomes_unitary(shape, dtype):
    module = nn.Module()
    module.weight = nn.Parameter(torch.randn(shape, dtype=dtype))
    w = ht.orthogonal(module).weight
    gram = w.mH @ w if shape[-2] >= shape[-1] else w @ w.mH
    torch.testing.assert_close(gram, torch.eye(min(shape[-2:]), dtype=dtype).expand_as(gram))
    other = torch.linalg.qr(torch.randn(shape if shape[-2] >= shape[-1] else shape[::-1], dtype=dtype)).Q
    other = other if shape[-2] >= shape[-1] else other.mH
    module.weight = other.clone()
    torch.testing.assert_close(module.weight, other)
    (module.weight * torch.randn(shape, dtype=dtype)).real.sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.abs().max() > 0 for p in module.parameters())


@pytest.mark.parametrize("sizes", [(6, 6), (6, 4), (4, 6)])
def test_a_complex_linear_layer_multiplies_by_its_reflections(sizes):
    layer = ht.orthogonal(nn.Linear(*sizes, dtype=COMPLEX))
    x = torch.randn(3, sizes[0], dtype=COMPLEX)
    torch.testing.assert_close(layer(x), x @ layer.weight.mT + layer.bias)
    parametrize.remove_parametrizations(layer, "weight")
    torch.testing.assert_close(layer(x), x @ layer.weight.mT + layer.bias)


CASTS = {
    "to(complex64)": lambda module: module.to(torch.complex64),
    "to(cpu, complex64)": lambda module: module.to("cpu", torch.complex64),
    "to(complex128)": lambda module: module.to(COMPLEX),
    "double": nn.Module.double,
    "half": nn.Module.half,
    "bfloat16": nn.Module.bfloat16,
    "share_memory": nn.Module.share_memory,
}


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
@pytest.mark.parametrize("dtype", [torch.complex64, COMPLEX], ids=str)
def test_a_complex_weight_is_cast_as_torchs_own_parametrization_casts_it(cast, dtype):
    layer = nn.Linear(6, 6, dtype=dtype)
    ours, theirs = ht.orthogonal(copy.deepcopy(layer)), parametrizations.orthogonal(layer)
    ours(torch.ones(2, 6, dtype=dtype)).abs().sum().backward()
    before, kept = ours.weight.detach().clone(), list(ours.parameters())
    assert cast(ours).weight.dtype is cast(theirs).weight.dtype
    coarse = torch.promote_types(torch.complex64, dtype) if ours.weight.dtype is dtype else torch.complex64
    torch.testing.assert_close(ours.weight.to(coarse), before.to(coarse))
    x = torch.randn(2, 6, dtype=ours.weight.dtype)
    torch.testing.assert_close(ours(x), x @ ours.weight.mT + ours.bias)
    assert all(p.grad.dtype is p.dtype for p in ours.parameters())
    assert all(after is p for after, p in zip(ours.parameters(), kept, strict=True))
    ours.weight = ours.weight.detach()


@pytest.mark.parametrize("shape", [(6, 6), (7, 5)])
def test_few_complex_reflections_keep_the_first_columns(shape):
    layer = nn.Linear(*shape[::-1], dtype=COMPLEX)
    given = torch.linalg.qr(torch.randn(shape, dtype=COMPLEX)).Q
    layer.weight = nn.Parameter(given.clone())
    with pytest.warns(UserWarning, match="not made of 2 reflections"):
        ht.orthogonal(layer, num_reflections=2)
    torch.testing.assert_close(layer.weight[:, :2], given[:, :2])
    if shape[0] == shape[1]:
        own = layer.weight.detach().clone()
        layer.weight = own
        torch.testing.assert_close(layer.weight, own)


def test_other_weights_are_stacks_of_matrices():
    module = nn.Module()
    module.heads = nn.Parameter(torch.randn(2, 3, 5, 4, dtype=F64))
    ht.orthogonal(module, "heads", 3)
    assert module.parametrizations.heads.original.shape == (2, 3, 5, 3)
    orthonormal(module.heads)


def test_state_dicts_and_copies():
    layer = ht.orthogonal(nn.Linear(5, 7))
    other = ht.orthogonal(nn.Linear(5, 7))
    other.load_state_dict(layer.state_dict())
    twin = copy.deepcopy(layer)
    x = torch.randn(3, 5)
    for same in (other, twin):
        assert torch.equal(same(x), layer(x))
    optimiser = torch.optim.SGD(twin.parameters(), lr=1.0)
    twin(x).sum().backward()
    optimiser.step()
    assert not torch.equal(twin(x), layer(x))


@pytest.mark.parametrize("k", [1, 5, 6])
def test_coordinate_frames_are_reached(k):
    layer = ht.orthogonal(nn.Linear(k, 6, dtype=F64))
    for signs in ([1.0] * k, [-1.0] * k, [1.0, -1.0] * 3):
        frame = torch.eye(6, k, dtype=F64) * torch.tensor(signs[:k], dtype=F64)
        for q in (frame, frame.flip(0)):
            layer.weight = q
            torch.testing.assert_close(layer.weight, q)


def test_a_tall_weight_needs_no_square_matrix():
    rows = 40_000  # times itself, in float32: 6.4 GB
    layer = ht.orthogonal(nn.Embedding(rows, 4))
    frame = torch.linalg.qr(torch.randn(rows, 4))[0]
    layer.weight = frame
    torch.testing.assert_close(layer.weight, frame, atol=1e-6, rtol=0)
    layer.weight.sum().backward()
    assert layer.parametrizations.weight.original.grad.shape == (rows, 4)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_shapes_alone_are_enough(shape):
    layer = ht.orthogonal(nn.Linear(*shape[::-1], device="meta"), num_reflections=3)
    assert layer.weight.shape == shape
    assert layer(torch.empty(2, shape[1], device="meta")).shape == (2, shape[0])
    layer.to_empty(device="cpu").load_state_dict(ht.orthogonal(nn.Linear(*shape[::-1]), num_reflections=3).state_dict())
    assert layer.parametrizations.weight[0].right_inverse(layer.weight).shape == (max(shape), 3)


def test_a_gradient_of_the_weight_is_none_of_its_reflections():
    layer = nn.Linear(6, 4)
    layer(torch.randn(3, 6)).sum().backward()
    ht.orthogonal(layer)
    layer(torch.randn(3, 6)).sum().backward()
    assert layer.parametrizations.weight.original.grad.shape == (6, 4)
