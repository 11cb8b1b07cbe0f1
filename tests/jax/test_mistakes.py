"""Invalid input of ``householder.jax`` is refused in one line that names the argument and what was expected."""

import re

import numpy as np
import pytest

pytest.importorskip("jax", reason="needs jax")

import jax.numpy as jnp

import householder.jax as hj

F = jnp.ones
U, H, X = F((4, 2), "float32"), F((3, 4), "float32"), F((3, 2, 4), "float32")
Q, BETA = F((1, 3, 1, 2), "float32"), F((1, 3, 1), "float32")
C, PHASES = "complex64", F(4, "float32")

VALUES = {
    "u of one axis": (lambda: hj.apply(F(4, "float32"), H), "u has shape (4,), expected (..., n, m) with 1 <= m <= n"),
    "complex m = n": (lambda: hj.matrix(F((3, 3), C)), "expected m <= n - 1"),
    "h": (lambda: hj.apply(U, F((3, 5), "float32")), "h has shape (3, 5), expected (..., 4)"),
    "phases of a real u": (lambda: hj.apply(U, H, phases=PHASES), "phases are for complex u, but u has dtype float32"),
    "phases": (lambda: hj.matrix(F((4, 2), C), PHASES[:3]), "phases have shape (3,), expected (4,)"),
    "method": (lambda: hj.apply(U, H, method="fast"), "method is 'fast', expected one of 'auto', 'reflections'"),
    "u of a sequence": (lambda: hj.rnn(F((2, 4, 2), "float32"), X), "rnn takes one matrix: expected (n, m)"),
    "x": (lambda: hj.rnn(U, X[..., :3]), "x has shape (3, 2, 3), expected (T, B, d) or (T, d) with d = n = 4"),
    "h0": (lambda: hj.rnn(U, X, H), "h0 has shape (3, 4), expected (2, 4) or (4,)"),
    "input_weight": (lambda: hj.rnn(U, X, input_weight=H), "input_weight has shape (3, 4), expected (4, 4)"),
    "nonlinearity": (lambda: hj.rnn(U, X, nonlinearity="gelu"), "nonlinearity is 'gelu', expected one of"),
    "negative slope": (lambda: hj.rnn(U, X, negative_slope=-1), "negative_slope is -1, expected a finite number >= 0"),
    "k": (lambda: hj.delta_rule(Q, Q[:, :2], Q, beta=BETA), "k has shape (1, 2, 1, 2), expected (1, 3, 1, 2)"),
}

TYPES = {
    "list": (lambda: hj.apply([[1.0], [2.0]], H), "u is a list, expected a JAX or NumPy array"),
    "nothing": (lambda: hj.apply(None, H), "u is None, expected a JAX or NumPy array"),
    "integers": (lambda: hj.apply(F((4, 2), "int32"), H), "u has dtype int32, expected one of float32, float64"),
    "booleans": (lambda: hj.matrix(F((4, 2), bool)), "u has dtype bool, expected one of float32, float64"),
    "objects": (lambda: hj.apply(U, np.ones((3, 4), object)), "h of object does not make a JAX array: "),
    "strings": (lambda: hj.apply(np.array([["a"]]), H), "u of <U1 does not make a JAX array: "),
    "a masked array": (lambda: hj.apply(U, np.ma.masked_array(H)), "h of float32 does not make a JAX array: "),
    "another precision": (lambda: hj.apply(U, F((3, 4), C)), "h has dtype complex64, expected float32"),
    "integer phases": (lambda: hj.matrix(F((4, 2), C), F(4, "int32")), "phases have dtype int32, expected float32"),
    "a number as a flag": (lambda: hj.apply(U, H, transpose=1), "transpose is 1, expected True or False"),
    "a flag as a slope": (lambda: hj.rnn(U, X, negative_slope=True), "negative_slope is True, expected a number"),
    "a flag as a scale": (lambda: hj.delta_rule(Q, Q, Q, beta=BETA, scale=False), "scale is False, expected a number"),
    "an array as a slope": (lambda: hj.rnn(U, X, negative_slope=F(())), "expected a number"),
}


@pytest.mark.parametrize(("call", "message"), VALUES.values(), ids=VALUES)
def test_impossible_values_are_value_errors(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.parametrize(("call", "message"), TYPES.values(), ids=TYPES)
def test_impossible_types_are_type_errors_of_one_line(call, message):
    with pytest.raises(TypeError, match=re.escape(message)) as refusal:
        call()
    assert "\n" not in str(refusal.value)
