"""Invalid calls of the functions that NumPy, PyTorch and JAX share: each error names the argument and what was given.

A row of a record in ``tests/operations.py`` has an argument, a wrong value, and what else the call needs for it to be
the only mistake. The message has the name of the argument and, of an array, its shape where that is wrong, its dtype
where that is; of others, their value. Rows that say something else have a text of their own.
"""

import re

import jax
import numpy as np
import pytest
import torch

import householder as hh
import householder.jax as hj
from tests.operations import LIBRARIES, OPERATIONS

VALUES = {name: operation.values for name, operation in OPERATIONS.items()}
TYPES = {name: operation.types for name, operation in OPERATIONS.items()}


def rows(tables):
    return [
        pytest.param(library, name, mistake, id=f"{library}, {name}, {mistake.argument} {i}")
        for library in LIBRARIES
        for name, mistakes in tables.items()
        for i, mistake in enumerate(mistakes)
        if library not in mistake.without and name in LIBRARIES[library][0].__all__
    ]


def refused(library, name, mistake, error):
    """Call with the mistake; the message."""
    functions, convert = LIBRARIES[library]
    arguments = OPERATIONS[name].base | mistake.rest | {mistake.argument: mistake.value}
    if library == "jax":
        arguments |= {"rng": jax.random.key(0)} if arguments.get("rng") == 0 else {}
    if library == "torch" and isinstance(arguments.get("dtype"), str):
        arguments["dtype"] = getattr(torch, arguments["dtype"])
    with jax.enable_x64():
        converted = {key: convert(a) if isinstance(a, np.ndarray) else a for key, a in arguments.items()}
        with pytest.raises(error) as refusal:
            getattr(functions, name)(**converted)
    return str(refusal.value)


def check(message, mistake, told):
    assert re.search(rf"\b{mistake.argument}\b", message), message
    assert (told if mistake.says is None else mistake.says) in message, message
    assert "\n" not in message


@pytest.mark.parametrize(("library", "name", "mistake"), rows(VALUES))
def test_wrong_values_are_value_errors(library, name, mistake):
    value = mistake.value
    told = str(value.shape) if isinstance(value, np.ndarray) else repr(value)
    check(refused(library, name, mistake, ValueError), mistake, told)


@pytest.mark.parametrize(("library", "name", "mistake"), rows(TYPES))
def test_wrong_types_are_type_errors(library, name, mistake):
    value = mistake.value
    told = str(value.dtype) if isinstance(value, np.ndarray) else str(value)
    check(refused(library, name, mistake, TypeError), mistake, told)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", ["delta_rule", "linear_attention"])
def test_beta_and_g_are_named(library, name):
    functions, convert = LIBRARIES[library]
    with pytest.raises(TypeError, match="positional"):
        getattr(functions, name)(*map(convert, OPERATIONS["delta_rule"].base.values()))


@pytest.mark.parametrize("value", [[1.0], "text", 1, None, {}, object()], ids=lambda value: type(value).__name__)
def test_builtin_types_have_their_plain_names(value):
    arguments = OPERATIONS["apply"].base | {"h": value}
    for function in (hh.apply, hj.apply):
        with pytest.raises((TypeError, ValueError), match=r"\bh\b") as refusal:
            function(**arguments)
        assert "builtins" not in str(refusal.value)


def test_jax_draws_nothing_without_a_key():
    with pytest.raises(TypeError, match="rng is None, expected a key"):
        hj.haar(4)
