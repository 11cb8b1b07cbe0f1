"""No function takes a masked array, in whatever argument: its mask would be dropped.

Every parameter of every public function is tried. A function without calls in ``tests/operations.py`` fails.
"""

import inspect

import numpy as np
import pytest

import householder as hh

pytest.importorskip("jax", reason="needs jax")
import jax

from tests.operations import DELTA, FUNCTIONS, LIBRARIES, OPERATIONS, H, U, X

RESULTS = {
    "step of a recurrence": (hh.Recurrence(U).step, {"h": H[0], "x": H[1]}),
    "gradients of a recurrence": (hh.rnn_vjp(U, X)[1], {"grad_h": X, "grad_last": X[0]}),
    "gradients of the delta rule": (
        hh.delta_rule_vjp(**DELTA)[1],
        {"grad_o": np.ones((1, 3, 2, 4)), "grad_final_state": np.ones((2, 2, 4, 4))},
    ),
}


def refuses(function, arguments, name):
    """A masked array in the place of an argument, whether or not anything is masked, is refused by its name."""
    for mask in (False, True):
        masked = np.ma.masked_array(arguments.get(name, 1), mask=mask)
        with pytest.raises((TypeError, ValueError), match=rf"\b{name}\b"):
            function(**arguments | {name: masked})


@pytest.mark.parametrize(("library", "name"), FUNCTIONS)
def test_no_argument_may_be_a_masked_array(library, name):
    module, convert = LIBRARIES[library]
    function, left = getattr(module, name), set(inspect.signature(getattr(module, name)).parameters)
    with jax.enable_x64():
        for call in OPERATIONS[name].calls:
            arguments = {key: convert(a) if isinstance(a, np.ndarray) else a for key, a in call.items()}
            function(**arguments)
            for argument in left & set(arguments):
                refuses(function, arguments, argument)
            left -= set(arguments)
        for argument in left:  # numbers, flags and names
            refuses(function, arguments, argument)


@pytest.mark.parametrize("name", RESULTS)
def test_no_argument_of_what_a_function_returns_may_be_a_masked_array(name):
    function, arguments = RESULTS[name]
    function(**arguments)
    for argument in arguments:
        refuses(function, arguments, argument)


@pytest.mark.parametrize("rows", [list, tuple])
def test_no_list_may_contain_a_masked_array(rows):
    masked = np.ma.masked_array(H, mask=True)
    for h in (rows(masked), rows([rows(row) for row in H[:2]] + [rows(masked[2])]), rows([masked[0, 0]] * 4)):
        with pytest.raises(TypeError, match=r"h contains a numpy\.MaskedArray"):
            hh.apply(U, h)
    with pytest.raises(TypeError, match=r"cu_seqlens contains a numpy\.MaskedArray"):
        hh.delta_rule(**DELTA | {"cu_seqlens": rows([0, np.ma.masked, 3])})
