"""``householder`` as a process of its own, with all it starts."""

import os
import signal
import subprocess
import sys

COMMAND = [sys.executable, "-c", "import sys; from householder.experiments.cli import main; sys.exit(main())"]


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
