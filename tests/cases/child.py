"""Tests in a process of their own, because they replace something of which a process has only one."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*arguments, **environment):
    """Run pytest in a process of its own; what it says.

    Raises
    ------
    AssertionError
        A test failed.
    """
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": path, "PYTEST_ADDOPTS": "", **environment},  # one process, whose output we read
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
