"""A run is a pure function of its experiment, however often it is interrupted."""

import doctest

import numpy as np
import pytest
import torch

from experiments.tests import runs
from experiments.tests.runs import rows, train
from householder.cli.errors import UserError
from householder_experiments import training
from householder_experiments.checkpoint import NAME, PREVIOUS
from householder_experiments.experiment import load_experiment, packaged_config
from householder_experiments.outcome import METRICS
from householder_experiments.training import Run


def digits(*changes):
    return runs.digits("epochs=2", *changes)


SHORT = "task.iterations=4", "epochs=2"


@pytest.mark.parametrize(
    ("task", "model", "changes", "stops"),
    [
        *(("digits", name, ("epochs=2",), (1, 10, 25)) for name in ("ornn", "lstm", "srnn")),
        ("addition", "ornn", ("task.length=20", *SHORT), (1, 5)),
        ("copy", "ornn", ("task.delay=5", *SHORT), (1, 5)),
        ("audio", "lstm-250", ("epochs=8",), (1, 5)),
    ],
)
def test_an_interrupted_run_ends_like_an_undisturbed_one(task, model, changes, stops, tmp_path):
    experiment = load_experiment(packaged_config(task), changes)
    whole, run = train(experiment, model, tmp_path / "whole")
    for steps in stops:  # within the first epoch, then within a later one
        train(experiment, model, tmp_path / "parts", steps)
    parts, resumed = train(experiment, model, tmp_path / "parts")

    assert (parts.metric, parts.train_loss) == (whole.metric, whole.train_loss)
    assert rows(tmp_path / "parts" / METRICS) == rows(tmp_path / "whole" / METRICS)
    for parameter, expected in zip(resumed.model.parameters(), run.model.parameters(), strict=True):
        assert torch.equal(parameter, expected)


def test_a_run_that_has_not_ended_is_not_judged(tmp_path):
    assert train(digits(), "srnn", tmp_path, steps=10)[0].metric is None


def test_a_finished_run_is_not_trained_again(tmp_path):
    finished, run = train(digits(), "lstm", tmp_path)
    again, _ = train(digits(), "lstm", tmp_path)
    assert again == finished
    assert run.state.step == run.steps == 58


def test_rows_after_the_checkpoint_are_written_anew(tmp_path):
    train(digits(), "lstm", tmp_path / "parts", steps=40)
    with (tmp_path / "parts" / METRICS).open("a") as file:
        file.write("2,58,0.1")  # what a kill may leave
    train(digits(), "lstm", tmp_path / "parts")
    train(digits(), "lstm", tmp_path / "whole")
    assert rows(tmp_path / "parts" / METRICS) == rows(tmp_path / "whole" / METRICS)


def test_a_garbled_checkpoint_yields_to_the_previous_one(tmp_path):
    experiment = digits("checkpoint_seconds=0")
    whole, _ = train(experiment, "srnn", tmp_path / "whole")
    train(experiment, "srnn", tmp_path / "parts", steps=20)
    path = tmp_path / "parts" / NAME
    path.write_bytes(path.read_bytes()[:1000])
    assert train(experiment, "srnn", tmp_path / "parts")[0].metric == whole.metric


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path):
    train(digits(), "srnn", tmp_path, steps=20)
    (tmp_path / NAME).rename(tmp_path / PREVIOUS)
    assert Run(digits(), "srnn", tmp_path).state.step == 20


@pytest.mark.parametrize("name", ["lstm", "srnn"])
def test_a_checkpoint_of_another_model_is_refused(name, tmp_path):
    train(digits(), "srnn", tmp_path, steps=1)
    other = digits("models.srnn.hidden_size=20") if name == "srnn" else digits()
    with pytest.raises(UserError, match=f"does not fit model '{name}'"):
        Run(other, name, tmp_path)


def test_resuming_after_a_change_of_the_task_names_the_change(tmp_path):
    train(digits(), "srnn", tmp_path, steps=1)
    with pytest.raises(UserError, match=r"the task has changed .*: watched was False and is True; change it back"):
        Run(digits("task.validation=0.2"), "srnn", tmp_path)


def test_patience_ends_a_run_and_judges_its_best_state(tmp_path):
    experiment = digits("epochs=20", "patience=2", "task.validation=0.2", "models.srnn.learning_rate=0.05")
    whole, run = train(experiment, "srnn", tmp_path / "whole")
    watched = [row["validation_accuracy"] for row in run.state.history]
    assert whole.epochs == len(watched) < 20
    assert whole.metric == max(watched) == watched[-4]

    train(experiment, "srnn", tmp_path / "parts", steps=60)
    parts, _ = train(experiment, "srnn", tmp_path / "parts")
    assert (parts.metric, parts.epochs) == (whole.metric, whole.epochs)


def test_a_model_may_have_more_epochs_than_the_experiment(tmp_path):
    run = Run(digits("models.srnn.epochs_factor=1.3"), "srnn", tmp_path)
    assert (run.epochs, run.steps) == (3, 3 * run.steps_per_epoch)
    assert train(run.experiment, "srnn", tmp_path)[0].epochs == 3


def test_a_diverging_run_says_so(tmp_path):
    experiment = digits("models.srnn.learning_rate=1e20", "models.srnn.nonlinearity=relu", "models.srnn.clip_norm=null")
    with pytest.raises(UserError, match=r"srnn: the loss is not finite in epoch 1; try a smaller learning_rate"):
        train(experiment, "srnn", tmp_path)


def test_an_epoch_visits_each_sequence_once():
    task = digits().task.load()
    size = 50
    epochs = [
        torch.cat([task.batch(size, 1, epoch, index).inputs[..., 0] for index in range(task.steps_per_epoch(size))], 1)
        for epoch in (0, 0, 1)
    ]
    assert epochs[0].shape == (64, 1437)
    assert torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[0], epochs[2])
    assert torch.equal(*(torch.unique(epoch, dim=1) for epoch in epochs[1:]))


def test_validation_data_come_from_the_training_part():
    (batch,) = digits().task.load().held_out("test")
    test = {batch.inputs[:, i].numpy().tobytes() for i in range(batch.size)}
    task = digits("task.validation=0.2").task.load()
    (held_out,) = task.held_out("validation")
    assert task.judged_on == "validation"
    assert held_out.size == 288
    assert task.steps_per_epoch(1) == 1149
    assert not test & {held_out.inputs[:, i].numpy().tobytes() for i in range(held_out.size)}
    np.testing.assert_array_equal(np.unique(held_out.targets), np.arange(10))


@pytest.mark.parametrize(
    ("schedule", "warm_up", "expected"),
    [
        ("constant", 0, (1, 1, 1)),
        ("cosine", 0, (1, 0.5, 0)),
        ("hold", 0, (1, 1, 0)),
        ("cosine", 0.8, (0, 0.5 * 0.625, 0)),
    ],
)
def test_learning_rate_schedules(schedule, warm_up, expected):
    factors = [training.learning_rate_factor(schedule, warm_up, done) for done in (0, 0.5, 1)]
    assert factors == pytest.approx(expected)
    assert doctest.testmod(training).failed == 0


def test_a_schedule_scales_every_rate(tmp_path):
    changes = ("models.ornn.reflection_rate=0.1", "models.ornn.learning_rate=0.01", "models.ornn.schedule=cosine")
    for steps in (9, 20):  # the second time from a checkpoint
        _, run = train(digits(*changes), "ornn", tmp_path, steps)
    factor = training.learning_rate_factor("cosine", 0.0, 28 / 58)
    assert [group["lr"] for group in run.optimizer.param_groups] == pytest.approx([0.01 * factor, 0.001 * factor])
