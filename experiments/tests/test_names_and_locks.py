"""A run stays in its directory, whatever its models are called, and one process at a time works on it."""

import json
import os
import socket

import pytest
import yaml

from experiments.tests.command import finish, start, wait_for
from householder.cli.errors import UserError
from householder_experiments.experiment import load_experiment, packaged_config
from householder_experiments.files import HOLDER, LOCK, held, inside, write_text
from householder_experiments.session import claimed

SMALL = {"kind": "srnn", "hidden_size": 4, "learning_rate": 0.01}
PATHS = ["../../victim", "..", ".", "/tmp/victim", "a/b", "a\\b", "C:victim", ".hidden", "-f", "~"]
UNPRINTABLE = ["a\0b", "a\nb", "a\x1b[31mb", "a\u202eb", " a", "a "]
BRACKETS = ["[red]a[/red]", "a{b}", "a*", "a?", "<a>", "$a", "a b"]
LONG = ["a" * 101, "a" * 60_000]
RESERVED = ["config.yaml", "results.json", "run.lock", "run.holder", "CONFIG.YAML", "learning_curves.png"]
REFUSED = [*PATHS, *UNPRINTABLE, *BRACKETS, *LONG, *RESERVED, "", "ü", 7, True]


def settings(*names):
    return {"task": {"kind": "digits"}, "epochs": 1, "batch_size": 50, "models": dict.fromkeys(names, SMALL)}


def files(directory):
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def victim(tmp_path):
    """Hold files of someone else, two folders above a run's output."""
    victim = tmp_path / "victim"
    victim.mkdir()
    for name in ("log.txt", "metrics.csv", "checkpoint.pt"):
        (victim / name).write_text("precious")
    return victim


@pytest.mark.parametrize("name", REFUSED, ids=lambda name: repr(name)[:20])
def test_a_name_that_cannot_be_a_folder_s_ends_in_one_line(name, refusal, victim):
    config = victim.parent / "config.yaml"
    config.write_text(yaml.safe_dump(settings(name)), encoding="utf-8")
    before = files(victim.parent)
    output = victim.parent / "runs" / "one"
    err = refusal("train", "digits", "--config", config, "--output", output)
    assert "name a model" in err
    assert err.rstrip("\n").isprintable()
    assert len(err) < 400
    assert files(victim.parent) == before


@pytest.mark.parametrize("command", ["train", "compare"])
@pytest.mark.parametrize("name", ["../../victim", "config.yaml", "a\0b"])
def test_names_of_another_s_run_are_checked_before_it_is_resumed(command, name, refusal, victim):
    run = victim.parent / "runs" / "one"
    place = run if command == "train" else run / "seed-1"
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(yaml.safe_dump(settings(name)), encoding="utf-8")
    before = files(victim.parent)
    assert "cannot name a model" in refusal(command, "digits", "--resume", run)
    assert files(victim.parent) == before


@pytest.mark.parametrize("name", ["a", "0", "A.b-c_d", "a" * 100, "nul.txt", "config.yml"])
def test_other_names_are_folders(name, tmp_path):
    write_text(tmp_path / "config.yaml", yaml.safe_dump(settings(name)))
    assert list(load_experiment(tmp_path / "config.yaml").models) == [name]
    assert inside(tmp_path, name).parent == tmp_path


def test_a_folder_that_is_a_link_leads_nowhere(call, victim):
    run = victim.parent / "runs" / "one"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump(settings("srnn")))
    (run / "srnn").symlink_to(victim)
    before = files(victim)
    status, _, err = call("train", "digits", "--resume", run)
    assert (status, err.count("\n")) == (2, 1)
    assert "nothing is written there" in err
    assert files(victim) == before


@pytest.mark.parametrize("output", ["/", ".", "figures"])
def test_a_figure_needs_a_file_s_name(output, refusal, tmp_path, monkeypatch):
    run = tmp_path / "run"
    (run / "ornn").mkdir(parents=True)
    load_experiment(packaged_config("digits")).save(run / "config.yaml")
    (run / "ornn" / "metrics.csv").write_text("epoch,train_loss,train_accuracy\n1,0.5,0.8\n")
    (tmp_path / "figures").mkdir()
    monkeypatch.chdir(tmp_path)
    before = files(tmp_path)
    assert "expected the name of a file" in refusal("plot", run, "--output", output)
    assert files(tmp_path) == before
    assert not os.path.exists("/.png")


def test_a_second_process_is_told_who_holds_the_run(refusal, tmp_path):
    run = tmp_path / "run"
    arguments = ["train", "digits", "--model", "srnn", "--epochs", "100000", "--output", run]
    first = start(*arguments)
    try:
        wait_for((run / "srnn" / "metrics.csv").exists, first)
        before = (run / "config.yaml").read_bytes()
        in_use = f"householder: {run} is in use by process {first.pid} on {socket.gethostname()}\n"
        for second in (arguments, ["train", "digits", "--resume", run]):
            assert refusal(*second) == in_use
        assert (run / "config.yaml").read_bytes() == before
    finally:
        first.kill()
        finish(first)


def test_a_run_is_free_once_its_process_has_died(tmp_path):
    write_text(tmp_path / HOLDER, json.dumps({"process": 1, "host": "elsewhere"}))
    (tmp_path / LOCK).touch()
    with held(tmp_path):
        assert json.loads((tmp_path / HOLDER).read_text())["process"] == os.getpid()
    assert not (tmp_path / HOLDER).exists()


def test_who_holds_a_run_may_be_unknown(tmp_path, monkeypatch):
    monkeypatch.setattr("householder_experiments.files._WAIT_SECONDS", 0.0)
    with held(tmp_path):
        (tmp_path / HOLDER).write_bytes(b"\xff{")
        with pytest.raises(UserError, match="is in use by another process"), held(tmp_path):
            pass


def test_a_run_is_begun_once(tmp_path):
    experiment = load_experiment(packaged_config("digits"))
    with claimed(tmp_path, {tmp_path: experiment}, begun=True):
        pass
    with pytest.raises(UserError, match="already holds a run"), claimed(tmp_path, {tmp_path: experiment}, begun=True):
        pass
    with claimed(tmp_path, {tmp_path: experiment}, begun=False):
        pass


def test_a_kill_while_a_file_is_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "results.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new\udc80")
    assert files(tmp_path) == {path.relative_to(tmp_path): b"old"}
