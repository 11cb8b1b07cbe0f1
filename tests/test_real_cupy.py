"""The real CuPy and its real compiler without a GPU: in processes of their own, whose driver is ``real_cupy``."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def missing():
    """Why this cannot run here, or nothing."""
    if sys.platform != "linux" or shutil.which("g++") is None:
        return "the driver without a device needs Linux and g++"
    return "" if importlib.util.find_spec("cupy") else "needs CuPy: pip install cupy-cuda13x"


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


def run(*arguments):
    """Run tests on the driver; what pytest says."""
    path = os.pathsep.join([str(HERE / "real_cupy"), *sys.path[1:]])
    environment = os.environ | {"PYTHONPATH": path, "CUPY_CACHE_IN_MEMORY": "1"}  # cached code has no names
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "host_driver", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, env=environment, cwd=HERE, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_faults():
    assert re.search(r"\d+ passed", run("real_cupy/faults.py"))


def test_torch_and_arrays():
    said = run(
        "test_cuda_launch_torch.py",
        "test_cuda_launch.py",
        "-k",
        "results_and_gradients or layers_train or (tiles_compute and float32) or packed_sequences_in_a_tile",
    )
    version, launches, kernels = map(
        int, re.search(r"cupy (\d+)\.\d+\.\d+: (\d+) launches of (\d+) kernels, streams \[0, 42\]", said).groups()
    )
    assert version >= 14
    assert launches > kernels > 30
