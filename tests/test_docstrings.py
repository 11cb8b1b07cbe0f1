"""The examples in the docstrings do what they say."""

import doctest
import importlib
import pkgutil

import pytest

import householder

MODULES = ["householder"] + [
    f"householder.{module.name}" for module in pkgutil.iter_modules(householder.__path__) if not module.ispkg
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    threads = householder.get_num_threads()
    results = doctest.testmod(importlib.import_module(name))
    householder.set_num_threads(threads)
    assert results.failed == 0
