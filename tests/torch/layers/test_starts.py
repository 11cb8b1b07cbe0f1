"""How layers start: the distribution of every parameter, from fixed seeds, with bounds of five standard errors."""

import math

import pytest
import torch
from torch import nn

import householder.torch as ht

F64, C128 = torch.float64, torch.complex128


def assert_uniform(values, bound):
    """Uniform in [-bound, bound]: the empirical distribution function stays near the line."""
    values, _ = values.detach().double().flatten().sort()
    assert values.abs().max() <= bound
    line = (values / bound + 1) / 2
    steps = torch.arange(1, len(values) + 1, dtype=F64) / len(values)
    distance = (line - steps).abs().max().item()  # above 2.3 / sqrt(N) once in 20,000
    assert distance < 2.3 / len(values) ** 0.5 + 1 / len(values)


def assert_on_the_sphere(columns):
    """Uniform on the unit sphere: moments of each entry, and of products of two."""
    columns = columns.detach()
    size, count = columns.shape
    torch.testing.assert_close(torch.linalg.vector_norm(columns, dim=0), torch.ones(count, dtype=F64))
    error = 5 / count**0.5
    second = columns @ columns.mH / count
    torch.testing.assert_close(columns.mean(1), torch.zeros_like(columns[:, 0]), rtol=0, atol=error / size**0.5)
    torch.testing.assert_close(second, torch.eye(size, dtype=second.dtype) / size, rtol=0, atol=1.5 * error / size)
    fourth = 2 / (size * (size + 1)) if columns.is_complex() else 3 / (size * (size + 2))
    expected = torch.full((size,), fourth, dtype=F64)
    torch.testing.assert_close((columns.abs() ** 4).mean(1), expected, rtol=0, atol=3 * error * fourth)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


REAL = [ht.Orthogonal, ht.OrthogonalRNNCell]
KINDS = [*REAL, ht.Unitary, ht.UnitaryRNNCell]
kinds = pytest.mark.parametrize("kind", KINDS)


def layer(kind, n, m, **options):
    return kind(n, n, num_reflections=m, dtype=F64 if kind in REAL else C128, **options)


@kinds
def test_columns_of_reflections_are_uniform_on_the_spheres_below_the_diagonal(kind):
    n, m = 5, 4
    drawn = torch.stack([layer(kind, n, m).reflections.detach() for _ in range(800)])
    assert torch.equal(drawn, drawn.tril())
    for j in range(m):
        assert_on_the_sphere(drawn[:, j:, j].mT)


@pytest.mark.parametrize("kind", REAL)
def test_both_signs_of_u_1_are_as_likely(kind):
    signs = torch.stack([layer(kind, 3, 3).reflections[-1, -1].detach() for _ in range(400)])
    assert set(signs.tolist()) == {1.0, -1.0}
    assert abs(signs.mean().item()) < 5 / 400**0.5


@pytest.mark.parametrize("kind", [ht.Unitary, ht.UnitaryRNNCell])
def test_phases_are_uniform_on_the_circle(kind):
    assert_uniform(layer(kind, 5000, 1).phases, math.pi)


@pytest.mark.parametrize(("d", "n"), [(40, 200), (300, 60)])
def test_input_weights_have_the_mean_square_of_glorot(d, n):
    bound = math.sqrt(6 / (d + n))
    assert_uniform(ht.OrthogonalRNNCell(d, n).weight_ih, bound)
    parts = torch.view_as_real(ht.UnitaryRNNCell(d, n).weight_ih.detach())
    assert_uniform(parts, bound / math.sqrt(2))
    assert parts.square().sum(-1).mean().item() == pytest.approx(2 / (d + n), rel=0.05)
    assert abs((parts[..., 0] * parts[..., 1]).mean().item()) < 5 * bound**2 / 6 / (d * n) ** 0.5


def test_learned_initial_states():
    n = 5000
    bound = math.sqrt(3 / (2 * n))
    assert_uniform(ht.OrthogonalRNNCell(1, n, num_reflections=1, learn_h0=True).h0, bound)
    h0 = ht.UnitaryRNNCell(1, n, num_reflections=1, learn_h0=True).h0
    assert_uniform(torch.view_as_real(h0.detach()), bound / math.sqrt(2))


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (lambda: ht.Orthogonal(6), ["bias"]),
        (lambda: ht.Unitary(6), ["bias"]),
        (lambda: ht.SVDLinear(6), ["bias", "spectrum"]),
        (lambda: ht.ModReLU(6), ["bias"]),
        (lambda: ht.OrthogonalRNNCell(3, 6, nonlinearity="modrelu"), ["bias", "nonlinearity_bias"]),
        (lambda: ht.UnitaryRNNCell(3, 6), ["bias", "nonlinearity_bias"]),
    ],
)
def test_biases_and_spectra_start_at_zero(made, names):
    module = made()
    assert all(not module.get_parameter(name).any() for name in names)


@pytest.mark.parametrize("kind", [ht.OrthogonalRNN, ht.UnitaryRNN])
def test_cells_of_a_layer_start_as_cells_do(kind):
    module = kind(3, 6, 2, bidirectional=True, learn_h0=True)
    torch.manual_seed(0)
    cells = [kind.cell_type(d, 6, nonlinearity=module.nonlinearity, learn_h0=True) for d in (3, 3, 12, 12)]
    for mine, alone in zip(module.cells, cells, strict=True):
        torch.testing.assert_close(mine.state_dict(), alone.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("gate", [None, "head", "channel"])
@pytest.mark.parametrize("again", [False, True])
def test_the_delta_rule_starts_as_torchs_layers_do_with_decays_near_one(gate, again):
    module = ht.DeltaNet(96, 24, gate=gate, num_householder=2, conv_size=3, expand_v=2)
    if again:
        for p in module.parameters():
            nn.init.constant_(p, 9)
        module.reset_parameters()
    width = 96**-0.5
    for part in (module.projection, module.beta, *([] if gate is None else [module.decay])):
        assert_uniform(part.weight, width)
    assert_uniform(module.beta.bias, width)
    assert_uniform(module.out.weight, (2 * 96) ** -0.5)
    assert_uniform(module.convolution.weight, 3**-0.5)
    assert (module.norm.weight == 1).all()
    if gate is not None:
        assert (module.decay.bias == 4).all()


def parameters(module):
    return torch.cat([torch.view_as_real(p + 0j).flatten() for p in module.parameters()])


@pytest.mark.parametrize(
    "made",
    [
        lambda: ht.Orthogonal(6),
        lambda: ht.Unitary(6),
        lambda: ht.SVDLinear(6),
        lambda: ht.OrthogonalRNN(3, 6, 2, learn_h0=True),
        lambda: ht.UnitaryRNN(3, 6, 2, learn_h0=True),
        lambda: ht.DeltaNet(12, 2),
    ],
    ids=["Orthogonal", "Unitary", "SVDLinear", "OrthogonalRNN", "UnitaryRNN", "DeltaNet"],
)
def test_seeds_decide_and_starting_again_draws_everything_anew(made):
    first = made()
    torch.manual_seed(0)
    assert torch.equal(parameters(made()), parameters(first))
    drawn = []
    for seed in (1, 1, 2):
        for p in first.parameters():
            nn.init.constant_(p, 9)
        torch.manual_seed(seed)
        first.reset_parameters()
        drawn.append(parameters(first).detach())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
    assert not (drawn[0] == 9).any()
