"""Wherever its output goes, the command ends in what it should say, or in one line."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "householder"]
NO_SPACE = "householder: cannot write standard output: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["info"], ["--help"], ["bench", "--help"], []])
def test_full_standard_output_is_one_line(arguments, unbuffered):
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as device:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=device, stderr=subprocess.PIPE, text=True, env=environment, check=False
        )
    assert (done.returncode, done.stderr) == (2, NO_SPACE)


@pytest.mark.skipif(os.name != "posix", reason="needs a shell of POSIX")
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("arguments", "status"), [(["info"], 0), (["--help"], 0), (["bench", "--threads", "0"], 2)])
def test_closed_standard_streams_change_nothing_else(arguments, status, closed):
    command = ["sh", "-c", f'"$@" {closed}', "sh", *COMMAND, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.count("\n") == (1 if status and "2" not in closed else 0)


@pytest.mark.skipif(not hasattr(os, "posix_spawn"), reason="needs pipes as POSIX has them")
def test_a_closed_pipe_ends_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, "info"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("encoding", ["ascii:strict", "cp1252:strict"])
def test_a_character_that_the_encoding_lacks_is_escaped(encoding, run_script):
    code = f"""
import os, subprocess, sys
code = "import sys, householder.cli as c; from householder.cli import info; "
code += "info.describe = lambda: {{'processor': '\\u6570'}}; sys.exit(c.main(['info']))"
environment = os.environ | {{"PYTHONIOENCODING": {encoding!r}}}
print(subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=True).stdout)
"""
    assert r"processor  \\u6570" in run_script(code)


def test_a_termination_is_answered_as_an_interrupt(monkeypatch, capsys):
    if os.name != "posix":
        pytest.skip("needs signals of POSIX")
    from householder import cli
    from householder.cli import info

    monkeypatch.setattr(info, "describe", lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert cli.main(["info"]) == 130
    assert capsys.readouterr().err == "householder: interrupted\n"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
