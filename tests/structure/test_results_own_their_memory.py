"""No two results of a call, nor a result and an argument, share memory: a caller may change any of them in place."""

from itertools import combinations, product

import numpy as np
import pytest

import householder as hh

pytest.importorskip("jax", reason="needs jax")
import jax

from tests.operations import ATTENTION, DELTA, FUNCTIONS, LIBRARIES, OPERATIONS, C, F, U, X

NO_STEPS = {name: F((1, 0, 2, 4)) for name in ("q", "k", "v")} | {"initial_state": F((1, 2, 4, 4))}
LAST = {"output_final_state": True}
IDENTITY = {"u": U, "x": X, "nonlinearity": "identity"}
FURTHER = {
    "apply": [{"u": U, "h": F((0, 4))}, {"u": np.zeros((4, 2)), "h": F(4)}],
    "delta_rule": [NO_STEPS | LAST | {"beta": F((1, 0, 2))}, DELTA | LAST],
    "forward_tape": [{"u": U, "h": F(4)}],
    "frame": [{"u": np.eye(4)}],
    "linear_attention": [NO_STEPS | LAST, ATTENTION | LAST],
    "matrix": [{"u": np.eye(4)}],
    "nearest": [{"a": np.eye(4)}],
    "real_form": [{"w": F((0, 2), C), "axis": 0}],
    "rnn": [
        IDENTITY,
        {"u": U, "x": F((0, 3, 4)), "h0": F((3, 4))},
        {"u": U, "x": F((0, 4)), "h0": F(4)},
        {"u": U, "x": F((1, 4)), "nonlinearity": "identity"},
    ],
    "snap": [{"u": np.eye(4)}],
}
"""Calls that have nothing, or little, to compute."""
FURTHER |= {f"{name}_vjp": FURTHER[name] for name in ("rnn", "delta_rule", "linear_attention")}
FURTHER |= {"forward": FURTHER["apply"]}


def arrays(result):
    """All arrays of a result, as NumPy sees their memory."""
    if isinstance(result, tuple):
        return [a for part in result for a in arrays(part)]
    return [np.asarray(result)] if hasattr(result, "dtype") else []


def apart(results, arguments):
    pairs = [*combinations(results, 2), *product(results, arguments)]
    assert not [(a.shape, b.shape) for a, b in pairs if np.shares_memory(a, b)]


@pytest.mark.parametrize(("library", "name"), FUNCTIONS)
def test_results_share_memory_with_nothing(library, name):
    module, convert = LIBRARIES[library]
    for call in [*OPERATIONS[name].calls, *FURTHER.get(name, [])]:
        with jax.enable_x64():
            arguments = {key: convert(a) if isinstance(a, np.ndarray) else a for key, a in call.items()}
            results = getattr(module, name)(**arguments)
            given = arrays(tuple(arguments.values()))
            apart(arrays(results), given)
        if name.endswith("_vjp"):
            (first, second), vjp = results
            second_name = "grad_last" if name == "rnn_vjp" else "grad_final_state"
            gradients = [None if a is None else np.ones_like(a) for a in (first, second)]
            found = arrays(vjp(gradients[0], **{second_name: gradients[1]}))
            apart(found, [*given, *arrays((first, second, *gradients))])


def test_steps_share_memory_with_nothing():
    for cell, h, x in ((hh.Recurrence(U), F((3, 4)), F((3, 4))), (hh.Recurrence(U), F((0, 4)), F((0, 4)))):
        apart([cell.step(h, x)], [h, x])
