"""Whatever stands in a file's place, whatever a folder is called and wherever output goes: a result, or one line."""

import doctest
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.tests.command import COMMAND, finish, output_of, posix, start, wait_for, wait_for_end_of_group
from experiments.tests.damaged_files import KINDS
from experiments.tests.runs import small_experiment
from householder.cli import errors
from householder.cli.errors import UserError, one_line
from householder_experiments import load
from householder_experiments.experiment import (
    apply_change,
    data_change,
    load_experiment,
    packaged_config,
    saved_experiment,
)
from householder_experiments.files import HOLDER, LOCK, held
from householder_experiments.launch import LOG, Failure, Job, launch
from householder_experiments.outcome import CONFIG, METRICS
from householder_experiments.session import claimed

STAND_INS = {
    "pipe": os.mkfifo if hasattr(os, "mkfifo") else None,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
}


@pytest.fixture(params=STAND_INS)
def stand_in(request):
    """Return what puts something else in the place of a file, and its name."""
    return STAND_INS[request.param], request.param


@posix
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", KINDS)
def test_readers_take_regular_files_alone(name, stand_in, tmp_path):
    (make, called), kind = stand_in, KINDS[name]
    kind.content(tmp_path)
    make(tmp_path / kind.name)
    with pytest.raises(UserError, match=f"cannot read .*: it is a {called}, expected a regular file"):
        kind.read(tmp_path)


@posix
@pytest.mark.parametrize("name", KINDS)
def test_readers_refuse_files_that_are_too_large_before_they_read_them(name, tmp_path):
    kind = KINDS[name]
    kind.content(tmp_path)
    with (tmp_path / kind.name).open("wb") as file:
        file.truncate(1 << 36)  # which takes no space
    with pytest.raises(UserError, match=r"has more than [0-9,]+ bytes"):
        kind.read(tmp_path)


@posix
@pytest.mark.timeout(200)
@pytest.mark.parametrize("command", [["train", "--resume"], ["compare", "--resume"], ["evaluate"], ["plot"]])
def test_commands_take_settings_from_regular_files_alone(command, stand_in, tmp_path, refusal):
    make, called = stand_in
    run = tmp_path / "run"
    place = run / "seed-1" if command[0] == "compare" else run
    place.mkdir(parents=True)
    make(place / CONFIG)
    assert f"{CONFIG}: it is a {called}, expected a regular file" in refusal(*command, run)
    if command == ["evaluate"]:
        with pytest.raises(UserError, match=f"it is a {called}"):
            load(run, "srnn")


@posix
@pytest.mark.timeout(200)
def test_what_a_comparison_varies_is_read_from_a_regular_file(stand_in, tmp_path, refusal):
    (tmp_path / "seed-1").mkdir()
    small_experiment().save(tmp_path / "seed-1" / CONFIG)
    make, called = stand_in
    make(tmp_path / "over.json")
    assert f"over.json: it is a {called}" in refusal("compare", "--resume", tmp_path)


def test_a_link_to_nothing_is_no_absent_file(tmp_path, refusal):
    (tmp_path / "seed-1").mkdir()
    small_experiment().save(tmp_path / "seed-1" / CONFIG)
    (tmp_path / "over.json").symlink_to(tmp_path / "nothing")
    assert "over.json: No such file" in refusal("compare", "--resume", tmp_path)


@posix
def test_a_model_adds_to_regular_files_alone(tmp_path):
    for name in (LOG, METRICS):
        (tmp_path / name).mkdir()
        os.mkfifo(tmp_path / name / name)
        results = launch({"srnn": Job(small_experiment(), "srnn", tmp_path / name)}, 1, lambda *_: None)
        if name == LOG:
            assert isinstance(results["srnn"], Failure)
            assert "log.txt: it is a pipe, expected a regular file" in results["srnn"].message
        else:  # the pipe is replaced by the table as it was at the last checkpoint
            assert results["srnn"].epochs == 1


@posix
@pytest.mark.timeout(200)
def test_locks_wait_for_no_pipe(tmp_path):
    for name in (LOCK, HOLDER):
        os.mkfifo(tmp_path / name)
    with held(tmp_path):
        pass


NAMES = [
    "plain",
    "données",
    "𠮷野家",
    "run😀",
    "a: 'b' #c",
    ' "quoted" ',
    "back\\slash",
    "[x]",
    "tab\there",
    "line\nbreak",
]
NAMES += ["\x7f\x85\u2028\ufeff", "null", "~", *(["caf\udce9"] if os.name == "posix" else [])]


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_data_may_have_any_name(name, tmp_path):
    folder = tmp_path / name
    raw = {"task": {"kind": "chars"}}
    apply_change(raw, data_change(folder, "chars"))
    assert raw["task"]["data"] == str(folder)
    experiment = load_experiment(
        packaged_config("chars"), [data_change(folder, "chars"), "models={srnn: {hidden_size: 4, learning_rate: 0.01}}"]
    )
    experiment.save(tmp_path / CONFIG)
    assert saved_experiment(tmp_path / CONFIG).task.data == folder
    with pytest.raises(UserError) as caught:
        experiment.task.load()
    assert one_line(str(folder)) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("donn\xe9es \U00020bb7[red]", "run-\u6570\u636e"),
        pytest.param("caf\udce9", "run", marks=posix),
    ],
)
def test_every_command_works_in_folders_of_any_name(name, run, tmp_path, call):
    data, run = tmp_path / name, tmp_path / run
    data.mkdir()
    for part in ("train", "valid", "test"):
        (data / f"{part}.txt").write_text("the quick brown fox\n" * 8)
    for arguments in (
        ["train", "chars", "--models", "srnn", "--epochs", "1", "--data", data, "--output", run],
        ["train", "--resume", run, "--epochs", "2"],
        ["evaluate", run],
        ["evaluate", run, "--data", data],
        ["plot", run, "--output", data / "curves.svg"],
    ):
        status, _, err = call(*arguments)
        assert (status, err) == (0, ""), arguments
    assert (data / "curves.svg").exists()


