"""The examples in the docstrings of ``householder.torch`` do what they say, and none is missing."""

import doctest
import inspect
import sys

import pytest
import torch

import householder.torch as ht

PUBLIC = {name: getattr(ht, name) for name in ht.__all__}


@pytest.mark.parametrize("name", PUBLIC)
def test_examples(name):
    thing = PUBLIC[name]
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    torch.manual_seed(0)
    for test in finder.find(thing, name, module=sys.modules[thing.__module__], globs={}):
        runner.run(test)
    assert runner.summarize().failed == 0
    assert runner.tries > 0


@pytest.mark.parametrize("name", PUBLIC)
def test_parameters_and_shapes_are_described(name):
    thing = PUBLIC[name]
    described = inspect.getdoc(thing)
    assert "Raises\n------" in described
    assert "shape" in described.lower()
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            assert parameter.name in described


@pytest.mark.parametrize("name", [name for name, thing in PUBLIC.items() if inspect.isclass(thing)])
def test_every_public_method_says_what_it_does(name):
    for method, function in inspect.getmembers(PUBLIC[name], inspect.isfunction):
        if not method.startswith("_") and function.__module__.startswith("householder"):
            assert function.__doc__, method
