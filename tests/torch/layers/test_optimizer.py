"""Training of the parameters: signs that flip, weight decay, norms of columns."""

import copy

import pytest
import torch
from torch import nn

import householder as hh
import householder.torch as ht
from tests.oracles.torch import explicit_matrix


def departure(w):
    return (w.mT @ w - torch.eye(w.shape[-1], dtype=w.dtype)).abs().max().item()


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def reach(target, layer, steps, **adam):
    """Train the layer to be this matrix; yield it after each step."""
    optimizer = torch.optim.AdamW(layer.parameters(), **adam)
    for _ in range(steps):
        optimizer.zero_grad()
        (layer.matrix() - target).square().sum().backward()
        optimizer.step()
        yield optimizer


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_training_flips_the_sign_of_u_1(sign):
    """The determinant is locally constant: only u_1 leads from one half of O(n) to the other."""
    layer = ht.Orthogonal(4, num_reflections=4, bias=False, dtype=torch.float64)
    with torch.no_grad():
        layer.reflections[-1, -1] = sign
    target = explicit_matrix(layer.reflections.detach()).clone()
    target[:, -1] *= -1
    for _ in reach(target, layer, 300, lr=0.03, weight_decay=0):
        assert departure(layer.matrix()) < 1e-12
    assert layer.reflections[-1, -1].sign() == -sign
    assert (layer.matrix() - target).abs().max() < 1e-2


def test_weight_decay_is_harmless():
    layer = ht.Orthogonal(16, num_reflections=16, bias=False)
    target = ht.Orthogonal(16, num_reflections=16, bias=False).matrix().detach()
    for _ in reach(target, layer, 1000, lr=1e-2, weight_decay=1.0):
        pass
    assert departure(layer.matrix().detach()) < 1e-5


@pytest.mark.parametrize("m", [8, 16])
def test_weight_decay_alone_changes_nothing(m):
    """Where W is no product of reflections, decay wears it down to zero."""
    layer = ht.Orthogonal(16, num_reflections=m, bias=False)
    dense = nn.utils.parametrizations.orthogonal(nn.Linear(16, 16, bias=False), orthogonal_map="householder")
    before = layer.matrix().detach()
    parameters = [layer.reflections, *dense.parameters()]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=1.0)
    for _ in range(1000):
        optimizer.step()
    torch.testing.assert_close(layer.matrix().detach(), before, atol=1e-5, rtol=0)
    assert departure(dense.weight.detach()) > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_renormalised_columns_give_the_same_matrix(dtype, scale):
    u = torch.randn(3, 9, 5, dtype=dtype).tril() * scale
    before = ht.matrix(u)
    assert ht.renormalize_(u) is u
    torch.testing.assert_close(torch.linalg.vector_norm(u, dim=-2), torch.ones(3, 5))
    torch.testing.assert_close(ht.matrix(u), before)


@pytest.mark.parametrize(("length", "average"), [(1e-25, 1e15), (1e-25, 1e-3), (1e25, 1e-18), (3.0, 1.0)])
def test_averages_are_multiplied_by_the_lengths_also_where_their_squares_overflow(length, average):
    u = nn.Parameter(torch.tensor([[0.6], [0.8]]) * length)
    adam = torch.optim.Adam([u])
    adam.state[u] = {"exp_avg": torch.full((2, 1), average), "exp_avg_sq": torch.full((2, 1), average**2)}
    ht.renormalize_(u, adam)
    torch.testing.assert_close(u.detach(), torch.tensor([[0.6], [0.8]]))
    first, second = adam.state[u].values()
    torch.testing.assert_close(first, torch.full((2, 1), average * length))
    torch.testing.assert_close(second, torch.full((2, 1), (average * length) ** 2))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_columns_of_half_types_are_divided_by_their_norms_in_single_precision(half, scale):
    """The only rounding is that of the result; squares in half precision would overflow or vanish besides."""
    u = (torch.randn(40, 12) * scale).tril().to(half)
    exact = u.double() / torch.linalg.vector_norm(u.double(), dim=0)
    found = ht.renormalize_(u).double()
    unit = torch.finfo(half).eps * torch.exp2(exact.abs().log2().floor()).clamp_min(torch.finfo(half).tiny)
    assert ((found - exact).abs() <= 0.501 * unit).all()


