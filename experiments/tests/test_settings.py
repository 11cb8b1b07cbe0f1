"""Each setting changes what its description says and nothing else: training against a loop in plain torch."""

import math
from types import SimpleNamespace

import pytest
import torch
from pydantic import TypeAdapter
from torch.nn.functional import mse_loss

from experiments.tests.runs import train
from householder._base.spec import NONLINEARITIES, OF_COMPLEX
from householder.cli.errors import UserError
from householder_experiments.evaluate import measured
from householder_experiments.experiment import Experiment, load_experiment, packaged_config, parse_experiment
from householder_experiments.models import PACKAGED_MODELS, AnyModel, ModelSettings
from householder_experiments.tasks import Batch, Task
from householder_experiments.training import Run
from tests.oracles.torch import explicit_matrix, phi

BASE = {
    "task": {"kind": "addition", "length": 6, "iterations": 4},
    "models": {"srnn": {"hidden_size": 4, "learning_rate": 0.01}},
    "epochs": 2,
    "batch_size": 5,
}
OF_MODELS = {
    "hidden_size": 5,
    "learning_rate": 0.02,
    "schedule": "cosine",
    "warm_up": 0.5,
    "epochs_factor": 1.5,
    "betas": [0.5, 0.9],
    "clip_norm": 0.01,
}
OF_EXPERIMENTS = {"epochs": 3, "batch_size": 6, "seed": 2, "precision": "64-true"}
OTHERWISE_TESTED = {"task", "models", "patience", "accelerator", "checkpoint_seconds"}


@pytest.fixture(autouse=True)
def _as_before():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)


def experiment(**changes):
    model = {name: changes.pop(name) for name in OF_MODELS if name in changes}
    return parse_experiment(BASE | {"models": {"srnn": BASE["models"]["srnn"] | model}} | changes, "test")


def trained(experiment, directory):
    _, run = train(experiment, "srnn", directory)
    return torch.nn.utils.parameters_to_vector(run.model.parameters()).detach()


def factor(schedule, warm_up, done):
    whole = {"constant": 1.0, "cosine": 0.5 + 0.5 * math.cos(math.pi * done), "hold": min(1, (1 - done) / 0.3)}
    return whole[schedule] * (min(1, done / warm_up) if warm_up else 1)


def expected(experiment, norms=None):
    """Train in plain torch; add the norms of the gradients, before any clipping, to a list."""
    settings = experiment.models["srnn"]
    torch.set_default_dtype({"32-true": torch.float32, "64-true": torch.float64}[experiment.precision])
    torch.manual_seed(experiment.seed)
    task = experiment.task.load()
    model = settings.build(task)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    adam = torch.optim.Adam(parameters, betas=settings.betas)
    steps = int(experiment.epochs * settings.epochs_factor) * experiment.task.iterations
    for step in range(steps):
        for group in adam.param_groups:
            group["lr"] = settings.learning_rate * factor(settings.schedule, settings.warm_up, step / steps)
        inputs, targets = task.batch(experiment.batch_size, experiment.seed, *divmod(step, experiment.task.iterations))
        dtype = torch.get_default_dtype()
        gradients = torch.autograd.grad(mse_loss(model(inputs.to(dtype)), targets.to(dtype)), parameters)
        norm = math.sqrt(sum(gradient.square().sum().item() for gradient in gradients))
        if norms is not None:
            norms.append(norm)
        clip = min(1.0, (settings.clip_norm or math.inf) / norm)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = clip * gradient
        adam.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.fixture(scope="module")
def by_default(tmp_path_factory):
    parameters = trained(experiment(), tmp_path_factory.mktemp("default"))
    torch.set_num_threads(1)
    torch.testing.assert_close(parameters, expected(experiment()), rtol=1e-4, atol=1e-5)
    return parameters


CHANGES = [*OF_MODELS.items(), *OF_EXPERIMENTS.items(), ("schedule", "hold")]


@pytest.mark.parametrize(("name", "value"), CHANGES)
def test_a_setting_of_training_does_what_plain_torch_does(name, value, by_default, tmp_path):
    changed = experiment(**{name: value})
    parameters = trained(changed, tmp_path)
    double = parameters.dtype == torch.float64
    torch.testing.assert_close(parameters, expected(changed), rtol=1e-4, atol=1e-12 if double else 1e-5)
    assert double == (name == "precision")
    assert double or parameters.shape != by_default.shape or (parameters - by_default).abs().max() > 1e-4


