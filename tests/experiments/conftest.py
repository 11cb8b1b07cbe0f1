"""The command, called in this process."""

import pytest

from householder import cli


@pytest.fixture
def call(monkeypatch, capsys):
    """Call the command in this process; return its exit status and what it printed."""
    monkeypatch.setattr("householder.experiments.processes.warm_up", lambda: None)

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
