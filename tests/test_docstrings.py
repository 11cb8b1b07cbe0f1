"""The examples in the docstrings give the results shown, and every public name has one."""

import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import sys

import pytest

import householder

MODULES = ["householder"] + [
    f"householder.{module.name}" for module in pkgutil.iter_modules(householder.__path__) if not module.ispkg
]
PACKAGES = [name for name in ("torch", "jax") if importlib.util.find_spec(name)]
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
