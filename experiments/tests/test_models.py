"""Each model's matrix is what its name claims, before training and after it."""

from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from pydantic import TypeAdapter

from householder_experiments.catalogue import MODELS, model_title
from householder_experiments.models import PACKAGED_MODELS, AnyModel
from householder_experiments.models.cayley import CayleyAdam, haar
from householder_experiments.models.looped import LoopedRNN

TASK = SimpleNamespace(input_size=3, output_size=2, every_step=False)
N, D, K = 8, TASK.input_size, TASK.output_size
REAL = N * D + N + N + N * K + K
"""V, the bias, the initial state and the readout of a model with N real states."""
COMPLEX = 2 * N * D + N + 2 * N + 2 * N * K + K


def delta(reflections, gates):
    """DeltaNet with two heads and four taps, an affine map before it, two norms and the readout."""
    heads, mixed = 2, (1 + 2 * reflections) * N
    layer = N * mixed + 4 * mixed + (reflections + gates) * heads * (N + 1) + N // heads + N * N
    return layer + N * D + N + 2 * N + N * K + K


PARAMETERS = {
    "ornn": N * (N + 1) // 2 + REAL,
    "ornn-soft": N * (N + 1) // 2 + REAL,
    "unitary": 2 * (N * (N - 1) - (N - 1) * (N - 2) // 2) + N + COMPLEX,
    "srnn": N * N + REAL,
    "srnn-orthogonal": N * N + REAL,
    "irnn": N * N + REAL,
    "lstm": 4 * (N * N + N * D + N) + 2 * N + N * K + K,
    "free-rnn": N * N + REAL,
    "urnn": 7 * N + COMPLEX,
    "rc-urnn": 7 * N + COMPLEX,
    "fc-urnn": N * N + COMPLEX,
    "lie-rnn": N * N + COMPLEX,
    "usv": N * (N - 1) + N + REAL,
    "delta": delta(1, 0),
    "gated-delta": delta(1, 1),
    "delta-product": delta(2, 0),
}
UNITARY = ("unitary", "urnn", "rc-urnn", "fc-urnn", "lie-rnn")
ORTHOGONAL = ("ornn",)


@pytest.fixture(autouse=True)
def _one_thread_in_double_precision():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)


def settings(kind, **options):
    return TypeAdapter(AnyModel).validate_python(
        {"kind": kind, "hidden_size": N, "learning_rate": 0.01, **options}, strict=False
    )


