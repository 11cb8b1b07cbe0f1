"""A user's own task and model by the same command, and the uses of a trained run."""

import os
import shutil
import sys
from argparse import Namespace

import pytest
import torch

from experiments.tests.command import output_of, output_of_process
from experiments.tests.runs import digits, results, rows, train
from householder import cli
from householder.cli.entry import parser
from householder.cli.errors import UserError
from householder_experiments import load
from householder_experiments.arguments import named_modules
from householder_experiments.experiment import load_experiment, packaged_config
from householder_experiments.models import PACKAGED_MODELS
from householder_experiments.outcome import write_outcomes
from householder_experiments.own import imported, permitted
from householder_experiments.session import asked, default_directory, resumed_run
from householder_experiments.tasks import Task

MODULE = """
import torch
from householder_experiments.tasks import Batch, Task


class Parity(Task):
    input_size, output_size, metric, unit = 1, 2, "accuracy", "%"

    def __init__(self, length: int = 6, data=None):
        if length < 1:
            raise ValueError(f"length is {length}, expected at least 1")
        self.length, self.data = length, data

    def steps_per_epoch(self, size):
        return 4

    def batch(self, size, seed, epoch, index):
        bits = torch.randint(2, (self.length, size, 1), generator=torch.Generator().manual_seed(seed * 1000 + index))
        return Batch(bits.float(), bits.sum((0, 2)) % 2)

    def held_out(self, part):
        yield self.batch(50, 1 if part == "test" else 2, 0, 900)

    def loss(self, prediction, targets):
        return torch.nn.functional.cross_entropy(prediction, targets)

    def measure(self, prediction, targets):
        return 100 * (prediction.argmax(-1) == targets).double().mean()


class Running(torch.nn.Module):
    def __init__(self, input_size, hidden_size, slope=1.0):
        super().__init__()
        self.weight, self.slope = torch.nn.Parameter(torch.randn(hidden_size, input_size)), slope

    def forward(self, x):
        states = torch.tanh(self.slope * (x @ self.weight.mT).cumsum(0))
        return states, states[-1:]


class Single(Running):
    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.float()
"""


@pytest.fixture(autouse=True)
def _precision_as_before():
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Stand in a folder with a module of one's own."""
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ.get("PYTHONPATH", "")]))
    return tmp_path


BARE = """
import torch
from householder_experiments.tasks import Batch, Task


class Bare(Task):
    input_size = output_size = 1

    def steps_per_epoch(self, size):
        return 2

    def batch(self, size, seed, epoch, index):
        inputs = torch.randn(3, size, 1, generator=torch.Generator().manual_seed(index))
        return Batch(inputs, inputs.sum(0))

    def held_out(self, part):
        yield self.batch(9, 0, 0, 7)

    def loss(self, prediction, targets):
        return torch.nn.functional.mse_loss(prediction, targets)


class Named(Bare):
    lower_is_better = True

    def measure(self, prediction, targets):
        return (prediction - targets).abs().mean()


class Sizeless(Bare):
    output_size = None


class Error(Named):
    metric = "error"


class Accuracy(Named):
    metric, lower_is_better = "accuracy", False
"""


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """Stand beside tasks that leave out what a task may leave out."""
    (tmp_path / "bare.py").write_text(BARE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("bare", None)


def test_a_task_of_the_abstract_methods_alone_is_judged_by_its_loss(bare, call):
    model = "models={srnn: {hidden_size: 4, learning_rate: 0.01}}"
    with permitted(["bare"], str(bare)):
        experiment = load_experiment(packaged_config("own"), ["task.kind='bare:Bare'", "epochs=2", model])
        outcome, _ = train(experiment, "srnn", bare / "run" / "srnn")
    experiment.save(bare / "run" / "config.yaml")
    write_outcomes(bare / "run", [outcome])
    assert (outcome.metric_name, outcome.lower_is_better) == ("loss", True)
    assert [list(row) for row in rows(bare / "run" / "srnn" / "metrics.csv")] == [["epoch", "step", "train_loss"]] * 2
    assert call("plot", "run")[0] == 0
    status, out, _ = call("evaluate", "run", "--import", "bare")
    assert (status, out.count("test loss")) == (0, 1)
    assert f"{outcome.metric:#.4g}" in out


def test_a_smaller_loss_is_better_unless_a_task_says_otherwise(bare):
    with permitted(["bare"], str(bare)):
        tasks = {name: imported(f"bare:{name}", Task)() for name in ("Bare", "Error", "Accuracy")}
    assert {name: task.lower_is_better for name, task in tasks.items()} == {
        "Bare": True,
        "Error": True,
        "Accuracy": False,
    }
    tasks["Bare"].lower_is_better = False
    assert not tasks["Bare"].lower_is_better


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Named", "bare:Named measures something else than its loss: set metric to the name of that"),
        ("Sizeless", "bare:Sizeless has no output_size: set it to an integer"),
    ],
)
def test_what_a_task_lacks_is_said_before_it_trains(name, message, bare, refusal):
    model = "models={srnn: {hidden_size: 4, learning_rate: 0.01}}"
    assert message in refusal("train", f"bare:{name}", "--set", model)
    assert not (bare / "runs").exists()