def test_renormalising_leaves_u_1_and_zero_columns():
    u = torch.randn(5, 5).tril()
    u[:, 1] = 0
    ht.renormalize_(u)
    expected = torch.tensor([1.0, 0, 1, 1])
    torch.testing.assert_close(torch.linalg.vector_norm(u[:, :-1], dim=0), expected)
    subnormal = torch.tensor([[3e-40], [4e-40]])
    assert not ht.renormalize_(subnormal).any()  # which is the identity, as before
    last = u[-1, -1].clone()
    assert ht.renormalize_(u)[-1, -1] == last


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, amsgrad=True, eps=1e-30),
    "AdamW": lambda p: torch.optim.AdamW(p, weight_decay=0, eps=1e-30),
    "NAdam": lambda p: torch.optim.NAdam(p, eps=1e-30),
    "RAdam": lambda p: torch.optim.RAdam(p, eps=1e-30),
    "Adamax": lambda p: torch.optim.Adamax(p, eps=1e-30),
    "RMSprop": lambda p: torch.optim.RMSprop(p, eps=1e-30),
    "RMSprop, centered, momentum": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.9, eps=1e-30),
    "Adagrad": lambda p: torch.optim.Adagrad(p, eps=1e-30),
    "Adadelta": lambda p: torch.optim.Adadelta(p, eps=1e-12),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_once_renormalised_long_columns_step_as_if_they_had_always_been_short(optimizer):
    """Two runs, one with columns 50 times as long, have the same averages and the same next update."""
    u = ht.renormalize_(torch.randn(9, 4, dtype=torch.float64).tril())
    averages, stepped = [], []
    for lengths in (torch.ones(4), torch.tensor([50, 1, 50, 1e-3])):
        parameter = nn.Parameter(u * lengths)
        steps = optimizer([parameter])
        torch.manual_seed(1)
        for lr in [0.0] * 8 + [0.1]:
            if lr:
                ht.renormalize_(parameter, steps)
                averages.append([state.clone() for state in steps.state[parameter].values()])
            h = torch.randn(7, 9, dtype=torch.float64)
            parameter.grad = torch.autograd.grad(ht.apply(parameter, h).sin().sum(), parameter)[0]
            steps.param_groups[0]["lr"] = lr
            steps.step()
        stepped.append(parameter.detach() - u)
    rounding = 1e-6 if isinstance(steps, torch.optim.Adadelta) else 1e-11  # Adadelta's eps is added to its steps
    torch.testing.assert_close(*averages, rtol=rounding, atol=1e-20)
    torch.testing.assert_close(*stepped, rtol=10 * rounding, atol=1e-14)
    assert stepped[0].abs().max() > 1e-8


def test_an_optimizer_of_other_parameters_is_refused():
    layer = ht.Orthogonal(4, 4)
    optimizer = torch.optim.Adam(layer.parameters())
    for u in (layer.reflections.data, layer.reflections.detach().clone()):
        with pytest.raises(ValueError, match=r"does not update u of shape \(4, 4\): pass the parameter itself"):
            ht.renormalize_(u, optimizer)


@pytest.mark.parametrize("optimizer", [torch.optim.ASGD, torch.optim.Rprop, torch.optim.LBFGS])
def test_averages_of_other_optimizers_are_not_guessed(optimizer):
    u = nn.Parameter(torch.full((5, 2), 3.0))
    with pytest.raises(TypeError, match=f"optimizer is an? {optimizer.__name__}, expected one of SGD, Adam"):
        ht.renormalize_(u, optimizer([u]))
    adam = torch.optim.Adam([u])
    adam.state[u]["smoothed"] = torch.zeros_like(u)
    with pytest.raises(TypeError, match="optimizer is an Adam that keeps smoothed for u"):
        ht.renormalize_(u, adam)
    assert (u == 3).all()


def test_long_columns_stall_unless_they_are_renormalised():
    target = ht.Orthogonal(8, num_reflections=7, bias=False).matrix().detach()
    start = ht.Orthogonal(8, num_reflections=7, bias=False)
    with torch.no_grad():
        start.reflections.mul_(1e4)
    left = {}
    for renormalize in (False, True):
        layer = copy.deepcopy(start)
        for optimizer in reach(target, layer, 400, lr=0.03, weight_decay=0):
            if renormalize:
                ht.renormalize_(layer.reflections, optimizer)
        left[renormalize] = (layer.matrix() - target).norm() / (start.matrix() - target).norm()
    assert left[False] > 0.9
    assert left[True] < 0.1


def test_snap_is_the_sign_of_u_1():
    u = torch.randn(4, 4, 4)
    u[:, -1, -1] = torch.tensor([0.3, -0.2, 0.0, -7.0])
    rest = u.clone()
    assert ht.snap_(u) is u
    assert u[:, -1, -1].tolist() == [1, -1, -1, -1]
    u[:, -1, -1] = rest[:, -1, -1]
    assert torch.equal(u, rest)
    assert torch.equal(ht.snap_(rest[..., :3].clone()), rest[..., :3])


def test_an_unknown_u_1_stays_unknown():
    u = torch.full((2, 4, 4), torch.nan)
    u[0, -1, -1] = -0.5
    torch.testing.assert_close(ht.snap_(u.clone()), torch.from_numpy(hh.snap(u.numpy())), equal_nan=True)


@pytest.mark.parametrize("function", [ht.snap_, ht.renormalize_])
def test_types_are_checked(function):
    integers = torch.full((3, 3), 2)
    with pytest.raises(TypeError, match=r"u has dtype torch\.int64"):
        function(integers)
    assert (integers == 2).all()
    with pytest.raises(TypeError, match=r"u is a list"):
        function([[1.0], [2.0]])


@pytest.mark.parametrize("function", [ht.snap_, ht.renormalize_])
@pytest.mark.parametrize(
    ("module", "advice"),
    [
        (ht.OrthogonalRNN(3, 8), r"an OrthogonalRNN, .* such as its cells\.0\.reflections"),
        (ht.orthogonal(nn.Linear(4, 4)), r"such as its parametrizations\.weight\.original"),
        (nn.Linear(4, 4), "a Linear, expected a tensor of reflections$"),
    ],
    ids=["rnn", "parametrised", "plain"],
)
def test_a_module_is_not_its_reflections(function, module, advice):
    with pytest.raises(TypeError, match=advice):
        function(module)


@pytest.mark.parametrize("function", [ht.snap_, ht.renormalize_])
def test_shapes_are_checked(function):
    with pytest.raises(ValueError, match=r"u has shape \(2, 3\)"):
        function(torch.ones(2, 3))
