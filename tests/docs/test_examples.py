"""The examples run, without a warning, and print what they show."""

import subprocess
import sys
from pathlib import Path

import pytest

QUICK = ("numpy_quickstart", "train_your_own")
EXAMPLES = [
    pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else [pytest.mark.long])
    for path in sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_it_runs(example):
    if example.stem.startswith("jax"):
        pytest.importorskip("jax", reason="needs jax")
    command = [sys.executable, "-W", "error", example]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout
