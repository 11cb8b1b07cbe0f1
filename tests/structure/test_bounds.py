"""Bounds of values: Python's checks refuse what the Rust core refuses, as the table ``tests/bounds.txt`` says.

``tests/core/bounds.rs`` calls the core with the same table.
"""

import inspect
from pathlib import Path

import numpy as np
import pytest

import householder as hh
from householder._base import validate

TABLE = Path(__file__).parents[1] / "bounds.txt"
ROWS = [
    [column.strip() for column in row.split("|")]
    for row in TABLE.read_text("utf-8").splitlines()
    if not row.startswith("#")
]
REFUSED = [(bound, value) for bound, refused, _ in ROWS for value in refused.split()]
ACCEPTED = [(bound, value) for bound, _, accepted in ROWS for value in accepted.split()]

CHECKS = {
    "reflections": {"reflections", "full"},
    "phases": {"phases"},
    "takes_phases": {"phases"},
    "slope": {"slope"},
    "moduli": {"state"},
    "bias_length": {"state", "bias_length"},
    "one_of": {"method"},
    "batch_sizes": {"batch_sizes"},
    "direction": {"reverse"},
    "delta_sizes": {"delta_sizes"},
    "delta_offsets": {"offsets"},
    "ends_of_sequences": {"offsets"},
    "integer": {"factor", "threads"},
}
"""The rows of each check."""
WITHOUT_BOUNDS = {
    # Rules of the shapes of arrays: the core has the lengths of slices.
    *("one_matrix", "single", "vectors", "shape", "optional", "tau", "matrix_phases", "all_of_columns", "one_row"),
    # Rules of Python's types.
    *("flag", "number", "scale", "seed", "kind_of", "no_mask"),
    # The core computes the tokens that it is given.
    *("states_at", "accepted"),
    # The core computes with both, and with every form of columns.
    *("not_both", "is_default"),
}


def dtype_of(kind):
    return {"real": np.float64, "complex": np.complex128}[kind]


def reflections(value, columns="trapezoidal"):
    kind, n, m = value.split(",")
    hh.matrix(hh.Reflections(np.ones((int(n), int(m)), dtype_of(kind)), columns=columns))


def phases(value):
    kind, length = value.split(",")
    hh.matrix(hh.Reflections(np.ones((3, 1), dtype_of(kind)), phases=np.zeros(int(length))))


def factor(value):
    kind, n, m = value.split(",")
    hh.factor(np.eye(int(n), dtype=dtype_of(kind)), int(m))


def rnn(n=4, dtype=np.float64, rows=(3, 1), **options):
    hh.rnn(np.ones((n, 1), dtype), np.ones((*rows, n), dtype), **options)


def state(value):
    kind, name, n, *length = value.split(",")
    phi, is_complex = hh._base.spec.NONLINEARITIES[name], kind == "complex"
    moduli = int(length[0]) if length else phi.moduli(int(n), is_complex)
    bias = np.zeros(moduli) if phi.has_bias else None
    rnn(int(n), dtype_of(kind), nonlinearity=name, nonlinearity_bias=bias)


def batch_sizes(value, **options):
    sizes = [int(size) for size in value.split(",")]
    rnn(rows=(max(sum(sizes), 0),), batch_sizes=sizes, **options)


def delta_rule(heads, value_heads, keys, values, reflections, cu_seqlens=None):
    q = np.ones((1, 4, heads, keys))
    k, v = (np.ones((1, 4 * reflections, *shape)) for shape in ((heads, keys), (value_heads, values)))
    beta = np.ones((1, 4 * reflections, value_heads))
    hh.delta_rule(q, k, v, beta=beta, num_householder=reflections, cu_seqlens=cu_seqlens)


def integers(value):
    return [int(size) for size in value.split(",")]


def threads(value):
    before = hh.get_num_threads()
    try:
        hh.set_num_threads(int(value))
    finally:
        hh.set_num_threads(before)


CALLS = {
    "reflections": reflections,
    "full": lambda value: reflections(value, "full"),
    "phases": phases,
    "factor": factor,
    "slope": lambda value: rnn(nonlinearity="leaky_relu", negative_slope=float(value)),
    "state": state,
    "bias_length": state,
    "method": lambda value: rnn(method=value),
    "batch_sizes": batch_sizes,
    "reverse": lambda value: batch_sizes(value, reverse=True),
    "delta_sizes": lambda value: delta_rule(*integers(value)),
    "offsets": lambda value: delta_rule(1, 1, 2, 2, 1, integers(value)),
    "threads": threads,
}


@pytest.mark.parametrize(("bound", "value"), REFUSED)
def test_python_refuses_what_the_core_refuses(bound, value):
    with pytest.raises(ValueError, match=r"expected|are for complex u|acts on|leave one of them out"):
        CALLS[bound](value)


@pytest.mark.parametrize(("bound", "value"), ACCEPTED)
def test_python_accepts_what_the_core_accepts(bound, value):
    CALLS[bound](value)


def test_the_table_has_every_check_of_values():
    checks = {
        name
        for name, check in inspect.getmembers(validate, inspect.isfunction)
        if check.__module__ == validate.__name__ and not name.startswith("_")
    }
    assert checks == set(CHECKS) | WITHOUT_BOUNDS
    assert set.union(*CHECKS.values()) == set(CALLS) == {bound for bound, *_ in ROWS}
    calls = (Path(__file__).parents[1] / "core/bounds.rs").read_text("utf-8")
    assert [bound for bound in CALLS if f'"{bound}"' not in calls] == []
