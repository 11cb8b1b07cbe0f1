"""``Reflections`` is a pytree: ``jax.jit``, ``jax.vmap``, ``jax.grad`` and solvers take it as an argument."""

import numpy as np
import pytest

pytest.importorskip("jax", reason="needs jax")

import jax
import jax.numpy as jnp

import householder.jax as hj
from tests.cases.jax import loss
from tests.cases.linear_maps import ARGUMENTS, N, calls, matrix
from tests.conftest import assert_close, randn
from tests.oracles.torch import exact

NAMES = ["real", "tau of full columns", "complex, phases", "many, phases of each"]
each = pytest.mark.parametrize("arguments", [ARGUMENTS[name] for name in NAMES], ids=NAMES)


def product(w, x):
    return x @ w.H + (w.T @ x.swapaxes(-1, -2)).swapaxes(-1, -2)


@each
def test_gradients_with_respect_to_the_object_are_those_of_its_arrays(arguments, rng):
    w = hj.Reflections(**calls(arguments, jnp.asarray))
    x = randn(rng, (*arguments["u"].shape[:-2], 4, N), arguments["u"].dtype)
    names = [name for name in arguments if name != "columns"]
    columns = arguments.get("columns", "trapezoidal")

    def explicit(x, *tensors):
        v = matrix(columns=columns, **dict(zip(names, tensors, strict=True)))
        return x @ v.mH + (v.mT @ x.mT).mT

    grads = jax.jit(jax.grad(lambda x, w: loss(product)(w, x), (0, 1)))(x, w)
    assert isinstance(grads[1], hj.Reflections)
    ours = [grads[0], *(getattr(grads[1], name) for name in names)]
    expected = exact(loss(explicit), np.ones(()), x, *(arguments[name] for name in names))[1]
    for a, b in zip(ours, expected, strict=True):
        assert_close(a, b.conj(), factor=1e4)


@each
def test_a_map_over_objects_is_a_loop(arguments, rng):
    u = arguments["u"]
    x = randn(rng, (*u.shape[:-2], 4, N), u.dtype)
    w = hj.Reflections(**calls(arguments, jnp.asarray))
    several = jax.tree.map(lambda a: jnp.stack([a, a[::-1]]), w)
    found = jax.vmap(product, (0, None))(several, x)
    for i in range(2):
        assert_close(found[i], product(jax.tree.map(lambda a, i=i: a[i], several), x))


def test_solvers_of_jax_take_its_product(rng):
    w, b = hj.Reflections(jnp.asarray(ARGUMENTS["real"]["u"])), randn(rng, N, "float64")
    x, _ = jax.scipy.sparse.linalg.gmres(lambda x: w @ x, b)
    assert_close(w @ x, b, factor=1e4)


def test_a_scan_carries_the_object(rng):
    w = hj.Reflections(jnp.asarray(ARGUMENTS["real"]["u"]))
    h = randn(rng, N, "float64")
    (_, last), _ = jax.lax.scan(lambda carry, _: ((carry[0], carry[0] @ carry[1]), None), (w, h), None, 3)
    assert_close(last, w @ (w @ (w @ h)))
