"""The examples in the docstrings give the results shown, and every public name has one."""

import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys

import pytest

import householder
from householder._functions.delta import DeltaVjp
from householder._functions.sequence import SequenceVjp

MODULES = ["householder"] + [
    f"householder.{module.name}" for module in pkgutil.iter_modules(householder.__path__) if not module.ispkg
]
PACKAGES = [
    name for name in ("torch", "torch.parametrizations", "jax") if importlib.util.find_spec(name.partition(".")[0])
]
PUBLIC = {
    f"{package}.{name}": getattr(module, name)
    for package in PACKAGES
    for module in [importlib.import_module(f"householder.{package}")]
    for name in module.__all__
}


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_modules(name):
    threads = householder.get_num_threads()
    results = doctest.testmod(importlib.import_module(name))
    householder.set_num_threads(threads)
    assert results.failed == 0


@pytest.mark.parametrize("name", PUBLIC)
def test_examples(name):
    thing = PUBLIC[name]
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    if name.startswith("torch"):
        importlib.import_module("torch").manual_seed(0)
    for test in finder.find(thing, name, module=sys.modules[thing.__module__], globs={}):
        runner.run(test)
    assert runner.summarize().failed == 0
    assert runner.tries > 0


@pytest.mark.parametrize("name", PUBLIC)
def test_parameters_and_shapes_are_described(name):
    described = inspect.getdoc(PUBLIC[name])
    assert "Raises\n------" in described
    assert "shape" in described.lower()
    for parameter in inspect.signature(PUBLIC[name]).parameters.values():
        if parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            assert parameter.name in described


@pytest.mark.parametrize("name", [name for name, thing in PUBLIC.items() if inspect.isclass(thing)])
def test_every_public_method_says_what_it_does(name):
    for method, function in inspect.getmembers(PUBLIC[name], inspect.isfunction):
        if not method.startswith("_") and function.__module__.startswith("householder"):
            assert function.__doc__, method


DESCRIBED = {f"householder.{name}": getattr(householder, name) for name in householder.__all__} | PUBLIC
DESCRIBED |= {
    f"{name}.{method}": function
    for name, thing in [*DESCRIBED.items(), ("SequenceVjp", SequenceVjp), ("DeltaVjp", DeltaVjp)]
    if inspect.isclass(thing)
    for method, function in inspect.getmembers(thing, inspect.isfunction)
    if function.__module__.startswith("householder") and "Parameters\n" in (inspect.getdoc(function) or "")
}


def parameter_entries(thing):
    """The entries of a docstring's section of parameters: names, and what is written of their type."""
    described = inspect.getdoc(thing) or ""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n-{3,}$|\Z)", described, re.MULTILINE | re.DOTALL)
    for line in section[1].splitlines() if section else ():
        if line and not line.startswith(" "):
            names, _, kind = line.partition(" : ")
            yield [name.strip(" *") for name in names.split(",")], kind
