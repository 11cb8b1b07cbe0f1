"""The examples in the docstrings of ``householder.jax`` do what they say, and none is missing."""

import doctest
import inspect
import sys

import pytest

pytest.importorskip("jax", reason="needs jax")

import householder.jax as hj

PUBLIC = {name: getattr(hj, name) for name in hj.__all__}


@pytest.mark.parametrize("name", PUBLIC)
def test_examples(name):
    thing = PUBLIC[name]
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    for test in finder.find(thing, name, module=sys.modules[thing.__module__], globs={}):
        runner.run(test)
    assert runner.summarize().failed == 0
    assert runner.tries > 0


@pytest.mark.parametrize("name", PUBLIC)
def test_parameters_and_shapes_are_described(name):
    described = inspect.getdoc(PUBLIC[name])
    assert "Raises\n------" in described
    assert "shape" in described
    assert all(parameter in described for parameter in inspect.signature(PUBLIC[name]).parameters)


def test_all_is_sorted_and_complete():
    public = {name for name, value in vars(hj).items() if inspect.isfunction(value)}
    assert hj.__all__ == sorted(public)
