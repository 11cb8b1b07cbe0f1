"""What each task asks, and what a model that knew the answer would score."""

from itertools import permutations
from math import log
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.tests.runs import train, write_mnist
from householder.cli.errors import UserError
from householder_experiments.catalogue import TASKS
from householder_experiments.experiment import load_experiment, packaged_config
from householder_experiments.figures import generated_sequences
from householder_experiments.tasks import characters

GENERATED = ("addition", "copy", "recall", "tracking")


@pytest.fixture(scope="module")
def changes(tmp_path_factory):
    """The settings that a task asks for: MNIST has no data of its own."""
    directory = tmp_path_factory.mktemp("mnist")
    write_mnist(directory, 3, 4)
    return lambda task: (f"task.data={directory}",) if "mnist" in task else ()


def load(task, *changes):
    return load_experiment(packaged_config(task), changes).task.load()


def in_full(parts):
    return torch.cat([batch.inputs for batch in parts], 1)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_trains_every_model_of_its_experiment(name, changes, tmp_path):
    experiment = load_experiment(packaged_config(name), ("epochs=1", "batch_size=2", *changes(name)))
    for model in experiment.models:
        outcome, run = train(experiment, model, tmp_path / model, steps=1)
        assert run.state.step == 1
        assert outcome.judged_on == run.task.judged_on


@pytest.mark.parametrize("name", TASKS)
def test_batches_are_a_pure_function_of_their_address(name, changes):
    batches = [load(name, *changes(name)).batch(5, 7, 0, 0) for _ in range(2)]
    for one, other in zip(*batches, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", GENERATED)
def test_generated_sequences_are_new_in_every_batch_and_the_held_out_ones_fixed(name):
    task = load(name)
    held_out = [in_full(task.held_out(part)) for part in ("validation", "validation", "test")]
    assert torch.equal(held_out[0], held_out[1])
    assert held_out[2].shape[1] == 1000
    addresses = [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1), (0, 0, 0)]
    drawn = [task.batch(250, *address).inputs for address in addresses] + [held_out[0], held_out[2][:, :250]]
    assert len({sequences.numpy().tobytes() for sequences in drawn}) == len(drawn)


@pytest.mark.parametrize(("part", "key"), [("validation", 0), ("test", 1)])
def test_the_numbers_of_a_held_out_part_are_its_own(part, key):
    task = load("copy")
    random = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(key,)))
    assert torch.equal(next(task.held_out(part)).inputs, task.draw(random, 250).inputs)


