"""The library and the experiments are two distributions of one version, and the command finds the second."""

import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import entry_points

import pytest

from tests.packaging.readme import ROOT

VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["workspace"]["package"]["version"]
EXPERIMENTS = ROOT / "experiments"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=EXPERIMENTS, check=True, capture_output=True)
    (file,) = folder.iterdir()
    with zipfile.ZipFile(file) as archive:
        yield archive


def test_the_experiments_have_the_version_of_the_library_and_ask_for_it(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
    assert metadata["Version"] == VERSION
    assert f"householder[torch]=={VERSION}" in metadata.get_all("Requires-Dist")


def test_the_wheel_has_the_package_its_settings_and_licences_and_nothing_else(wheel):
    names = wheel.namelist()
    info = f"householder_experiments-{VERSION}.dist-info"
    assert {name.split("/")[0] for name in names} == {"householder_experiments", info}
    package = EXPERIMENTS / "householder_experiments"
    files = {path.relative_to(EXPERIMENTS).as_posix() for path in package.rglob("*") if path.is_file()}
    assert {name for name in names if not name.startswith(info)} == {name for name in files if ".pyc" not in name}
    assert {"householder_experiments/py.typed", "householder_experiments/configs/digits.yaml"} <= set(names)
    assert {f"{info}/licenses/LICENSE-{name}" for name in ("MIT", "APACHE")} <= set(names)


@pytest.mark.parametrize("name", ["LICENSE-MIT", "LICENSE-APACHE"])
def test_both_have_the_same_licences(name):
    assert (EXPERIMENTS / name).read_bytes() == (ROOT / name).read_bytes()


def test_the_library_needs_nothing_of_the_experiments():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert "train" not in project["optional-dependencies"]
    imported = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "python/householder").rglob("*.py")
        if "householder_experiments" in path.read_text("utf-8")
    ]
    assert imported == []


def test_an_installation_of_both_has_one_command():
    pytest.importorskip("householder_experiments")
    points = entry_points(group="householder.commands")
    assert [point.value for point in points] == ["householder_experiments.commands:COMMANDS"]


def test_one_line_installs_both():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert "pip install . ./experiments\n" in readme
