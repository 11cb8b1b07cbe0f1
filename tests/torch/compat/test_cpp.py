"""A C++ program without Python runs a packaged network, as the page "From Python to C++" says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from householder import _torch_library

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(_torch_library.path() is None, reason="this system has no library without Python"),
    pytest.mark.skipif(sys.platform != "linux" or not shutil.which("g++"), reason="needs Linux and a C++ compiler"),
]

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/from-python-to-cpp.md").read_text("utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which the page's commands have run."""
    folder = tmp_path_factory.mktemp("served")
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    commands = commands.replace("served", str(folder)).replace("python ", f"{sys.executable} ")
    commands = commands.replace("householder info", f"{sys.executable} -m householder info")
    done = subprocess.run(
        ["bash", "-euxc", commands], cwd=ROOT, capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(re.search(r"^([\d.]+) us a call$", done.stdout, re.MULTILINE)[1]) < 1e5
    return folder


def test_its_results_have_the_bits_of_python(folder):
    expected = (folder / "expected").read_bytes()
    assert len(expected) == 200
    assert (folder / "output").read_bytes() == expected


def test_there_is_no_python_in_the_program(folder):
    needed = subprocess.run(["ldd", folder / "serve"], capture_output=True, text=True, check=True).stdout
    assert "libhouseholder_torch.so" in needed
    assert "libtorch_cpu.so" in needed
    assert "python" not in re.sub(r"=>.*", "", needed)


def test_the_page_shows_the_program():
    program = (ROOT / "examples/cpp/serve.cpp").read_text("utf-8")
    assert program in PAGE
