"""What the tests of both distributions share: which of them run, and the command and scripts in processes."""

import os
import re
import subprocess
import sys
import textwrap
from functools import cache
from importlib.util import find_spec
from itertools import combinations

import pytest

# Read as torch and NumPy are loaded: where processes share cores, threads that spin while they wait take others' time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from householder import _cuda, cli


@cache
def missing_gpu():
    """What the tests of a GPU lack, or None."""
    found = _cuda.describe()["CUDA"]
    if found != "available":
        return f"CUDA is {found}"
    if find_spec("torch") is None:
        return "torch is not installed"
    import torch

    return None if torch.cuda.is_available() else "torch finds no CUDA device"


def pytest_report_header(config):
    left_out = ["long tests, which -m long runs"] if config.option.markexpr == "not long" else []
    left_out += [f"tests of a GPU, because {missing_gpu()}"] if missing_gpu() else []
    return f"left out: {'; '.join(left_out) or 'nothing'}"


def values(item):
    """Return what a combination of parameters consists of: a row of each table of the test, a value of each fixture."""
    left = {name: id(value) for name, value in item.callspec.params.items()}
    tables = [re.findall(r"\w+", str(mark.args[0])) for mark in item.iter_markers("parametrize")]
    rows = [tuple((name, left.pop(name)) for name in names if name in left) for names in tables]
    return sorted([row for row in rows if row] + [(value,) for value in left.items()])


def mark_further_combinations_long(items):
    """Leave every pair of values of a test in the short set, by few combinations; of slow combinations, every value."""
    tests = {}
    for item in items:
        shown = values(item)
        if not item.get_closest_marker("slow_combinations"):
            shown = [*combinations(shown, 2), *shown]
        tests.setdefault((item.parent.nodeid, item.originalname), []).append((item, set(shown)))
    for candidates in tests.values():
        unseen = set().union(*(shown for _, shown in candidates))
        while unseen:
            chosen = max(candidates, key=lambda candidate: len(candidate[1] & unseen))  # the first of equals
            candidates.remove(chosen)
            unseen -= chosen[1]
        for item, _ in candidates:
            item.add_marker("long")


@pytest.hookimpl(tryfirst=True)  # before those that are not asked for are left out
def pytest_collection_modifyitems(config, items):
    mark_further_combinations_long([item for item in items if hasattr(item, "callspec")])
    if missing_gpu():
        of_gpu = [item for item in items if item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=of_gpu)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


@pytest.fixture
def call(capsys):
    """Call the command in this process; return its exit status and what it printed."""

    def run(*arguments):
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as exit_:
            status = exit_.code
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def refusal(call):
    """Call the command with a mistake, which it answers in one line; return that line."""

    def run(*arguments):
        status, out, err = call(*arguments)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("householder")
        return err

    return run


@pytest.fixture
def run_script():
    """Run Python source in a process of its own and return what it printed."""

    def run(source, *, timeout=120):
        command = [sys.executable, "-c", textwrap.dedent(source)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run