@pytest.mark.parametrize("length", [2, 9, 400])
def test_addition_asks_for_the_sum_of_two_marked_numbers_one_in_each_half(length):
    inputs, targets = load("addition", f"task.length={length}").batch(50, 1, 0, 0)
    assert inputs.shape == (length, 50, 2)
    numbers, marks = inputs.unbind(-1)
    assert (numbers >= 0).all()
    assert (numbers < 1).all()
    assert (marks[: length // 2].sum(0) == 1).all()
    assert (marks[length // 2 :].sum(0) == 1).all()
    torch.testing.assert_close((numbers * marks).sum(0)[:, None], targets)


def test_answering_one_has_the_baseline_error_of_addition():
    task = load("addition")
    errors = [task.measure(torch.ones_like(batch.targets), batch.targets) for batch in task.held_out("test")]
    assert np.mean(errors) == pytest.approx(task.baseline, rel=0.05)


def test_copying_asks_for_the_first_symbols_after_the_delay():
    task = load("copy", "task.delay=30")
    inputs, targets = task.batch(20, 1, 0, 0)
    assert inputs.shape == (50, 20, 10)
    symbols = inputs.argmax(-1)
    assert (symbols[:10] < 8).all()
    assert torch.equal(targets[-10:], symbols[:10])
    assert (targets[:-10] == 8).all()
    assert (torch.nonzero(symbols == 9)[:, 0] == 39).all()  # "go" comes `delay` steps after the symbols
    assert (symbols == 9).sum() == 20


def test_copying_is_measured_by_what_a_memoryless_model_reaches():
    task = load("copy", "task.delay=30")
    _, targets = task.batch(20, 1, 0, 0)
    knows_when = torch.full((50, 20, 9), -1e4)
    knows_when[:-10, :, 8] = 0
    knows_when[-10:, :, :8] = 0
    assert task.loss(knows_when, targets).item() == pytest.approx(10 * log(8) / 50)
    assert task.measure(knows_when, targets).item() == pytest.approx(1)


def test_recall_asks_for_the_value_of_each_key():
    task = load("recall", "task.pairs=5", "task.symbols=7")
    inputs, targets = task.batch(20, 1, 0, 0)
    assert inputs.shape == (15, 20, 14)
    symbols = inputs.argmax(-1)
    for row in range(20):
        keys, values = symbols[0:10:2, row].tolist(), (symbols[1:10:2, row] - 7).tolist()
        asked = symbols[10:, row].tolist()
        assert sorted(asked) == sorted(keys)
        assert len(set(keys)) == 5
        assert targets[10:, row].tolist() == [dict(zip(keys, values, strict=True))[key] for key in asked]
    assert (targets[:10] == -100).all()
    knows = torch.nn.functional.one_hot(targets.clamp(min=0), 7).double()
    assert task.measure(knows, targets) == 100
    assert task.measure(-knows, targets) == 0


def test_recall_needs_as_many_symbols_as_pairs():
    with pytest.raises(UserError, match="pairs is 8, expected at most symbols = 7"):
        load("recall", "task.pairs=8", "task.symbols=7")


@pytest.mark.parametrize("items", [2, 3, 5])
def test_tracking_asks_for_the_product_of_the_permutations_so_far(items):
    task = load("tracking", f"task.items={items}", "task.held_out_length=11")
    elements = list(permutations(range(items)))
    batches = [task.batch(20, 1, 0, 0), next(task.held_out("test"))]
    assert [batch.inputs.shape[0] for batch in batches] == [17, 12]
    for inputs, targets in batches:
        given = inputs.argmax(-1)
        assert (given[0] == len(elements)).all()
        for row in range(5):
            product = tuple(range(items))
            for step in range(1, len(given)):
                last = elements[given[step, row]]
                product = tuple(last[i] for i in product)
                assert elements[targets[step, row]] == product


@pytest.mark.parametrize("ahead", [1, 5])
def test_characters_ahead_of_those_read_are_predicted_and_padding_is_not(ahead):
    task = load("chars", f"task.ahead={ahead}")
    batches = [task.batch(16, 1, 0, index) for index in range(task.steps_per_epoch(16))]
    for batch in batches:
        read, wanted = batch.inputs.argmax(-1), batch.targets
        overlap = wanted[:-ahead] != -100
        assert (read[ahead:] == wanted[:-ahead])[overlap & (wanted[ahead:] != -100)].all()
    assert sum(task.weight(batch) for batch in batches) == sum(len(line) - ahead for line in task._train)
    rows = sum(batch.targets.numel() for batch in batches)
    assert rows < 1.05 * sum(task.weight(batch) for batch in batches)  # lines of like length go together


def test_lines_are_sorted_once_in_an_epoch(monkeypatch):
    task, epochs = load("chars"), []
    monkeypatch.setattr(characters, "shuffled", lambda *key: epochs.append(key) or np.arange(key[0]))
    for epoch in (0, 1):
        for index in range(3):
            task.batch(16, 1, epoch, index)
    assert [key for key in epochs if key[0] == len(task._train)] == [(len(task._train), 1, 0), (len(task._train), 1, 1)]


def test_knowing_nothing_costs_the_logarithm_of_the_alphabet():
    task = load("chars")
    batch = next(task.held_out("test"))
    uniform = torch.zeros(*batch.targets.shape, task.output_size)
    assert task.measure(uniform, batch.targets).item() == pytest.approx(np.log2(task.output_size))


def test_excerpts_follow_one_another_and_silence_has_error_one():
    excerpts = [load("audio", f"task.excerpt={k}").batch(1, 1, 0, 0) for k in range(1, 6)]
    assert len({excerpt.targets.numpy().tobytes() for excerpt in excerpts}) == 5
    for inputs, targets in excerpts:
        assert inputs.shape == targets.shape == (800, 1, 1)
        assert inputs.sum() == inputs[0] == 1
        assert load("audio").measure(torch.zeros_like(targets), targets).item() == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize(("model", "rate"), [("ornn-250", 0.2), ("lstm-250", 0.05), ("srnn-250", 0.05)])
def test_the_sound_of_the_best_epoch_is_left(model, rate, tmp_path):
    experiment = load_experiment(packaged_config("audio"), ("epochs=12", f"models.{model}.learning_rate={rate}"))
    for name, parts in (("whole", (12,)), ("parts", (1, 4, 4, 3))):
        for steps in parts:
            outcome, run = train(experiment, model, tmp_path / name, steps)
        errors = [row["train_nmse"] for row in run.state.history]
        assert outcome.metric == min(errors) < errors[-1]
        true, generated = np.loadtxt(tmp_path / name / "generated.csv", delimiter=",", skiprows=1).T
        assert np.mean((true - generated) ** 2) == pytest.approx(outcome.metric, rel=1e-4)


def test_pixels_are_permuted_alike_in_every_image(changes):
    tasks = [load(name, *changes(name)) for name in ("mnist", "permuted-mnist")]
    plain, permuted = (in_full(task.held_out("test")) for task in tasks)
    order = [int((plain == row).all((1, 2)).nonzero()[0]) for row in permuted if row.unique().numel() > 8]
    assert not torch.equal(plain, permuted)
    assert len(set(order)) == len(order)
    assert torch.equal(plain.sort(0).values, permuted.sort(0).values)


EXPERIMENTS = set(packaged_config("digits").parent.iterdir()) - {packaged_config("own")}


@pytest.mark.parametrize("path", sorted(EXPERIMENTS), ids=lambda path: path.stem)
def test_every_packaged_experiment_is_valid(path):
    experiment = load_experiment(path)
    assert experiment.task.kind in TASKS
    assert load_experiment(Path(path.stem)) == experiment


def test_a_sound_is_drawn_over_the_true_one(tmp_path):
    experiment = load_experiment(packaged_config("audio"), ("epochs=3",))
    outcome, _ = train(experiment, "ornn-250", tmp_path / "ornn-250")
    generated_sequences(tmp_path, [outcome], tmp_path / "generated.png")
    assert (tmp_path / "generated.png").read_bytes().startswith(b"\x89PNG")
