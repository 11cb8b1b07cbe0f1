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

TYPES = {
    "list": (lambda: hj.apply([[1.0], [2.0]], H), "u is a list, expected a JAX or NumPy array"),
    "nothing": (lambda: hj.apply(None, H), "u is None, expected a JAX or NumPy array"),
    "integers": (lambda: hj.apply(F((4, 2), "int32"), H), "u has dtype int32, expected one of float32, float64"),
    "objects": (lambda: hj.apply(U, np.ones((3, 4), object)), "h of object does not make a JAX array: "),
    "strings": (lambda: hj.apply(np.array([["a"]]), H), "u of <U1 does not make a JAX array: "),
    "a masked array": (lambda: hj.apply(U, np.ma.masked_array(H)), "h is a numpy.MaskedArray, expected"),
    "an array as a slope": (lambda: hj.rnn(U, X, negative_slope=F(())), "expected a number"),
}


@pytest.mark.parametrize(("call", "message"), TYPES.values(), ids=TYPES)
def test_impossible_types_are_type_errors_of_one_line(call, message):
    with pytest.raises(TypeError, match=re.escape(message)) as refusal:
        call()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("compiled", [False, True])
def test_numbers_of_tokens_are_one_integer_a_sequence(compiled):
    tokens, betas = F((2, 4, 1, 2)), F((2, 4, 1))

    def commit(accepted):
        return hj.commit(F((2, 1, 2, 2)), tokens, tokens, beta=betas, accepted=accepted)

    commit = jax.jit(commit) if compiled else commit
    with pytest.raises(TypeError, match=r"accepted has dtype float32|accepted is 1[.]0, expected"):
        commit(F(2, "float32"))
    with pytest.raises(ValueError, match=r"accepted has shape \(1,\)|accepted is \[1\], expected"):
        commit(F(1, "int32"))


def test_double_precision_that_jax_does_not_have_is_refused():
    for rng in (0, jax.random.key(0)):
        with (
            jax.enable_x64(False),
            pytest.raises(TypeError, match="dtype is float64, which JAX has with"),
        ):
            hj.haar(3, rng=rng, dtype="float64")
