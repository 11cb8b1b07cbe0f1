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


CASES = ["apply", "apply many", "matrix", "rnn", "rnn packed", "rnn, oplu", "rnn, complex modrelu"]


def test_torch_and_arrays():
    module = "test_cuda_launch_torch.py::"
    said = run(
        *(f"{module}test_results_and_gradients_are_those_of_the_cpu[{case}]" for case in CASES),
        f"{module}test_layers_train[tanh]",
        f"{module}test_kernels_read_and_write_half_types[{{'n': 64, 'm': 8, 'tiles': True}}-half0]",
        "test_cuda_launch.py::test_tiles_compute_what_the_reference_does[dense, cluster-float32]",
        "test_cuda_launch.py::test_packed_sequences_in_a_tile[batch-False-8]",
    )
    counted = re.search(r"cupy (\d+)\.\d+\.\d+: (\d+) launches of (\d+) kernels, streams \[0, 42\]", said)
    version, launches, kernels = map(int, counted.groups())
    assert version >= 14
    assert launches > kernels > 15
