"""Commands that are called in the test's own process start no server."""

import pytest


@pytest.fixture(autouse=True)
def _no_server(monkeypatch):
    monkeypatch.setattr("householder_experiments.commands.warm_up", lambda: None)
