"""``householder train`` as a user meets it: results, interruptions and mistakes."""

import os
import signal

import pytest
import torch

from experiments.tests.command import finish, output_of, posix, start, wait_for, wait_for_end_of_group
from experiments.tests.runs import results
from householder_experiments import processes

RUN = ["train", "digits", "--model", "ornn,lstm", "--epochs", "6", "--set", "checkpoint_seconds=0.1"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "undisturbed"
    out = output_of(*RUN, "--output", directory)
    return directory, out


def test_a_run_leaves_a_table_a_figure_and_logs(undisturbed):
    directory, out = undisturbed
    assert [outcome["model"] for outcome in results(directory)] == ["ornn", "lstm"]
    for outcome in results(directory):
        assert f"{outcome['metric']:#.4g} %" in out
        assert outcome["metric"] > 30
        assert len((directory / outcome["model"] / "metrics.csv").read_text().splitlines()) == 7
        assert list((directory / outcome["model"]).glob("events.out.tfevents.*"))
    assert (directory / "learning_curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@posix
def test_a_killed_run_resumes_to_the_same_metrics(undisturbed, tmp_path):
    process = start(*RUN, "--output", tmp_path / "run")
    wait_for((tmp_path / "run" / "lstm" / "checkpoint.pt").exists, process)
    process.kill()
    finish(process)
    wait_for_end_of_group(process.pid)  # the processes that train notice and end
    assert not (tmp_path / "run" / "results.json").exists()

    output_of("train", "digits", "--resume", tmp_path / "run")
    assert results(tmp_path / "run") == results(undisturbed[0])


@posix
def test_ctrl_c_writes_a_checkpoint_and_says_how_to_go_on(undisturbed, tmp_path):
    process = start(*RUN, "--set", "checkpoint_seconds=1000", "--output", tmp_path / "run")
    wait_for((tmp_path / "run" / "lstm" / "metrics.csv").exists, process)
    os.killpg(process.pid, signal.SIGINT)
    status, out, err = finish(process)
    assert (status, err) == (130, "")
    assert f"householder train --resume {tmp_path / 'run'}" in out.replace("\n", "")
    assert (tmp_path / "run" / "lstm" / "checkpoint.pt").exists()

    output_of("train", "digits", "--resume", tmp_path / "run")
    assert results(tmp_path / "run") == results(undisturbed[0])


def test_a_garbled_checkpoint_fails_its_model_alone(undisturbed, tmp_path, call):
    run = tmp_path / "run"
    (run / "lstm").mkdir(parents=True)
    (run / "config.yaml").write_bytes((undisturbed[0] / "config.yaml").read_bytes())
    (run / "lstm" / "checkpoint.pt").write_bytes(b"garbage")
    status, out, err = call("train", "digits", "--resume", run)
    assert status == 1
    assert err.count("\n") == 1
    assert err.startswith("householder: no readable checkpoint: ")
    assert f"{results(undisturbed[0])[0]['metric']:#.4g} %" in out


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("patience=3", "patience needs validation data"),
        ("models.ornn.num_reflections=500", "ornn: num_reflections is 500"),
        pytest.param(
            "accelerator=cuda",
            "there is no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
    ],
)
@pytest.mark.parametrize("command", [["train", "digits", "--model"], ["compare", "digits", "--seeds", "2", "--models"]])
def test_refused_settings_leave_no_run_behind(command, setting, message, tmp_path, refusal):
    assert message in refusal(*command, "ornn", "--set", setting, "--output", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("task", "data"),
    [
        ("chars", "chars (Python's documentation; --data takes your own): ornn; "),
        ("audio", "audio (a synthesised chord; --data takes your own): ornn; "),
    ],
)
def test_the_first_line_names_the_data_that_a_task_uses_without_any(task, data, tmp_path, monkeypatch, call):
    monkeypatch.setattr("householder_experiments.session.launch", lambda *_: {})
    _, out, _ = call("train", task, "--model", "ornn", "--output", tmp_path / "run")
    assert out.startswith(data)


DIGITS = "{task: {kind: digits}, models: {srnn: {hidden_size: 4, learning_rate: 0.1}}, epochs: 1, batch_size: 5}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digitz"], "unknown task 'digitz': expected one of addition, "),
        (["digitz"], "did you mean 'digits'?"),
        ([], "which task?"),
        (["mnist"], "mnist needs --data DIR, a folder that holds train-images-idx3-ubyte, train-labels-idx1-ubyte, "),
        (["permuted-mnist"], "the task digits needs no files"),
        (["mnist", "--data", "nowhere"], "nowhere holds no train-images-idx3-ubyte"),
        (["chars", "--data", "nowhere"], "nowhere holds no train.txt"),
        (["audio", "--data", "nowhere.wav"], "nowhere.wav: No such file or directory"),
        (["digits", "--set", "models.srnn.nonlinearity=gelu"], "models.srnn.nonlinearity: input should be"),
        (["digits", "--set", "models.ornn.num_reflections=129"], "models.ornn: num_reflections is 129"),
        (["digits", "--set", "models.ornn.learning_rat=1"], "did you mean 'learning_rate'?"),
        (["digits", "--set", "models.lstn.hidden_size=1"], "did you mean 'lstm'?"),
        (["addition", "--full"], "addition.yaml has no settings under 'full': leave out --full"),
        (["--resume", "run", "--full"], "leave out --full"),
        (["digits", "--set", "epochs=true"], "householder: --set epochs: expected integer, >= 1, got True"),
        (
            ["digits", "--set", "seed=3", "--set", "models.ornn.hidden_size=true"],
            "--set models.ornn.hidden_size: expected",
        ),
        (
            ["digits", "--set", "learning_rate=0.1"],
            "householder: --set learning_rate: there is no such setting; did you mean 'models.ornn.learning_rate'?",
        ),
        (["addition", "--set", "length=9"], "--set length: there is no such setting; did you mean 'task.length'?"),
        (
            ["digits", "--set", "models.ornn.hidden_size=abc"],
            "householder: --set models.ornn.hidden_size: input should be",
        ),
        (["digits", "--set", "task.foo=1"], "householder: --set task.foo: there is no such setting"),
        (["digits", "--set", "models={}"], "householder: --set models: "),
        (["digits", "--set", "task=7"], "householder: --set task: "),
        (["digits", "--seed", "3", "--set", "task={kind: digit}"], "householder: --set task: unknown kind 'digit'"),
        (
            ["digits", "--models", "ornn,usv", "--set", "models.ornn.num_reflections=999"],
            "householder: --set models.ornn: num_reflections is 999",
        ),
        (
            ["digits", "--config", "wrong.yaml", "--set", "epochs=2"],
            "wrong.yaml: models.srnn.hidden_size: input should be",
        ),
        (
            ["chars", "--data", "x", "--config", "digits.yaml"],
            "householder: --data task.data: there is no such setting",
        ),
        (["digits", "--models", "ornn,lstn"], "did you mean 'lstm'?"),
        (["digits", "--set", "task.validation=0.999"], "task.validation is 0.999"),
        (["no_such_module:Task"], "cannot import no_such_module for no_such_module:Task"),
        (["digits", "--output=--"], "--output=--: expected a value"),
        (["json:Missing"], "json has no Missing"),
        (["../mine.py:CSVTask"], "with the name of a module that can be imported, not a file"),
        (
            ["digits", "--import", "mine.py/"],
            "--import: expected the name of a module, such as my_module, got 'mine.py/'",
        ),
        (["digits", "--devices", "9999"], "--devices 9999: there are "),
        (["digits", "--config", "aliases.yaml"], "line 1, column 13: aliases are not taken: repeat the values"),
        (["digits", "--config", "deep.yaml"], "there are more than 20 levels"),
        (["digits", "--config", "large.yaml"], "large.yaml has more than 65,536 bytes"),
        (["digits", "--set", "epochs=0x1" + "0" * 9000], "is not a valid YAML value"),
        (["chars", "--data", "a\nb"], r"a\nb holds no train.txt"),
        (["digits", "--epochs", "3", "a\nb"], r"unrecognized arguments: a\nb"),
        (["json:JSONDecoder"], "json:JSONDecoder is not a class derived from householder_experiments.tasks.base.Task"),
        (["digits", "--models", "torch.nn:GRV"], "did you mean 'GRU'?"),
        (
            ["digits", "--models", "householder.torch:OrthogonalRNN", "--set", "models.OrthogonalRNN.num_layer=2"],
            "did you mean 'num_layers'?",
        ),
        (["digits", "--epochs", "ten"], "--epochs: expected an integer from 1 on, got 'ten'"),
        (["digits", "--epochs", "0"], "--epochs: expected an integer from 1 on, got '0'"),
        (["digits", "--jobs", "0"], "--jobs: expected an integer from 1 on, got '0'"),
        (["digits", "--seed", "-1"], "--seed: expected an integer from 0 on, got '-1'"),
        (["digits", "--model", "ornn,gru"], "unknown model 'gru': there are ornn, free-rnn, lstm, "),
        (["digits", "--model", "GRU"], "and your own as my_module:MyRNN, such as torch.nn:GRU"),
        (["digits", "--models", "ornn,lstm,ornn"], "model 'ornn' is given twice: name each model once"),
        (["digits", "--set", "models.ornn.rate=1"], "models.ornn.rate: there is no such setting"),
        (["digits", "--set", "models.gru.hidden_size=1"], "there is no 'gru' to change"),
        (["digits", "--set", "models.ornn.kind=gru"], "unknown kind 'gru', expected one of 'ornn', 'ornn-soft', "),
        (["digits", "--set", "models.lstm.learning_rate=fast"], "should be a valid number"),
        (["digits", "--set", "models.lstm.learning_rate=.nan"], "should be a finite number"),
        (["digits", "--set", "epochs"], "expected NAME=VALUE"),
        (["digits", "--set", "epochs=[1"], "is not a valid YAML value"),
        (["digits", "--data", "."], "--data: digits takes no data, but "),
        (["digits", "--config", "missing.yaml"], "cannot read missing.yaml: No such file or directory"),
        (["digits", "--config", "torn.yaml"], "torn.yaml is not valid YAML: line 2, column 1"),
        (["digits", "--config", "binary.yaml"], "binary.yaml is not UTF-8 text: byte 0"),
        (["digits", "--config", "empty.yaml"], "empty.yaml is not an experiment"),
        (["digits", "--config", "partial.yaml"], "partial.yaml: task: field required"),
        (["digits", "--resume", "nowhere"], "nowhere holds no run"),
        (["digits", "--resume", "run", "--seed", "3"], "leave out --seed"),
        (["digits", "--output", "run"], "run already holds a run"),
        (["digits", "--output", "torn.yaml/run"], "cannot write to torn.yaml/run"),
    ],
)
def test_mistakes_are_answered_in_one_line(arguments, message, tmp_path, monkeypatch, refusal):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torn.yaml").write_text("epochs: [1,\n")
    (tmp_path / "binary.yaml").write_bytes(bytes(range(128, 256)))
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "partial.yaml").write_text("epochs: 3\n")
    (tmp_path / "digits.yaml").write_text(DIGITS)
    (tmp_path / "wrong.yaml").write_text(DIGITS.replace("4", "-4"))
    (tmp_path / "aliases.yaml").write_text("x: [&a [1], *a]\n")
    (tmp_path / "deep.yaml").write_text("x: " + "[" * 3000)
    (tmp_path / "large.yaml").write_text("# " + "x" * 70_000)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    assert message in refusal("train", *arguments)


@pytest.mark.parametrize(
    ("cores", "threads", "devices", "expected"), [(8, 1, 1, 8), (8, 2, 1, 4), (8, 2, 3, 1), (2, 4, 1, 1)]
)
def test_as_many_models_train_at_a_time_as_there_are_cores_for(cores, threads, devices, expected, monkeypatch):
    monkeypatch.setattr(processes, "usable_cores", lambda: cores)
    assert processes.models_at_a_time(threads, devices) == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot confine a process to a core")
def test_cores_that_a_process_may_not_use_do_not_count(run_script):
    code = f"""
import os
from householder_experiments.processes import models_at_a_time
os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})
print(models_at_a_time(1))
"""
    assert run_script(code) == "1\n"