def test_gradients_are_clipped_where_they_are_longer_than_the_largest_norm(by_default, tmp_path):
    """Adam's steps do not depend on the scale of all gradients: only a norm that clips some of them tells."""
    expected(experiment(), norms := [])
    changed = experiment(clip_norm=sorted(norms)[len(norms) // 2])
    expected_parameters = expected(changed, norms := [])
    clip_norm = changed.models["srnn"].clip_norm
    assert min(norms) < clip_norm < 1.2 * clip_norm < max(norms)
    parameters = trained(changed, tmp_path)
    torch.testing.assert_close(parameters, expected_parameters, rtol=1e-4, atol=1e-5)
    assert (parameters - by_default).abs().max() > 1e-4


def test_a_model_has_its_threads(tmp_path):
    for threads in (1, 2):
        Run(experiment(threads=threads), "srnn", tmp_path / str(threads))
        assert torch.get_num_threads() == threads


def test_every_setting_of_training_is_tested():
    assert set(OF_MODELS) == set(ModelSettings.model_fields)
    assert {*OF_EXPERIMENTS, "threads"} | OTHERWISE_TESTED == set(Experiment.model_fields)


class Uneven(Task):
    """Constant targets in parts of unequal size."""

    input_size, output_size, metric = 1, 1, "error"
    sizes = (1, 2, 9)

    def steps_per_epoch(self, size):  # noqa: ARG002
        return len(self.sizes)

    def batch(self, size, seed, epoch, index):  # noqa: ARG002
        count = self.sizes[index]
        return Batch(torch.randn(3, count, 1, generator=torch.Generator().manual_seed(index)), torch.ones(count, 1))

    def held_out(self, part):  # noqa: ARG002
        return (self.batch(0, 0, 0, index) for index in range(len(self.sizes)))

    def loss(self, prediction, targets):
        return mse_loss(prediction, targets)

    def measure(self, prediction, targets):
        return (prediction - targets).abs().mean()


def test_averages_weight_each_sequence_alike(monkeypatch, tmp_path):
    task = Uneven()
    settings = experiment(epochs=1)
    monkeypatch.setattr(type(settings.task), "load", lambda _: task)
    run = Run(settings, "srnn", tmp_path)
    inputs, targets = (torch.cat(parts, -2) for parts in zip(*task.held_out("test"), strict=True))
    prediction = run.model(inputs)
    loss, metric = mse_loss(prediction, targets).item(), (prediction - targets).abs().mean().item()
    assert measured(run.model, task, task.held_out("test")) == pytest.approx((loss, metric))
    assert run._judge("test") == pytest.approx(metric)
    run.optimizer.param_groups[0]["lr"] = run.rates[0] = 0.0  # so that the training part is measured as it is
    run.train(lambda _progress: None, lambda: False)
    (row,) = run.state.history
    assert (row["train_loss"], row["train_error"]) == pytest.approx((loss, metric), rel=1e-5)


N, TASK = 6, SimpleNamespace(input_size=3, output_size=2, every_step=True)


def model(kind, **options):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    raw = {"kind": kind, "hidden_size": N, "learning_rate": 0.01, **options}
    settings = TypeAdapter(AnyModel).validate_python(raw)
    network = settings.build(TASK)
    with torch.no_grad():
        for parameter in network.parameters():  # no bias is zero
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return settings, network, dict(network.named_parameters())


def states(network, x):
    return network.recurrence(x)[0]


PHI = {
    **dict.fromkeys(["ornn", "ornn-soft", "usv", "free-rnn"], NONLINEARITIES),
    "unitary": OF_COMPLEX,
    **{kind: ["tanh", "relu"] for kind in ("srnn", "srnn-orthogonal", "irnn")},
}


def factorised(p):
    return p["recurrence.u"] @ torch.diag(1 + 0.01 * torch.tanh(p["recurrence.spectrum"] / 2)) @ p["recurrence.v"].T


def loop(w, drive, h, nonlinearity, bias):
    states = [h]
    for pushed in drive:
        states.append(phi(states[-1] @ w.T + pushed, nonlinearity, bias=bias))
    return torch.stack(states[1:])


@pytest.mark.parametrize(("kind", "nonlinearity"), [(kind, phi) for kind in PHI for phi in PHI[kind]])
def test_the_nonlinearity_is_that_of_a_plain_loop(kind, nonlinearity):
    _, network, p = model(kind, nonlinearity=nonlinearity)
    x = torch.randn(5, 2, TASK.input_size)
    if kind in ("usv", "free-rnn"):
        w = p["recurrence.w"] if kind == "free-rnn" else factorised(p)
        names = ("input_weight", "bias", "initial", "nonlinearity_bias")
        v, b, h, c = (p.get(f"recurrence.{name}") for name in names)
    elif kind in ("srnn", "srnn-orthogonal", "irnn"):
        w, v, b = (p[f"recurrence.rnn.{name}_l0"] for name in ("weight_hh", "weight_ih", "bias_ih"))
        h, c = p["recurrence.initial"][0, 0, 0], None
    else:
        place = "recurrence.recurrence.cells.0." if kind == "unitary" else "recurrence.cells.0."
        names = ("reflections", "phases", "weight_ih", "bias", "h0", "nonlinearity_bias")
        u, phases, v, b, h, c = (p.get(place + name) for name in names)
        u = u.detach().clone()
        if kind == "ornn":
            u[-1, -1] = 1 if u[-1, -1] > 0 else -1
        if kind == "ornn-soft":
            u[-1, -1].clamp_(-1, 1)
        w = explicit_matrix(u, phases)
    drive = x.to(v.dtype) @ v.T + (0 if b is None else b)
    oracle = loop(w, drive, h.expand(2, -1), nonlinearity, c)
    found = states(network, x)
    torch.testing.assert_close(found, torch.cat([oracle.real, oracle.imag], -1) if oracle.is_complex() else oracle)


@pytest.mark.parametrize("kind", ["ornn", "ornn-soft"])
def test_the_slope_is_that_of_the_leaky_relu(kind):
    x = torch.randn(1, 2, TASK.input_size, dtype=torch.float64)
    below = {slope: states(model(kind, negative_slope=slope)[1], x) for slope in (0.1, 0.5)}
    assert (below[0.1] < 0).any()
    torch.testing.assert_close(below[0.5], torch.where(below[0.1] < 0, 5 * below[0.1], below[0.1]))


@pytest.mark.parametrize(("kind", "most"), [("ornn", N), ("ornn-soft", N), ("unitary", N - 1)])
@pytest.mark.parametrize("reflections", [None, 2])
def test_as_many_directions_are_reflected_as_there_are_reflections(kind, most, reflections):
    settings, network, p = model(kind, num_reflections=reflections)
    u = next(parameter for name, parameter in p.items() if name.endswith("reflections"))
    assert u.shape == (N, reflections or most)
    if kind == "ornn" and reflections:
        w = settings.transition(network)
        assert torch.linalg.matrix_rank(w - torch.eye(N)) == reflections


def step(settings, network):
    optimizer = settings.optimizer(network)
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    network(torch.randn(5, 2, TASK.input_size)).square().sum().backward()
    optimizer.step()
    return {name: (parameter.detach() - before[name]) for name, parameter in network.named_parameters()}


@pytest.mark.parametrize(
    ("kind", "setting", "moved"),
    [
        ("ornn", "reflection_rate", ["recurrence.cells.0.reflections"]),
        ("ornn-soft", "reflection_rate", ["recurrence.cells.0.reflections"]),
        ("usv", "cayley_rate", ["recurrence.u", "recurrence.v"]),
        ("fc-urnn", "cayley_rate", ["recurrence.w"]),
    ],
)
def test_a_rate_of_its_own_is_that_of_some_parameters_alone(kind, setting, moved):
    slow, fast = (step(*model(kind, **{setting: rate})[:2]) for rate in (1e-4, 2e-4))
    for name in slow:
        torch.testing.assert_close(fast[name], (2 if name in moved else 1) * slow[name], rtol=1e-3, atol=1e-9)
        assert name not in moved or slow[name].abs().max() > 0


@pytest.mark.parametrize("kind", ["ornn", "ornn-soft"])
@pytest.mark.parametrize("renormalize", [True, False])
def test_renormalised_columns_have_unit_length_after_a_step(kind, renormalize):
    settings, network, p = model(kind, renormalize=renormalize, num_reflections=3)
    step(settings, network)
    lengths = p["recurrence.cells.0.reflections"].detach().tril().norm(dim=0)
    assert torch.allclose(lengths, torch.ones(3)) == renormalize


@pytest.mark.parametrize("u_1", ["latent", "snapped"])
def test_u_1_is_a_sign_after_a_step_if_it_is_snapped(u_1):
    settings, network, p = model("ornn", u_1=u_1)
    step(settings, network)
    assert (p["recurrence.cells.0.reflections"][-1, -1].abs() == 1) == (u_1 == "snapped")


@pytest.mark.parametrize("bias", [1.0, 5.0])
def test_the_forget_bias_is_that_of_one_gate(bias):
    torch.manual_seed(0)
    raw = {"kind": "lstm", "hidden_size": N, "learning_rate": 0.01, "forget_bias": bias}
    network = TypeAdapter(AnyModel).validate_python(raw).build(TASK)
    gates = network.recurrence.rnn.bias_ih_l0.reshape(4, N) + network.recurrence.rnn.bias_hh_l0.reshape(4, N)
    assert gates.tolist() == [[0] * N, [bias] * N, [0] * N, [0] * N]  # input, forget, cell, output


@pytest.mark.parametrize("margin", [0.0, 0.01, 0.3])
def test_singular_values_reach_the_margin_and_no_more(margin):
    settings, network, p = model("usv", margin=margin)
    with torch.no_grad():
        for name in ("u", "v"):
            p[f"recurrence.{name}"].copy_(torch.linalg.qr(p[f"recurrence.{name}"])[0])
        if margin:
            p["recurrence.spectrum"].copy_(torch.tensor([50.0, -50.0] * (N // 2)))
    values = torch.linalg.svdvals(settings.transition(network))
    torch.testing.assert_close(values, torch.tensor([1 + margin, 1 - margin]).repeat_interleave(N // 2))


DELTA = ["delta", "gated-delta", "delta-product"]


@pytest.mark.parametrize("kind", DELTA)
@pytest.mark.parametrize(
    ("options", "heads", "layers", "reflections", "taps"),
    [
        ({}, 2, 1, None, 4),
        ({"num_heads": 3}, 3, 1, None, 4),
        ({"num_layers": 2}, 2, 2, None, 4),
        ({"num_householder": 3}, 2, 1, 3, 4),
        ({"conv_size": 2}, 2, 1, None, 2),
    ],
)
def test_the_sizes_of_a_delta_rule(kind, options, heads, layers, reflections, taps):
    _, _, p = model(kind, **options)
    reflections = reflections or (2 if kind == "delta-product" else 1)
    for layer in range(layers):
        place = f"recurrence.layers.{layer}."
        assert p[f"{place}beta.weight"].shape == (heads * reflections, N)
        assert p[f"{place}norm.weight"].shape == (N // heads,)
        assert p[f"{place}convolution.weight"].shape == ((1 + 2 * reflections) * N, 1, taps)
    assert f"recurrence.layers.{layers}.beta.weight" not in p


@pytest.mark.parametrize("kind", DELTA)
@pytest.mark.parametrize(("gate", "rows"), [(None, 0), ("head", 2), ("channel", N)])
def test_a_gate_has_a_decay_for_what_it_is_of(kind, gate, rows):
    counts = [sum(parameter.numel() for parameter in model(kind, gate=g)[2].values()) for g in (gate, None)]
    assert counts[0] - counts[1] == rows * (N + 1)  # a matrix and a bias


@pytest.mark.parametrize("kind", DELTA)
def test_the_largest_step_is_one_that_a_saturated_gate_takes(kind):
    def outputs(max_beta, bias):
        _, network, p = model(kind, max_beta=max_beta)
        with torch.no_grad():
            p["recurrence.layers.0.beta.weight"].zero_()
            p["recurrence.layers.0.beta.bias"].fill_(bias)
        return network(torch.randn(8, 2, TASK.input_size, generator=torch.Generator().manual_seed(1)))

    torch.testing.assert_close(outputs(1.0, 50.0), outputs(2.0, 0.0))  # both steps are one
    assert (outputs(2.0, 50.0) - outputs(1.0, 50.0)).abs().max() > 1e-3


def test_every_setting_of_a_model_is_tested():
    tested = {"nonlinearity", "negative_slope", "num_reflections", "reflection_rate", "cayley_rate", "renormalize"}
    tested |= {"u_1", "forget_bias", "margin", "num_heads", "num_layers", "num_householder", "conv_size", "gate"}
    tested |= {"max_beta", "kind"}
    assert set().union(*(settings.model_fields for settings in PACKAGED_MODELS.values())) == tested | set(OF_MODELS)


@pytest.mark.parametrize("name", [*OF_MODELS, "accelerator", "precision", "patience", "seed"])
def test_a_setting_refuses_what_it_cannot_be(name):
    with pytest.raises(UserError, match=name):
        experiment(**{name: "a word"})


def test_the_full_training_of_the_documentation_is_longer_and_nothing_else():
    path = packaged_config("copy")
    short, full = (load_experiment(path, full=full) for full in (False, True))
    assert (short.epochs, full.epochs) == (15, 40)
    assert short.model_copy(update={"epochs": full.epochs}) == full
    assert load_experiment(path, ["epochs=7"], full=True).epochs == 7
