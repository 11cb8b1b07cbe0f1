"""Devices without kernels: every public function gives the results of the CPU there, by torch operations.

The tests are ``devices/functions.py``. Torch makes autograd's threads for the devices that it knows at the first
backward pass, so the device has to be there first.
"""

import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from tests.cases import child


def missing():
    """Why the device cannot be built here, or nothing."""
    if sys.platform != "linux" or shutil.which("g++") is None:
        return "the private device needs Linux and g++"
    headers = Path(torch.__file__).with_name("include") / "ATen"
    return "" if headers.exists() else "the private device needs torch's headers"


@pytest.mark.skipif(bool(missing()), reason=missing() or "-")
def test_functions_on_a_device_without_kernels():
    said = child.run("-p", "tests.devices.private_device", "tests/devices/functions.py")
    assert int(re.search(r"(\d+) passed", said).group(1)) > 80
