"""Processes that share batches train as one does."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from experiments.tests.command import COMMAND
from experiments.tests.runs import rows
from householder.cli.errors import UserError
from householder_experiments.experiment import load_experiment, packaged_config
from householder_experiments.group import Group, free_port, group_of, share
from householder_experiments.launch import Failure, Job, launch
from householder_experiments.tasks.base import Batch

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "LOCAL_WORLD_SIZE": "2",
    "WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "29500",
}


@pytest.mark.parametrize(("results", "status"), [({}, 0), ({"ornn": Failure("it stopped")}, 1)])
def test_a_command_that_is_not_the_first_leaves_words_and_files_to_it(results, status, tmp_path, monkeypatch, call):
    monkeypatch.setattr("householder_experiments.session.group_of", lambda *_: Group(nodes=2, node=1, address="head"))
    monkeypatch.setattr("householder_experiments.session.launch", lambda *_: results)
    assert call("train", "digits", "--output", tmp_path / "run")[:2] == (status, "")
    assert not (tmp_path / "run").exists()


def curve(path):
    return [{name: float(value) for name, value in row.items()} for row in rows(path)]


def train(experiment, directory, devices):
    jobs = {name: Job(experiment, name, directory / name) for name in experiment.models}
    return launch(jobs, 1, lambda _name, _progress: None, Group(devices))


def test_two_processes_give_the_loss_curve_of_one(tmp_path):
    changes = (
        "epochs=2",
        "batch_size=250",  # and a last batch of an odd number of sequences
        "precision=64-true",
        "models.ornn.hidden_size=24",
        "models.ornn.num_reflections=4",
        "models.usv={hidden_size: 12, learning_rate: 0.003}",
    )
    experiment = load_experiment(packaged_config("digits"), changes).only(["ornn", "srnn", "usv"])
    alone = train(experiment, tmp_path / "alone", 1)
    together = train(experiment, tmp_path / "together", 2)
    for name in experiment.models:
        assert together[name].metric == alone[name].metric
        curves = [curve(tmp_path / kind / name / "metrics.csv") for kind in ("alone", "together")]
        assert len(curves[0]) == len(curves[1]) == 2
        for one, other in zip(*curves, strict=True):
            assert other == pytest.approx(one, rel=1e-9)


@pytest.mark.long
def test_torchrun_trains_one_model_with_several_commands(tmp_path):
    settings = ["--model", "srnn", "--epochs", "1", "--set", "precision=64-true"]
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(free_port()),
    ]
    for launcher, name in (([], "alone"), ([*torchrun, "--no-python"], "together")):
        train = [*COMMAND, "train", "digits", *settings, "--output", str(tmp_path / name)]
        done = subprocess.run([*launcher, *train], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("learning curves: ") == 1
    ((alone,), (together,)) = (curve(tmp_path / name / "srnn" / "metrics.csv") for name in ("alone", "together"))
    assert together == pytest.approx(alone, rel=1e-9)


def test_a_failure_of_all_is_told_once(tmp_path):
    broken = ("models.srnn.nonlinearity=relu", "models.srnn.clip_norm=null")
    experiment = load_experiment(packaged_config("digits"), ("epochs=1", "models.srnn.learning_rate=1e30", *broken))
    results = train(experiment.only(["srnn"]), tmp_path, 2)
    assert isinstance(results["srnn"], Failure)
    assert "the loss is not finite" in results["srnn"].message


@pytest.mark.parametrize("every_step", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shares_are_the_whole_batch(every_step, size):
    task = SimpleNamespace(every_step=every_step, weight=lambda batch: batch.size)
    targets = torch.arange(35).view(5, 7) if every_step else torch.arange(7)
    batch = Batch(torch.randn(5, 7, 2), targets)
    shares = [share(task, batch, rank, size) for rank in range(size)]
    assert sum(weight for _, weight in shares) == 7
    assert torch.equal(torch.cat([own.inputs for own, _ in shares], 1), batch.inputs)
    assert torch.equal(torch.cat([own.targets for own, _ in shares], -1), targets)


def test_more_processes_than_sequences_share_without_weight():
    task = SimpleNamespace(every_step=False, weight=lambda batch: batch.size)
    shares = [share(task, Batch(torch.randn(5, 2, 1), torch.arange(2)), rank, 3) for rank in range(3)]
    assert sorted(weight for _, weight in shares) == [0, 1, 1]
    assert all(own.size == 1 for own, _ in shares)


def test_a_group_of_one_machine_needs_no_environment(monkeypatch):
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    group = group_of(devices=3, nodes=1)
    assert (group.size, list(group.started_here), group.is_first, group.is_divided) == (3, [0, 1, 2], True, False)


def test_several_machines_meet_as_the_environment_says(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    for name, value in {"MASTER_ADDR": "head", "MASTER_PORT": "29500", "NODE_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    group = group_of(devices=2, nodes=2)
    assert (group.size, list(group.started_here), group.is_first, group.is_divided) == (4, [0, 1], False, True)
    assert group.environment(1, 29501)["NODE_RANK"] == "1"
    monkeypatch.setenv("NODE_RANK", "2")
    with pytest.raises(UserError, match="NODE_RANK=2 do not fit --num-nodes 2"):
        group_of(devices=2, nodes=2)
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(UserError, match="--num-nodes 2 needs MASTER_PORT"):
        group_of(devices=2, nodes=2)


def test_torchrun_has_started_the_processes(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    group = group_of(devices=1, nodes=1)
    assert (group.size, list(group.started_here), group.is_first, group.is_divided) == (4, [0], False, True)
    assert group.port != 29500
    with pytest.raises(UserError, match="leave out --devices"):
        group_of(devices=2, nodes=1)
