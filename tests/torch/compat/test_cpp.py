"""A C++ program without Python runs a packaged network, as the page "Running it elsewhere" says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from householder._base import torch_library

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(torch_library.path() is None, reason="this system has no library without Python"),
    pytest.mark.skipif(sys.platform != "linux" or not shutil.which("g++"), reason="needs Linux and a C++ compiler"),
]

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/deployment.md").read_text("utf-8").partition("## In a C++ program\n")[2].partition("\n## ")[0]


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


@pytest.fixture
def served(folder, tmp_path):
    """Change a copy of the folder, then run the program on it; return how it ended, and its output."""

    def run(change):
        for name in ("network.pt2", "inputs.pt"):
            shutil.copy(folder / name, tmp_path / name)
        change(tmp_path)
        done = subprocess.run([folder / "serve", tmp_path], capture_output=True, text=True, timeout=60, check=False)
        output = tmp_path / "output"
        return done, output.read_bytes() if output.exists() else b""

    return run


def with_inputs(change):
    """Write other inputs than those that the package was compiled for."""

    def write(folder):
        (x,) = torch.load(folder / "inputs.pt")
        torch.save([change(x)], folder / "inputs.pt")

    return write


@pytest.mark.parametrize(
    "change",
    [lambda x: x[:10], lambda x: x.expand(50, 2, 1), lambda x: x.double(), lambda x: x[:, 0]],
    ids=["ten steps", "two sequences", "another type", "an axis less"],
)
def test_inputs_that_the_package_was_not_compiled_for_are_refused(served, change):
    done, output = served(with_inputs(change))
    assert (done.returncode, output) == (1, b"")
    assert re.search(r"^serve: .*expected: ", done.stderr, re.MULTILINE)  # the package writes its message, too


def test_inputs_may_be_views(folder, served):
    done, output = served(with_inputs(lambda x: torch.stack([x, -x], -1)[..., 0]))
    assert done.returncode == 0, done.stderr
    assert output == (folder / "expected").read_bytes()


@pytest.mark.parametrize("name", ["network.pt2", "inputs.pt"])
@pytest.mark.parametrize("share", [None, 0.0, 0.3, 0.99], ids=["missing", "empty", "a third", "almost whole"])
def test_files_that_are_missing_or_cut_end_the_program_with_a_message(served, name, share):
    def cut(folder):
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        if share is not None:
            (folder / name).write_bytes(content[: int(share * len(content))])

    done, output = served(cut)
    assert (done.returncode, output) == (1, b"")
    assert re.search(r"^serve: (cannot read|.* zip archive: )", done.stderr)


def test_the_program_asks_for_a_folder(folder):
    done = subprocess.run([folder / "serve"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "serve: expected the name of a folder\n")


def test_the_page_shows_lines_of_the_program():
    program = (ROOT / "examples/cpp/serve.cpp").read_text("utf-8")
    (shown,) = re.findall(r"```cpp\n(.*?)```", PAGE, re.DOTALL)
    places = [program.find(line) for line in shown.splitlines() if line]
    assert -1 not in places