def train(model, optimizer, steps=20):
    for _ in range(steps):
        loss = (model(torch.randn(6, 5, D)) - torch.randn(5, K)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def distance_from_unitary(w):
    return (w.mH @ w - torch.eye(len(w))).abs().max()


def test_all_models_are_here():
    assert list(PACKAGED_MODELS) == list(MODELS)
    assert set(MODELS) == set(PARAMETERS)


def test_a_figure_has_a_title_of_its_own_for_each_kind():
    titles = {model_title(kind) for kind in MODELS}
    assert len(titles) == len(MODELS)
    assert titles.isdisjoint(MODELS)


@pytest.mark.parametrize("kind", PARAMETERS)
def test_the_number_of_parameters_is_the_formula_s(kind):
    chosen = settings(kind)
    assert chosen.num_parameters(chosen.build(TASK)) == PARAMETERS[kind]


@pytest.mark.parametrize("kind", ["ornn", "unitary"])
def test_fewer_reflections_have_fewer_parameters(kind):
    numbers = 3 * N - 3  # in a trapezoid of three columns
    expected = numbers + REAL if kind == "ornn" else 2 * numbers + N + COMPLEX
    chosen = settings(kind, num_reflections=3)
    assert chosen.num_parameters(chosen.build(TASK)) == expected


@pytest.mark.parametrize("kind", ORTHOGONAL + UNITARY)
def test_the_transition_is_unitary_and_training_keeps_it_so(kind):
    chosen = settings(kind)
    model = chosen.build(TASK)
    before = chosen.transition(model).detach().clone()
    assert before.is_complex() == (kind in UNITARY)
    assert distance_from_unitary(before) < 1e-13
    train(model, chosen.optimizer(model))
    after = chosen.transition(model).detach()
    assert distance_from_unitary(after) < 1e-12
    assert (after - before).abs().max() > 0.01


@pytest.mark.parametrize("factor", [0, 0.1])
def test_singular_values_stay_within_the_margin(factor):
    chosen = settings("usv", margin=factor, learning_rate=0.1)
    model = chosen.build(TASK)
    before = chosen.transition(model).detach().clone()
    assert distance_from_unitary(before) < 1e-13  # all are one at the start
    train(model, chosen.optimizer(model))
    after = chosen.transition(model).detach()
    assert (after - before).abs().max() > 0.01
    values = torch.linalg.svdvals(after)
    assert (values - 1).abs().max() <= factor + 1e-12
    assert (values - 1).abs().max() >= factor / 10


def test_the_soft_constraint_lets_one_singular_value_shrink():
    chosen = settings("ornn-soft", learning_rate=0.1)
    model = chosen.build(TASK)
    u = model.get_parameter("recurrence.cells.0.reflections")
    with torch.no_grad():
        u[-1, -1] = -0.4
    values = torch.linalg.svdvals(chosen.transition(model))
    torch.testing.assert_close(values, torch.tensor([1.0] * (N - 1) + [0.4]))
    train(model, chosen.optimizer(model))
    values = torch.linalg.svdvals(chosen.transition(model).detach())
    torch.testing.assert_close(values[:-1], torch.ones(N - 1))
    assert values[-1] <= 1 + 1e-12
    assert abs(values[-1] - 0.4) > 1e-3


def test_nothing_constrains_the_simple_network():
    chosen = settings("srnn")
    assert distance_from_unitary(chosen.transition(chosen.build(TASK)).detach()) > 0.1


@pytest.mark.parametrize(("kind", "is_identity"), [("srnn-orthogonal", False), ("free-rnn", False), ("irnn", True)])
def test_a_start_is_orthogonal_and_training_leaves_it(kind, is_identity):
    chosen = settings(kind)
    model = chosen.build(TASK)
    w = chosen.transition(model)
    assert distance_from_unitary(w.detach()) < 1e-13
    assert torch.equal(w, torch.eye(N)) == is_identity
    train(model, chosen.optimizer(model), steps=3)
    assert distance_from_unitary(chosen.transition(model).detach()) > 1e-3


def test_heads_share_the_units_of_a_delta_rule():
    with pytest.raises(ValueError, match="expected a multiple of num_heads = 3"):
        settings("delta", num_heads=3).build(TASK)


def test_layers_of_delta_rules_do_not_look_ahead():
    model = settings("gated-delta", num_layers=2).build(SimpleNamespace(**vars(TASK) | {"every_step": True}))
    x = torch.randn(9, 2, D)
    changed = torch.cat([x[:5], torch.randn(4, 2, D)])
    torch.testing.assert_close(model(changed)[:5], model(x)[:5])


def test_the_identity_start_is_the_paper_s():
    recurrence = settings("irnn", hidden_size=400).build(TASK).recurrence
    assert recurrence.rnn.nonlinearity == "relu"
    assert recurrence.rnn.weight_ih_l0.std().item() == pytest.approx(0.001, rel=0.1)
    assert not recurrence.initial.any()
    assert not recurrence.rnn.bias_ih_l0.any()


def test_the_lstm_has_no_one_transition():
    chosen = settings("lstm")
    assert chosen.transition(chosen.build(TASK)) is None


@pytest.mark.parametrize("kind", PARAMETERS)
def test_every_parameter_gets_a_gradient(kind):
    model = settings(kind).build(TASK)
    model(torch.randn(12, 5, D)).square().sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad.abs().max() > 0, name
            assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("kind", ["free-rnn", "urnn", "rc-urnn", "fc-urnn", "lie-rnn", "usv"])
def test_a_loop_multiplies_by_its_matrix(kind):
    recurrence = settings(kind).build(TASK).recurrence
    assert isinstance(recurrence, LoopedRNN)
    h = torch.randn(5, N, dtype=recurrence.initial.dtype)
    torch.testing.assert_close(recurrence.multiplication()(h), h @ recurrence.matrix().mT)
    states, last = recurrence(torch.zeros(1, 1, D))
    state = recurrence.activate(recurrence.matrix() @ recurrence.initial)
    expected = torch.cat([state.real, state.imag]) if state.is_complex() else state
    torch.testing.assert_close(states[0, 0], expected)
    assert torch.equal(last, states)


def dimension(kind, **options):
    """The rank of the derivative of W: how many independent directions a small step can take."""
    chosen = settings(kind, **options)
    model = chosen.build(TASK)
    if kind == "usv":
        torch.nn.init.normal_(model.recurrence.spectrum)  # equal singular values are a singular point
    w = chosen.transition(model)
    directions = []
    for entry in (torch.view_as_real(w) if w.is_complex() else w).flatten():
        grads = torch.autograd.grad(entry, list(model.parameters()), retain_graph=True, allow_unused=True)
        flat = [torch.view_as_real(g) if g.is_complex() else g for g in grads if g is not None]
        directions.append(torch.cat([part.flatten() for part in flat]))
    return int(torch.linalg.matrix_rank(torch.stack(directions), rtol=1e-9))


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("ornn", {}, N * (N - 1) // 2),  # all of O(n); u_1 is a sign
        ("ornn", {"num_reflections": 3}, 3 * N - 3 - 3),  # of each column, its length does not matter
        ("ornn-soft", {}, N * (N - 1) // 2 + 1),
        ("unitary", {}, N * N),  # all of U(n)
        ("lie-rnn", {}, N * N),
        ("usv", {}, N * N),  # an open set of matrices
    ],
)
def test_the_dimension_of_the_search_space(kind, options, expected):
    if kind == "ornn" and not options:
        expected += 1  # the straight-through derivative of u_1
    assert dimension(kind, **options) == expected


def test_the_restricted_capacity_falls_short_of_all_unitary_matrices():
    assert dimension("urnn") == dimension("rc-urnn") <= 7 * N < N * N


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_a_cayley_step_is_the_textbook_s(dtype):
    w = torch.nn.Parameter(haar(5, dtype))
    before = w.detach().clone()
    optimizer = CayleyAdam([], [w], lr=0.1, betas=(0.9, 0.999), rate=0.5)
    w.grad = gradient = torch.randn(5, 5, dtype=dtype)
    n = torch.complex(gradient.real.sign(), gradient.imag.sign()) if dtype.is_complex else gradient.sign()
    optimizer.step()
    a = 0.05 * (n @ before.mH - before @ n.mH)
    expected = torch.linalg.inv(torch.eye(5) + a / 2) @ (torch.eye(5) - a / 2) @ before
    torch.testing.assert_close(w.detach(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_cayley_steps_reach_a_given_matrix(dtype):
    target = haar(5, dtype)
    w = torch.nn.Parameter(haar(5, dtype))
    if not dtype.is_complex and torch.linalg.det(w) * torch.linalg.det(target) < 0:
        target[0] *= -1  # no path leads to the other component of O(n)
    optimizer = CayleyAdam([], [w], lr=0.1, betas=(0.9, 0.999), rate=1.0)
    for step in range(300):
        optimizer.param_groups[1]["lr"] = 0.1 * (1 - step / 300)
        (w - target).abs().square().sum().backward()
        optimizer.step()
    assert (w - target).abs().max() < 1e-3
    assert distance_from_unitary(w.detach()) < 1e-12


def test_cayley_steps_resume_from_a_checkpoint():
    chosen = settings("fc-urnn")
    torch.manual_seed(0)
    model = chosen.build(TASK)
    other = chosen.build(TASK)
    first, second = chosen.optimizer(model), chosen.optimizer(other)
    train(model, first, steps=3)
    other.load_state_dict(model.state_dict())
    second.load_state_dict(deepcopy(first.state_dict()))
    for network, optimizer in ((model, first), (other, second)):
        torch.manual_seed(1)
        train(network, optimizer, steps=3)
    for parameter, expected in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(parameter, expected)
