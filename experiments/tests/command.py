"""``householder`` as a process of its own with all it starts, or in this one, which has loaded torch already."""

import io
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout

import pytest

from householder import cli

posix = pytest.mark.skipif(os.name != "posix", reason="groups of processes and their signals are those of POSIX")
COMMAND = [sys.executable, "-c", "import sys; from householder.cli import main; sys.exit(main())"]


def start(*arguments):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*COMMAND, *map(str, arguments)], text=True, start_new_session=True, **pipes)


def finish(process):
    """Return the exit status and what was printed."""
    try:
        out, err = process.communicate(timeout=500)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, out, err


def output_of_process(*arguments):
    """Run the command to its end as a process, without an error; return what it printed."""
    status, out, err = finish(start(*arguments))
    assert (status, err) == (0, "")
    return out


def output_of(*arguments):
    """Run the command to its end, without an error; return what it printed."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = cli.main([str(argument) for argument in arguments])
    assert (status, err.getvalue()) == (0, "")
    return out.getvalue()


def wait_for(ready, process):
    """Wait until something is true, or the process ends before."""
    while not ready():
        assert process.poll() is None, finish(process)
        time.sleep(0.01)


def wait_for_end_of_group(group):
    """Wait until every process that was started with another has ended."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("processes are left")
