"""The real CuPy and its real compiler without a GPU: in processes of their own, whose driver is ``real_cupy``."""

import importlib.util
import re
import shutil
import sys

import pytest

from tests.cases import child


def missing():
    """Why this cannot run here, or nothing."""
    if sys.platform != "linux" or shutil.which("g++") is None:
        return "the driver without a device needs Linux and g++"
    return "" if importlib.util.find_spec("cupy") else "needs CuPy: pip install cupy-cuda13x"


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


def run(*arguments):
    """Run tests on the driver; cached code would have no names of kernels."""
    return child.run("-p", "tests.cuda.real_cupy.host_driver", *arguments, CUPY_CACHE_IN_MEMORY="1")


def test_faults():
    assert re.search(r"\d+ passed", run("tests/cuda/real_cupy/faults.py"))


CASES = ["apply", "apply many", "matrix", "rnn", "rnn packed", "rnn, oplu", "rnn, complex modrelu"]


def test_torch_and_arrays():
    module = "tests/cuda/test_launch_torch.py::"
    said = run(
        *(f"{module}test_results_and_gradients_are_those_of_the_cpu[{case}]" for case in CASES),
        f"{module}test_layers_train[tanh]",
        f"{module}test_kernels_read_and_write_half_types[{{'n': 64, 'm': 8, 'tiles': True}}-half0]",
        "tests/cuda/test_launch.py::test_tiles_compute_what_the_reference_does[dense, cluster-float32]",
        "tests/cuda/test_launch.py::test_packed_sequences_in_a_tile[batch-False-8]",
    )
    # NumPy's stream and torch's come first, after them that of the probe of clusters.
    counted = re.search(r"cupy (\d+)\.\d+\.\d+: (\d+) launches of (\d+) kernels, streams \[0, 42\b", said)
    version, launches, kernels = map(int, counted.groups())
    assert version >= 14
    assert launches > kernels > 15
