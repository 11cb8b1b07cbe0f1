"""Looking at somebody's run executes nothing of it, and nothing is written outside of one's own."""

import ast
import errno
import io
import os
import signal
import sys
import zipfile
from argparse import Namespace
from pathlib import Path

import pytest
import torch

import householder_experiments
from experiments.tests.command import COMMAND, finish, posix
from experiments.tests.damaged_files import OUTCOME, ROWS
from experiments.tests.runs import small_experiment, train
from householder.cli.errors import UserError
from householder_experiments.checkpoint import NAME, PREVIOUS, load_checkpoint, save_checkpoint
from householder_experiments.checks import check_group
from householder_experiments.curves import find_runs, read_curves
from householder_experiments.figures import learning_curves
from householder_experiments.files import HOLDER, LOCK, held, write_text, write_whole
from householder_experiments.group import Group
from householder_experiments.launch import LOG, Failure, Job, launch
from householder_experiments.outcome import CONFIG, METRICS, RESULTS, Outcome, write_outcomes
from householder_experiments.session import claimed, real

SETTINGS = """
task: {task}
models:
  a: {{kind: ornn, hidden_size: 4, learning_rate: 0.01}}
  b: {{kind: '{model}', learning_rate: 0.01{size}}}
epochs: 1
batch_size: 2
"""
GENERATED = "{kind: addition, length: 10, iterations: 2}"


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """Stand in somebody's run, beside a module that must not be imported although it could be."""
    run = tmp_path / "run"
    (run / "a").mkdir(parents=True)
    (run / "planted.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    (run / "a" / METRICS).write_text(ROWS)
    monkeypatch.chdir(run)
    monkeypatch.syspath_prepend(str(run))
    path = list(sys.path)
    yield run
    assert sys.path == path
    assert "planted" not in sys.modules
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("size", ["", ", hidden_size: 4"])
@pytest.mark.parametrize(("task", "model"), [(GENERATED, "planted:M"), ("{kind: 'planted:T'}", "srnn")])
def test_classes_that_a_run_names_are_not_imported(task, model, size, planted, call, refusal):
    (planted / CONFIG).write_text(SETTINGS.format(task=task, model=model, size=size))
    permits = "--import planted permits it"
    untrained = permits if "planted" in task else "a holds no checkpoint.pt"  # the first model, before the second
    for command, expected in ((["evaluate", "."], untrained), (["train", "--resume", "."], permits)):
        assert (expected if size else "models.b.hidden_size: field required") in refusal(*command)
    with pytest.raises(UserError):
        householder_experiments.load(".", "b")
    assert call("plot", ".", "--output", "curves.png")[0] == (0 if size else 2)


def test_processes_are_started_without_modules_of_the_working_directory(tmp_path, run_script):
    for name in ("multiprocessing", "socket", "selectors"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    script = tmp_path / "folder" / "script.py"
    script.parent.mkdir()
    script.write_text("""
from householder_experiments import processes

processes._PRELOAD = []
if __name__ == "__main__":
    processes.warm_up()
    process = processes.process_context().Process(target=print)
    process.start()
    process.join()
    assert process.exitcode == 0
""")
    run_script(f"""
import subprocess, sys
subprocess.run([sys.executable, {str(script)!r}], cwd={str(tmp_path)!r}, check=True)
""")
    assert not (tmp_path / "executed").exists()


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "precious.txt"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


def test_what_a_run_writes_replaces_links(victim, tmp_path):
    run, model = tmp_path / "run", tmp_path / "run" / "srnn"
    model.mkdir(parents=True)
    written = [run / CONFIG, run / RESULTS, run / "curves.png", run / HOLDER]
    written += [model / METRICS, model / NAME, model / PREVIOUS]
    for path in written:
        path.symlink_to(victim)
    for path in (model / NAME, model / PREVIOUS):  # which would be read first
        path.unlink()
    experiment = small_experiment()
    with held(run):
        experiment.save(run / CONFIG)
        train(experiment, "srnn", model)
        write_outcomes(run, [Outcome(**OUTCOME)])
        learning_curves(read_curves(find_runs([run])), run / "curves.png")
        for path in (model / NAME, model / PREVIOUS):
            path.unlink(missing_ok=True)
            path.symlink_to(victim)
        save_checkpoint(model, {"step": 1})
    assert not any(path.is_symlink() for path in written if path.name != PREVIOUS)


def test_a_log_that_is_a_link_fails_its_model(victim, tmp_path):
    (tmp_path / "srnn").mkdir()
    (tmp_path / "srnn" / LOG).symlink_to(victim)
    results = launch({"srnn": Job(small_experiment(), "srnn", tmp_path / "srnn")}, 1, lambda *_: None)
    assert isinstance(results["srnn"], Failure)
    assert "log.txt: it is a link, and nothing is written through links" in results["srnn"].message


@pytest.mark.parametrize("name", [LOCK, "seed-1"])
def test_links_on_the_way_are_refused(name, victim, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (run / name).symlink_to(victim if name == LOCK else tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"{name} is a link"), claimed(run, {"seed-1": small_experiment()}, begun=True):
        pass
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_run_that_is_a_link_is_resolved_once_and_said(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "run")
    assert real(tmp_path / "link") == tmp_path / "run"
    assert capsys.readouterr().out == f"{tmp_path / 'link'} is a link to {tmp_path / 'run'}\n"
    assert real(tmp_path / "run") == tmp_path / "run"
    assert capsys.readouterr().out == ""


def test_names_until_a_file_is_whole_cannot_be_guessed(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Path, "replace", lambda self, _: seen.append(self.name))
    for _ in range(2):
        write_text(tmp_path / "a.csv", "text")
    assert len(set(seen)) == 2
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileExistsError), (tmp_path / "x").open("xb"), (tmp_path / "x").open("xb"):
        pass


OPENS = {"open", "read_text", "read_bytes", "write_text", "write_bytes", "fromfile", "loadtxt", "safe_load", "loads"}


def test_files_are_opened_by_two_modules_alone():
    folder = Path(householder_experiments.__file__).parent
    opening = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and (
            (isinstance(node.func, ast.Attribute) and node.func.attr in OPENS)
            or (isinstance(node.func, ast.Name) and node.func.id == "open")
            or ast.unparse(node.func) in ("torch.load", "yaml.load", "json.load", "np.load")
        )
    }
    assert opening == {"readers.py", "files.py"}


def test_a_small_checkpoint_does_not_fill_the_memory(tmp_path):
    torch.save({"weight": torch.zeros(1 << 22)}, content := io.BytesIO())
    with zipfile.ZipFile(content) as whole, zipfile.ZipFile(tmp_path / NAME, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in whole.namelist():
            packed.writestr(name, whole.read(name))
    assert (tmp_path / NAME).stat().st_size < 1 << 18
    with pytest.raises(UserError, match="no readable checkpoint"):
        load_checkpoint(tmp_path)


def test_a_full_disk_names_the_file_and_leaves_the_last_checkpoint(tmp_path, run_script):
    pytest.importorskip("resource")
    assert "cannot write" in run_script(f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from experiments.tests.damaged_files import checkpoint
from experiments.tests.runs import small_experiment
from householder.cli.errors import UserError
from householder_experiments.training import Run

directory = Path({str(tmp_path)!r})
checkpoint(directory)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
try:
    Run(small_experiment(), "srnn", directory).train(lambda _: None, lambda: True)
except UserError as error:
    assert str(error).startswith(f"cannot write {{directory / 'checkpoint.pt'}}: "), error
    print(error)
""")
    assert load_checkpoint(tmp_path)["state"]["step"] == 2
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".pt"]


def _raise_hidden(refusal):
    """Raise as torch's writer does, which hides the refusal of the system in the context of its own error."""
    try:
        raise refusal
    except OSError:
        raise RuntimeError("unexpected pos 2944 vs 2838")  # noqa: B904


def test_a_writer_that_hides_a_full_disk_does_not_hide_it_from_the_user(tmp_path):
    (tmp_path / NAME).write_text("the last good one")
    with pytest.raises(UserError, match=r"cannot write .*checkpoint\.pt: No space left on device"):
        write_whole(tmp_path / NAME, lambda _: _raise_hidden(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(RuntimeError, match="unexpected pos"):  # the search of a library for a file of its own
        write_whole(tmp_path / NAME, lambda _: _raise_hidden(FileNotFoundError(errno.ENOENT, "none", "font.ttf")))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["the last good one"]


def test_what_is_added_to_a_full_disk_names_the_file(tmp_path, run_script):
    pytest.importorskip("resource")
    run_script(f"""
import resource
from pathlib import Path
from householder.cli.errors import UserError
from householder_experiments.files import appended

resource.setrlimit(resource.RLIMIT_FSIZE, (4, 4))
try:
    with appended(Path({str(tmp_path / "metrics.csv")!r})) as file:
        file.write(b"a long row")
except UserError as error:
    assert str(error) == {f"cannot write {tmp_path / 'metrics.csv'}: {os.strerror(errno.EFBIG)}"!r}, error
else:
    raise AssertionError
""")


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", [["train", "digits"], ["plot", "run"]])
def test_a_signal_at_the_start_ends_in_one_line(command, number, tmp_path):
    import subprocess

    # A shell starts commands in the background with the signal ignored.
    heard = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heard}\nimport sys, householder.cli\nprint('ready', flush=True)\n{COMMAND[-1]}"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
    process = subprocess.Popen([sys.executable, "-c", code, *command], start_new_session=True, **pipes)
    assert process.stdout.readline() == "ready\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)  # it imports torch
    os.killpg(process.pid, number)
    status, _, err = finish(process)
    saved = "; nothing was saved yet" if command[0] == "train" else ""
    assert (status, err) == (130, f"householder: interrupted{saved}\n")
    assert not list(tmp_path.iterdir())


def test_ctrl_c_in_a_run_says_how_to_go_on(tmp_path):
    run = claimed(tmp_path, {".": small_experiment()}, begun=True)
    with pytest.raises(KeyboardInterrupt, match=f"--resume {tmp_path} continues"), run:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("group", "settings", "message"),
    [
        (Group(99), {}, "--devices 99: there are 4 cores"),
        (Group(4), {"batch_size": 3}, "4 processes cannot share a batch of 3 sequences"),
        (Group(2, nodes=2), {"batch_size": 3}, "4 processes cannot share a batch of 3 sequences"),
        (Group(4), {"batch_size": 4}, None),
    ],
)
def test_no_more_processes_share_a_batch_than_can(group, settings, message, monkeypatch):
    monkeypatch.setattr("householder_experiments.checks.usable_cores", lambda: 4)
    experiment = Namespace(accelerator="cpu", batch_size=50)
    vars(experiment).update(settings)
    if message is None:
        check_group(group, experiment)
    else:
        with pytest.raises(UserError, match=message):
            check_group(group, experiment)
