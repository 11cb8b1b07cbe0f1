"""The command's own subcommands, and those that other distributions add."""

import sys
from importlib.metadata import EntryPoint

import pytest

from householder import cli
from householder.cli import entry
from householder.cli.command import Command


@pytest.fixture
def added(monkeypatch):
    """Return a function that lets entry points name these objects."""

    def add(**values):
        for name, value in values.items():
            monkeypatch.setattr(entry, name, value, raising=False)
        points = [EntryPoint(name, f"householder.cli.entry:{name}", entry.GROUP) for name in values]
        monkeypatch.setattr(entry, "entry_points", lambda *, group: points if group == entry.GROUP else [])

    return add


def test_another_distribution_adds_commands(added, call):
    dance = Command("dance", "move about", lambda parser: parser.add_argument("--far", type=int), lambda o: o.far)
    added(DANCES=(dance,))
    assert call("dance", "--far", "3")[0] == 3
    assert "move about" in call("--help")[1]
    assert call() == call("--help")
    assert "did you mean 'dance'?" in call("danse")[2]


@pytest.mark.parametrize("name", entry.OF_EXPERIMENTS)
def test_a_command_of_the_experiments_says_what_to_install(name, added, refusal):
    added()
    error = refusal(name, "digits")
    assert error.startswith(f"householder: {name} is a command of householder-experiments, which is not installed")
    assert "pip install ./experiments" in error


def test_these_are_the_commands_of_the_experiments():
    commands = pytest.importorskip("householder_experiments.commands")
    assert [command.name for command in commands.COMMANDS] == list(entry.OF_EXPERIMENTS)


def test_its_own_commands_load_no_others(monkeypatch, capsys):
    monkeypatch.setattr(entry, "entry_points", lambda **_: 1 / 0)
    assert cli.main(["info"]) == 0
    assert "householder" in capsys.readouterr().out


def test_help_needs_no_heavy_library(run_script):
    code = """
import sys
from householder.cli import main
try:
    main(["--help"])
except SystemExit:
    print({"lightning_fabric", "pydantic", "torch", "matplotlib"} & set(sys.modules))
"""
    assert run_script(code).endswith("set()\n")


def test_the_package_is_a_program(run_script):
    code = f"import subprocess; subprocess.run([{sys.executable!r}, '-m', 'householder', '--version'], check=True)"
    assert run_script(code).startswith("householder ")