def test_a_file_of_settings_names_the_task(bare):
    (bare / "mine.yaml").write_text(
        "task: {kind: 'bare:Bare'}\nmodels: {srnn: {learning_rate: 0.01, hidden_size: 3}}\nepochs: 1\nbatch_size: 2\n"
    )
    options = parser().parse_args(["train", "--config", "mine.yaml", "--epochs", "5"])
    experiment = asked(options)
    assert (experiment.task.kind, experiment.epochs) == ("bare:Bare", 5)
    assert default_directory(experiment).name.startswith("Bare-")
    with pytest.raises(UserError, match="importing it runs that package's code: --import bare permits it"):
        experiment.task.load()


def test_only_what_a_command_line_names_is_imported():
    def named(*arguments):
        return named_modules(parser().parse_args(arguments))

    assert named("plot", "mine") == set()
    assert named("train", "digits", "--resume", "mine") == set()
    assert named("train", "mine:Task", "--models", "ornn,other.part:RNN") == {"mine", "other.part"}
    assert named("train", "digits", "--set", "models.a.kind=mine:RNN") == {"mine"}
    assert named("evaluate", "run", "--import", "mine", "--import", "other.part") == {"mine", "other.part"}


def test_one_s_own_task_and_model_train_by_the_same_command(mine, monkeypatch):
    arguments = ["--models", "ornn,lstm,mine:Running", "--epochs", "2", "--set", "task.length=5", "--output", "run"]
    out = output_of_process("train", "mine:Parity", *arguments, "--set", "models.Running.slope=2.0")
    assert "mine:Parity: ornn, lstm, Running" in out
    assert [outcome["model"] for outcome in results(mine / "run")] == ["ornn", "lstm", "Running"]
    parameters = [outcome["parameters"] for outcome in results(mine / "run")]
    assert max(parameters) < 1.04 * min(parameters)
    monkeypatch.syspath_prepend(str(mine))
    network = load("run", "Running", imports=["mine"])
    assert network.recurrence.slope == 2.0
    assert network(torch.zeros(5, 3, 1)).shape == (3, 2)
    assert cli.main(["evaluate", "run", "--import", "mine"]) == 0
    assert cli.main(["plot", "run"]) == 0
    output_of("train", "--resume", "run", "--epochs", "3", "--import", "mine")
    assert len(rows(mine / "run" / "Running" / "metrics.csv")) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine:Parety"], "did you mean 'Parity'?"),
        (["mine:Running"], "mine:Running is not a class derived from householder_experiments.tasks.base.Task"),
        (["mine:Parity", "--set", "task.lenght=3"], "mine:Parity has no setting 'lenght'; did you mean 'length'?"),
        (["mine:Parity", "--set", "task.length=0"], "mine:Parity: ValueError: length is 0, expected at least 1"),
        (["torn:Task"], "cannot import torn for torn:Task: SyntaxError"),
        (["mine:Parity", "--models", "ornn,mine:Runing"], "did you mean 'Running'?"),
    ],
)
def test_mistakes_of_one_s_own_are_one_line(arguments, message, mine, refusal):
    (mine / "torn.py").write_text("def f(:\n")
    assert message in refusal("train", *arguments)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of one model, as the command leaves it."""
    directory = tmp_path_factory.mktemp("runs") / "run"
    output_of("train", "digits", "--models", "srnn", "--epochs", "2", "--output", directory)
    return directory


def test_a_loaded_model_predicts_as_the_trained_one(run):
    network = load(run)
    task = load_experiment(run / "config.yaml").task.load()
    (batch,) = task.held_out("test")
    (outcome,) = results(run)
    assert task.measure(network(batch.inputs), batch.targets).item() == pytest.approx(outcome["metric"])
    assert not network.training
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), load(run, "srnn").parameters(), strict=True))


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
@pytest.mark.parametrize("kind", PACKAGED_MODELS)
def test_every_kind_of_model_computes_after_loading_what_it_computed_in_training(kind, precision, tmp_path, call):
    model = f"models={{{kind}: {{hidden_size: 4, learning_rate: 0.01}}}}"
    short = "task.length=6", "task.iterations=2", "epochs=1"
    experiment = load_experiment(packaged_config("addition"), (model, f"precision={precision}", *short))
    experiment.save(tmp_path / "config.yaml")
    outcome, run = train(experiment, kind, tmp_path / kind)
    x = torch.randn(6, 3, 2)  # in the precision of the run, which training has left as the default
    expected = run.model(x)
    torch.set_default_dtype(torch.float32)
    assert torch.equal(load(tmp_path)(x), expected)
    assert f"{outcome.metric:#.4g}" in call("evaluate", tmp_path)[1]
    assert torch.get_default_dtype() == torch.float32


def test_a_class_that_fixes_its_type_has_the_precision_of_the_run(mine):
    changes = "task.kind='mine:Parity'", "models={Single: {kind: 'mine:Single', hidden_size: 4, learning_rate: 0.01}}"
    with permitted(["mine"], str(mine)):
        experiment = load_experiment(packaged_config("own"), (*changes, "epochs=2", "precision=64-true"))
        experiment.save(mine / "config.yaml")
        _, whole = train(experiment, "Single", mine / "whole")
        train(experiment, "Single", mine / "Single", steps=3)
        train(experiment, "Single", mine / "Single")
    network = load(mine, imports=["mine"])
    for found, expected in zip(network.parameters(), whole.model.parameters(), strict=True):
        assert found.dtype == torch.float64
        assert torch.equal(found, expected)


@pytest.mark.parametrize("task", ["digits", "audio"])
def test_the_best_weights_differ_from_the_last_where_a_run_keeps_them(task, tmp_path):
    changes = {"digits": ("patience=0", "task.validation=0.2", "epochs=9"), "audio": ("epochs=12",)}[task]
    name = {"digits": "srnn", "audio": "srnn-250"}[task]
    experiment = load_experiment(packaged_config(task), (*changes, f"models.{name}.learning_rate=0.05")).only([name])
    experiment.save(tmp_path / "config.yaml")
    train(experiment, name, tmp_path / name)
    best, last = (load(tmp_path, weights=weights).state_dict() for weights in ("best", "last"))
    assert any(not torch.equal(best[key], last[key]) for key in best)


def test_what_cannot_be_loaded_is_said(run, tmp_path):
    for arguments, message in (
        ((tmp_path,), "holds no run"),
        ((run, "lstm"), "holds no model 'lstm': there are srnn"),
        ((run, "srn"), "did you mean 'srnn'?"),
    ):
        with pytest.raises(UserError, match=message.replace("?", r"\?")):
            load(*arguments)
    with pytest.raises(UserError, match="weights is 'first'"):
        load(run, weights="first")
    load_experiment(packaged_config("digits")).save(tmp_path / "config.yaml")
    with pytest.raises(UserError, match="holds ornn, free-rnn, lstm, srnn, srnn-orthogonal: name one of them"):
        load(tmp_path)
    with pytest.raises(UserError, match=r"holds no checkpoint.pt: the model has not been trained"):
        load(tmp_path, "ornn")


def test_no_result_is_taken_from_a_checkpoint_before_a_damaged_one(run, tmp_path):
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    newest = copied / "srnn" / "checkpoint.pt"
    newest.replace(copied / "srnn" / "checkpoint.previous.pt")
    load(copied)  # a process was killed between the two renames
    newest.write_bytes(b"torn")
    with pytest.raises(UserError, match=rf"checkpoint.pt is damaged: householder train --resume {copied}"):
        load(copied)


def test_evaluate_repeats_the_result_in_percent(run, call, refusal):
    (outcome,) = results(run)
    assert f"{outcome['metric']:#.4g} %" in call("evaluate", run)[1]
    assert "training accuracy" in call("evaluate", run, "--part", "training")[1]
    assert "digits has no validation part" in refusal("evaluate", run, "--part", "validation")


def test_other_data_are_evaluated_or_refused(tmp_path, call, refusal):
    for folder, letters in (("own", "ab"), ("same", "ba"), ("other", "abc")):
        (tmp_path / folder).mkdir()
        for part in ("train", "valid", "test"):
            (tmp_path / folder / f"{part}.txt").write_text(letters * 5)
    experiment = load_experiment(packaged_config("chars"), [f"task.data={tmp_path / 'own'}", "epochs=1"]).only(["ornn"])
    run = tmp_path / "run"
    run.mkdir()
    experiment.save(run / "config.yaml")
    train(experiment, "ornn", run / "ornn")
    assert "bits" in call("evaluate", run, "--data", tmp_path / "same")[1]
    error = refusal("evaluate", run, "--data", tmp_path / "other")
    assert "the model maps 2 inputs to 2 outputs, but these data have 3 and 3" in error


def test_a_finished_run_is_extended_from_where_it_ended(run, refusal):
    before = rows(run / "srnn" / "metrics.csv")
    output_of("train", "--resume", run, "--epochs", "4")
    after = rows(run / "srnn" / "metrics.csv")
    assert after[:2] == before
    assert [row["epoch"] for row in after] == ["1", "2", "3", "4"]
    assert load_experiment(run / "config.yaml").epochs == 4
    extended = results(run)
    output_of("train", "--resume", run, "--epochs", "4")  # as many as before, so nothing is left to do
    assert results(run) == extended
    error = refusal("train", "digits", "--resume", run, "--epochs", "3")
    assert error == f"householder: --epochs 3: {run} was begun with 4; give more to extend it\n"
    refusal("train", "chars", "--resume", run)


@pytest.mark.long
def test_several_seeds_mean_the_same_in_train_and_compare(tmp_path):
    for command in ("train", "compare"):
        arguments = ["--model", "srnn", "--seed", "5", "--seeds", "2", "--epochs", "1", "--output", tmp_path / command]
        output_of(command, "digits", *arguments)
    tables = [rows(tmp_path / command / "summary.csv") for command in ("train", "compare")]
    assert [[row["mean"] for row in table] for table in tables] == [[tables[0][0]["mean"]]] * 2
    assert sorted(path.name for path in (tmp_path / "train").glob("seed-*")) == ["seed-5", "seed-6"]


@pytest.mark.parametrize("epochs", [2, 3, 4])
def test_a_run_is_resumed_with_as_many_epochs_as_it_was_begun_with_or_more(epochs, tmp_path):
    digits("epochs=3").save(tmp_path / "config.yaml")
    options = Namespace(task=None, data=None, epochs=epochs)
    if epochs >= 3:
        assert resumed_run(tmp_path, options).epochs == epochs
    else:
        with pytest.raises(UserError, match=r"--epochs 2: .* was begun with 3; give more to extend it"):
            resumed_run(tmp_path, options)
