"""The paper's Table 1: what is claimed of each model is what is measured."""

import csv
from types import SimpleNamespace

import pytest
import torch
from pydantic import TypeAdapter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from householder import cli
from householder_experiments import cost
from householder_experiments.cost import CLAIMS, Measurement, exponent, measure
from householder_experiments.models import PACKAGED_MODELS, AnyModel
from householder_experiments.models.rivals import rival_settings

LOOPS = ("free-rnn", "urnn", "rc-urnn", "fc-urnn", "lie-rnn", "usv")


def test_every_model_has_its_claims_and_its_settings():
    kinds = set(PACKAGED_MODELS)
    assert set(CLAIMS) == set(rival_settings()) == kinds


@pytest.mark.parametrize("kind", [kind for kind, claim in CLAIMS.items() if claim.norm in ("1", "1 + r")])
def test_the_norm_is_as_claimed(kind):
    norm = measure(kind, 24, 8).norm
    margin = rival_settings()[kind].get("margin", 0)
    assert 1 - margin - 1e-5 <= norm <= 1 + margin + 1e-5


def test_the_first_step_is_not_counted(monkeypatch):
    seconds = iter([0.0, 0.1, 1.0, 1.5, 2.0, 2.4, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5])  # the begin and the end of each step
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    assert measure("srnn", 8, 4).seconds == pytest.approx(0.4)


def test_a_first_step_beyond_patience_is_the_only_one(monkeypatch):
    seconds = iter([0.0, 9.0])
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    assert measure("srnn", 8, 4).seconds == 9


class Count(TorchDispatchMode):
    """Counts the operations that are dispatched."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.number += 1
        return function(*args, **(kwargs or {}))


def gradient_step(kind, size, length):
    settings = TypeAdapter(AnyModel).validate_python({"kind": kind, "hidden_size": size, **rival_settings()[kind]})
    model = settings.build(SimpleNamespace(input_size=1, output_size=1, every_step=False))
    optimizer = settings.optimizer(model)

    def step():
        model(torch.ones(length, 1, 1)).square().mean().backward()
        optimizer.step()

    return step


def operations(kind, length):
    step = gradient_step(kind, 24, length)
    with Count() as count:
        step()
    return count.number


def flops(kind, size, length):
    step = gradient_step(kind, size, length)
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


@pytest.mark.parametrize("kind", LOOPS)
def test_the_loops_take_as_many_operations_for_each_step_of_time(kind):
    eight, sixteen, thirty_two = (operations(kind, length) for length in (8, 16, 32))
    assert thirty_two - sixteen == 2 * (sixteen - eight) > 0


@pytest.mark.parametrize("kind", ["ornn", "ornn-soft", "unitary"])
def test_our_own_take_one_operation_for_the_sequence(kind):
    assert operations(kind, 8) == operations(kind, 32)


@pytest.mark.parametrize("kind", ["fc-urnn", "usv"])
def test_the_step_on_the_manifold_is_cubic_and_the_sequence_quadratic(kind):
    assert flops(kind, 128, 1) / flops(kind, 64, 1) == pytest.approx(8, rel=0.05)
    assert flops(kind, 32, 256) / flops(kind, 16, 256) == pytest.approx(4, rel=0.2)


@pytest.mark.parametrize("power", [1, 2, 3])
def test_the_exponent_is_that_of_the_largest(power):
    line = [Measurement("a", size, cost.MIDDLE_LENGTH, 1 + (size / 64) ** power, None) for size in (64, 4096, 8192)]
    line.append(Measurement("a", 8192, cost.MIDDLE_LENGTH + 1, 7.0, None))
    assert exponent(line, "size") == pytest.approx(power, abs=0.05)


def test_the_command_leaves_a_table_and_a_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cost, "SIZES", (16, 32))
    monkeypatch.setattr(cost, "LENGTHS", (4, 8))
    monkeypatch.setattr(cost, "MIDDLE_SIZE", 32)
    monkeypatch.setattr(cost, "MIDDLE_LENGTH", 8)
    assert cli.main(["cost", "--models", "ornn,lie-rnn,ornn", "--output", str(tmp_path / "cost")]) == 0
    out = capsys.readouterr().out
    assert "lie-rnn" in out
    with (tmp_path / "cost" / "cost.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row["size"], row["length"]) for row in rows] == [
        (kind, size, length) for kind in ("ornn", "lie-rnn") for size, length in (("16", "8"), ("32", "8"), ("32", "4"))
    ]
    assert (tmp_path / "cost" / "cost.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_model_is_one_line(refusal):
    error = refusal("cost", "--models", "gru")
    assert error.startswith("householder: unknown model 'gru': there are ornn, ornn-soft")
