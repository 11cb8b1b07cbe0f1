"""Invalid input of ``householder.jax`` is refused in one line that names the argument and what was expected."""

import re

import numpy as np
import pytest

pytest.importorskip("jax", reason="needs jax")

import jax
import jax.numpy as jnp

import householder.jax as hj

F = jnp.ones
U, H, X = F((4, 2), "float32"), F((3, 4), "float32"), F((3, 2, 4), "float32")


def commit(accepted):
    """Commit drafts of four tokens of one sequence."""
    return hj.commit(F((1, 1, 2, 2)), F((1, 4, 1, 2)), F((1, 4, 1, 2)), beta=F((1, 4, 1)), accepted=accepted)


TYPES = {
    "list": (lambda: hj.apply([[1.0], [2.0]], H), "u is a list, expected a JAX or NumPy array"),
    "nothing": (lambda: hj.apply(None, H), "u is None, expected a JAX or NumPy array"),
    "integers": (lambda: hj.apply(F((4, 2), "int32"), H), "u has dtype int32, expected one of float32, float64"),
    "objects": (lambda: hj.apply(U, np.ones((3, 4), object)), "h of object does not make a JAX array: "),
    "strings": (lambda: hj.apply(np.array([["a"]]), H), "u of <U1 does not make a JAX array: "),
    "a masked array": (lambda: hj.apply(U, np.ma.masked_array(H)), "h is a numpy.MaskedArray, expected"),
    "half a token": (lambda: jax.jit(commit)(F(1)), "accepted has dtype float32, expected integers"),
    "double precision": (
        lambda: hj.haar(3, rng=0, dtype="float64"),
        "dtype is float64, which JAX has",
    ),
    "an array as a slope": (lambda: hj.rnn(U, X, negative_slope=F(())), "expected a number"),
}


@pytest.mark.parametrize(("call", "message"), TYPES.values(), ids=TYPES)
def test_impossible_types_are_type_errors_of_one_line(call, message):
    with pytest.raises(TypeError, match=re.escape(message)) as refusal:
        call()
    assert "\n" not in str(refusal.value)