@posix
@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_run_s_folder_has_a_name_that_its_logs_can_have(command, tmp_path, refusal):
    error = refusal(command, "digits", "--models", "srnn", "--output", tmp_path / "caf\udce9")
    assert error.endswith("caf\\udce9: TensorBoard takes only names that are UTF-8\n")
    assert not list(tmp_path.iterdir())


TEXTS = ["into /tmp/donn\xe9es", "into /tmp/\u6570\u636e", "into /tmp/caf\udce9", "a\x1b[31mb"]


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii", "cp1252", "latin-1:strict"])
def test_output_takes_texts_of_any_alphabet(encoding):
    printing = f"[say(new_console(), text) for text in {TEXTS!r}]"
    code = f"from householder_experiments.report import new_console, say; {printing}"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=os.environ | {"PYTHONIOENCODING": encoding}, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    encoding = encoding.partition(":")[0]
    printed = [one_line(text).encode(encoding, "backslashreplace").decode(encoding) for text in TEXTS]
    assert [line.rstrip() for line in done.stdout.decode(encoding).splitlines()] == printed


SMALL = ["train", "digits", "--models", "srnn", "--epochs", "1"]
NO_SPACE = "householder: cannot write standard output: No space left on device\n"
full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")


@full
def test_a_run_whose_output_fills_a_disk_can_be_resumed(tmp_path):
    with open("/dev/full", "wb") as device:
        done = subprocess.run(
            [*COMMAND, *SMALL, "--output", tmp_path / "run"],
            stdout=device,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, NO_SPACE)
    assert "srnn" in output_of("train", "--resume", tmp_path / "run")


@posix
@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_run_whose_reader_is_gone_can_be_resumed(command, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [*COMMAND, command, *SMALL[1:], "--output", tmp_path / "run"]
    done = subprocess.run(arguments, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
    assert "srnn" in output_of(command, "--resume", tmp_path / "run")


@posix
def test_a_run_without_standard_streams_writes_into_its_own_files_alone(tmp_path):
    command = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *COMMAND, *SMALL, "--output", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "run" / "results.json").exists()
    assert (tmp_path / "run" / "srnn" / LOG).read_text() == ""


@posix
@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_a_job_that_is_ended_in_its_first_seconds_says_so(seconds, tmp_path):
    """A scheduler sends SIGTERM to every process of a job."""
    import signal
    import time

    process = start(*SMALL, "--epochs", "100000", "--output", tmp_path / "run")
    wait_for((tmp_path / "run" / CONFIG).exists, process)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGTERM)
    status, out, err = finish(process)
    assert (status, err) == (130, "")
    assert "interrupted; continue with: householder train --resume" in out
    wait_for_end_of_group(process.pid)


COMPARISON = ["compare", "digits", "--models", "srnn", "--epochs", "1", "--seeds", "1"]


@pytest.mark.parametrize("first", ["run", "comparison"])
@pytest.mark.parametrize("command", [SMALL, COMPARISON])
def test_a_folder_holds_a_run_or_a_comparison(first, command, tmp_path, refusal):
    with claimed(tmp_path, {"." if first == "run" else "seed-1": small_experiment()}, begun=True):
        pass
    before = sorted(tmp_path.rglob("*"))
    expected = f"{tmp_path} already holds a {first}: --resume {tmp_path} continues it"
    assert expected in refusal(*command, "--output", tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", ["train", "compare"])
def test_what_to_resume_is_one_of_both(command, tmp_path, refusal):
    for folder in (".", "seed-1"):
        (tmp_path / folder).mkdir(exist_ok=True)
        small_experiment().save(tmp_path / folder / CONFIG)
    assert "holds a run and a comparison" in refusal(command, "--resume", tmp_path)


def test_a_comparison_is_not_continued_from_a_run(tmp_path, refusal):
    small_experiment().save(tmp_path / CONFIG)
    assert "holds no comparison: it is a run" in refusal("compare", "--resume", tmp_path)


def test_a_model_may_be_called_as_a_seed_is(tmp_path):
    changes = ["--set", "models={seed-1: {kind: srnn, hidden_size: 4, learning_rate: 0.01}}"]
    output_of("train", "digits", "--epochs", "1", *changes, "--output", tmp_path / "run")
    assert "seed-1" in output_of("train", "--resume", tmp_path / "run", "--epochs", "2")


def test_errors_are_one_line_that_says_something():
    assert doctest.testmod(errors).failed == 0
    assert doctest.testmod(errors).attempted > 5
