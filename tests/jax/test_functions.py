"""``householder.jax`` computes what explicit reflections compute, and so do its derivatives of every kind."""

import inspect
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

import householder as hh
from householder._base import spec
from tests.conftest import (
    DOUBLES,
    METHODS,
    NONLINEARITIES,
    assert_close,
    each_nonlinearity,
    of_arrays,
    problem,
    randn,
    real_of,
)

pytest.importorskip("jax", reason="needs jax")

import jax
import torch

import householder.jax as hj
from householder.jax import _expressions
from tests.cases.jax import CASES, directions, loss
from tests.oracles.torch import exact

delta_expression = jax.jit(_expressions.delta_rule, static_argnums=(7, 8, 9))
"""The expression as one program: each of its operations by itself takes several times as long to compile."""
EVERY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def assert_all_close(actual, expected, factor=1e4):
    actual, expected = jax.tree.leaves(actual), jax.tree.leaves(expected)
    for a, b in zip(actual, expected, strict=True):
        assert_close(a, b, factor=factor)


def some(*names):
    return pytest.mark.parametrize("case", [CASES[name] for name in names], ids=names)


def compiled(*functions):
    """Several functions of the same arguments as one program."""
    return jax.jit(lambda *arguments: [function(*arguments) for function in functions])


def gradients_by_torch(function, arguments):
    """Gradients of a real number; JAX's are ``dL/dRe - i dL/dIm``."""
    return [grad.conj() for grad in exact(function, np.ones(()), *arguments)[1]]


@EVERY_CASE
def test_values_and_gradients_are_those_of_explicit_reflections(case):
    every = tuple(range(len(case.arguments)))
    value, grads = compiled(case.ours, jax.grad(loss(case.ours), every))(*case.arguments)
    assert_all_close(value, case.explicit(*map(torch.from_numpy, case.arguments)))
    assert_all_close(grads, gradients_by_torch(loss(case.explicit), case.arguments))


@some("apply, complex", "apply, tau", "rnn, oplu")
def test_tangents_and_second_derivatives_are_those_of_explicit_reflections(case):
    every, along = tuple(range(len(case.arguments))), directions(case.arguments)

    def tangent(*arguments):
        return jax.jvp(case.ours, arguments, along)[1]

    def slope(*arguments):
        grads = jax.grad(loss(case.ours), every)(*arguments)
        return sum((d * g).real.sum() for d, g in zip(along, grads, strict=True))

    def slope_by_torch(*arguments):
        grads = torch.autograd.grad(loss(case.explicit)(*arguments), arguments, create_graph=True)
        return sum((torch.from_numpy(d) * g.conj()).real.sum() for d, g in zip(along, grads, strict=True))

    tangents, second = compiled(tangent, jax.grad(slope, every))(*case.arguments)
    expected = torch.func.jvp(case.explicit, *(tuple(map(torch.from_numpy, a)) for a in (case.arguments, along)))[1]
    assert_all_close(tangents, expected)
    assert_all_close(second, gradients_by_torch(slope_by_torch, case.arguments))


@pytest.mark.slow_combinations
@some("apply, complex", "apply, tau", "matrix, complex", "rnn, oplu", "rnn, tau", "delta rule")
@pytest.mark.parametrize("mapped", ["all", "vectors", "parameters"])
def test_mapped_calls_are_calls_one_after_the_other(case, mapped):
    every = tuple(range(len(case.arguments)))
    at = {"all": every, "vectors": (1 % len(every),), "parameters": (0,)}[mapped]
    axes = tuple(0 if i in at else None for i in every)
    two = [np.stack([a, 0.5 * a[::-1]]) if i in at else a for i, a in enumerate(case.arguments)]
    scalar = loss(case.ours)
    values, each, total = compiled(
        jax.vmap(case.ours, axes),
        jax.vmap(jax.grad(scalar, every), axes),
        jax.grad(lambda *a: jax.vmap(scalar, axes)(*a).sum(), every),
    )(*two)
    one = compiled(case.ours, jax.grad(scalar, every))
    calls = [one(*(a[i] if axis == 0 else a for a, axis in zip(two, axes, strict=True))) for i in range(2)]
    expected, grads = jax.tree.map(lambda *a: np.stack(a), *calls)
    assert_all_close(values, expected)
    assert_all_close(each, grads)
    assert_all_close(total, [g if axis == 0 else g.sum(0) for g, axis in zip(grads, axes, strict=True)])


@pytest.mark.parametrize("shape", [(2, 2, 1), (33, 33, 3), (130, 8, 70)])
def test_applications_have_the_bits_of_numpys(shape, dtype):
    u, h, g, _ = problem(*shape, dtype)
    c, pull = jax.vjp(hj.apply, u, h)
    assert np.array_equal(c, hh.forward(u, h))
    # JAX's gradients are dL/dRe - i dL/dIm.
    for ours, theirs in zip(pull(g.conj()), hh.backward(u, h, g), strict=True):
        assert np.array_equal(np.conj(ours), theirs)
    assert np.array_equal(hj.matrix(u), hh.matrix(u))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_the_bits_of_numpys(method, dtype):
    u, h, g, _ = problem(40, 20, 30, dtype)
    for transpose in (False, True):
        options = {"method": method, "transpose": transpose}
        c, pull = jax.vjp(partial(of_arrays(hj.apply), **options), u, h)
        assert np.array_equal(c, of_arrays(hh.forward)(u, h, **options))
        for ours, theirs in zip(pull(g.conj()), of_arrays(hh.backward)(u, h, g, **options), strict=True):
            assert np.array_equal(np.conj(ours), theirs)


def test_applications_of_given_tau_have_the_bits_of_numpys(dtype, rng):
    u, h, g, tau = (randn(rng, shape, dtype) for shape in ((9, 12), (4, 9), (4, 9), (12,)))
    c, pull = jax.vjp(partial(of_arrays(hj.apply), columns="full"), u, h)
    assert np.array_equal(c, hh.forward(hh.Reflections(u, columns="full"), h))
    c, pull = jax.vjp(lambda u, h, tau: hj.apply(hj.Reflections(u, tau, columns="full"), h), u, h, tau)
    assert np.array_equal(c, hh.forward(hh.Reflections(u, tau, columns="full"), h))
    grads = hh.backward(hh.Reflections(u, tau, columns="full"), h, g)
    for ours, theirs in zip(pull(g.conj()), (grads.u, grads.h, grads.tau), strict=True):
        assert np.array_equal(np.conj(ours), theirs)


@pytest.mark.slow_combinations
@pytest.mark.parametrize("shape", [(1, 1, 3), (33, 33, 2)])
def test_the_expression_is_the_kernel(shape, dtype):
    u, h, _, _ = problem(*shape, dtype)
    for transpose in (False, True):
        expected = of_arrays(hh.forward)(u, h, transpose=transpose)
        assert_close(_expressions.apply(u[None], h[None], transpose)[0], expected, factor=1000)


def test_states_and_their_gradients_have_the_bits_of_numpys(dtype, rng):
    n, d = 10, 3
    u, x, v = randn(rng, (n, 4), dtype), randn(rng, (20, 6, d), dtype), randn(rng, (n, d), dtype)
    g = randn(rng, (20, 6, n), dtype)
    for name in NONLINEARITIES[dtype.kind]:
        options = {"nonlinearity": name}
        phi = spec.NONLINEARITIES[name]
        if phi.has_bias:
            bias = rng.standard_normal(phi.moduli(n, dtype.kind == "c")).astype(real_of(dtype))
            options["nonlinearity_bias"] = bias

        def states(u, x, v, options=options):
            return hj.rnn(u, x, input_weight=v, **options)[0]

        h, pull = jax.vjp(states, u, x, v)
        (expected, _), vjp = hh.rnn_vjp(u, x, input_weight=v, **options)
        assert np.array_equal(h, expected)
        grads = vjp(g)
        for ours, theirs in zip(pull(g.conj()), (grads.u, grads.x, grads.input_weight), strict=True):
            assert_close(ours.conj(), theirs)


@pytest.mark.slow_combinations
@each_nonlinearity("double", DOUBLES)
def test_states_of_the_expression_and_their_gradients_are_the_kernels(nonlinearity, double, rng):
    phi = spec.NONLINEARITIES[nonlinearity]
    u, x = randn(rng, (1, 6, 2), double), randn(rng, (1, 9, 5, 6), double)
    bias = None
    if phi.has_bias:
        bias = rng.standard_normal((1, phi.moduli(6, double.kind == "c")))  # some states vanish

    def by_expression(u, x):
        return _expressions.rnn(u, x, *[None] * 4, bias, None, None, nonlinearity, 0.1, False, False, "trapezoidal")

    def by_kernel(u, x):
        b = None if bias is None else bias[0]
        h, last = hj.rnn(u[0], x[0], nonlinearity=nonlinearity, nonlinearity_bias=b)
        return h[None], last[None]

    found, expected = (compiled(f, jax.grad(loss(f), (0, 1)))(u, x) for f in (by_expression, by_kernel))
    assert_all_close(found, expected)


@pytest.mark.slow_combinations
@pytest.mark.parametrize("gate", [None, "head", "channel"])
@pytest.mark.parametrize("name", ["delta_rule", "linear_attention"])
@pytest.mark.parametrize("sizes", [(70, 1, 2, 8, 6), (301, 2, 2, 4, 3)])
def test_the_delta_rule_and_linear_attention_have_the_bits_of_numpys(gate, name, sizes, rng):
    tokens, heads, value_heads, keys, values = sizes
    q, k, v = (randn(rng, (2, tokens, *s), "float64") for s in ((heads, keys), (heads, keys), (value_heads, values)))
    k, beta = k / np.linalg.norm(k, axis=-1, keepdims=True), rng.uniform(0, 1, v.shape[:3])
    shape = {None: None, "head": v.shape[:3], "channel": (*v.shape[:3], keys)}[gate]
    g = None if shape is None else -rng.exponential(1.0, shape)
    named = {"q": q, "k": k, "v": v, "beta": beta if name == "delta_rule" else None, "g": g}
    operands = {key: a for key, a in named.items() if a is not None}

    def function(operands):
        return getattr(hj, name)(**operands, output_final_state=True)

    (o, last), pull = jax.vjp(function, operands)
    expected, vjp = getattr(hh, f"{name}_vjp")(**operands, output_final_state=True)
    assert np.array_equal(o, expected.o)
    assert np.array_equal(last, expected.final_state)
    grads = vjp(np.ones_like(v), grad_final_state=np.ones_like(last))._asdict()
    (ours,) = pull((np.ones_like(v), np.ones_like(last)))
    assert ours.keys() == {key for key, grad in grads.items() if grad is not None}
    assert all(np.array_equal(a, grads[key]) for key, a in ours.items())
    by_expression = delta_expression(*named.values(), None, None, keys**-0.5, 1, False)
    assert_all_close(by_expression, (o, last))


def test_gates_of_minus_infinity_forget(rng):
    q, k, v = (randn(rng, (1, 40, 1, 3), "float64") for _ in range(3))
    beta, g = np.full((1, 40, 1), 0.5), np.zeros((1, 40, 1))
    g[:, 20] = -np.inf
    whole = delta_expression(q, k, v, beta, g, None, None, 1.0, 1, False)[0]
    later = delta_expression(*(a[:, 20:] for a in (q, k, v, beta)), *[None] * 3, 1.0, 1, False)[0]
    assert_close(whole[:, 20:], later, factor=1e4)
    assert_close(hj.delta_rule(q, k, v, beta=beta, g=g, scale=1.0)[0], whole, factor=1e4)


@pytest.mark.parametrize("gate", ["head", "channel"])
def test_the_expression_loses_no_accuracy_to_strong_gates(gate, rng):
    q, k, v = (randn(rng, (1, 130, 1, 8), "float64") for _ in range(3))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    beta, g = rng.uniform(0, 1, (1, 130, 1)), np.full((1, 130, 1, *[8] * (gate == "channel")), -0.01)
    g[:, ::4] = -1000.0
    expected = hh.delta_rule(q, k, v, beta=beta, g=g).o
    o, _ = delta_expression(*(a.astype("float32") for a in (q, k, v, beta, g)), None, None, 8**-0.5, 1, False)
    assert np.linalg.norm(o - expected) / np.linalg.norm(expected) < 1e-6


@pytest.mark.parametrize("gate", [None, "head", "channel"])
def test_in_the_expression_what_is_not_finite_changes_only_what_depends_on_it(gate, rng):
    tokens = 70
    q, k, v = (randn(rng, (1, tokens, 1, s), "float32") for s in (4, 4, 3))
    beta = rng.uniform(0, 1, (1, tokens, 1)).astype("float32")
    shape = {None: None, "head": beta.shape, "channel": k.shape}[gate]
    operands = [q, k, v, beta, *([] if shape is None else [-rng.random(shape, "float32")])]

    def function(*operands):
        g = operands[4] if gate else None
        return _expressions.delta_rule(*operands[:4], g, None, None, 0.5, 1, True)[0]

    @jax.jit
    def outputs_and_gradients(operands, grad):
        o, pull = jax.vjp(function, *operands)
        return [o, *pull(grad)]

    grad = randn(rng, v.shape, "float32")
    good = outputs_and_gradients(operands, grad)
    no_later = {0: (0, 1), 1: (0, 1), 2: (0, 1, 2, 4, 5), 3: (0, 1), 4: (0, 1)}  # of outputs, dq, dk, dv, dbeta, dg
    no_earlier = {0: range(6), 1: (3,), 2: (3,), 3: (3,), 4: (3,)}
    for t in (0, 3, 40):
        for i in range(len(operands)):
            changed = [a.copy() for a in operands]
            changed[i][0, t].flat[0] = np.nan if i == 4 else 1e38 if t == 3 else np.inf
            found = outputs_and_gradients(changed, grad)
            for names, span in ((no_later[i], slice(0, t)), (no_earlier[i], slice(t + 1, None))):
                assert all(np.array_equal(found[j][:, span], good[j][:, span]) for j in names if j < len(good))
        wild = grad.copy()
        wild[0, t] = np.nan
        found = outputs_and_gradients(operands, wild)
        assert all(np.array_equal(a[:, t + 1 :], b[:, t + 1 :]) for a, b in zip(found, good, strict=True))


def test_zero_columns_are_the_identity(dtype, rng):
    u, h = randn(rng, (5, 3), dtype), randn(rng, (2, 5), dtype)
    u[:, 1] = 0
    others = np.delete(u, 1, axis=1)
    others[1, 1] = 0

    def by_expression(u):
        return _expressions.apply(u[None], h[None], False)[0]

    for function in (lambda u: hj.apply(u, h), by_expression):
        c, grad_u = compiled(function, jax.grad(loss(function)))(u)
        assert_close(c, hh.forward(u, h))
        assert np.all(grad_u[:, 1] == 0)


@pytest.mark.parametrize("name", ["delta_rule", "linear_attention"])
def test_padded_tokens_change_no_state(name, rng):
    operands = {key: randn(rng, (1, 9, 2, 3), "float64") for key in ("q", "k", "v")} | {"g": -np.ones((1, 9, 2))}
    operands |= {"beta": np.full((1, 9, 2), 0.5)} if name == "delta_rule" else {}
    padded = "beta" if name == "delta_rule" else "k"
    operands[padded][:, 5:], operands["g"][:, 5:] = 0, 0
    function = partial(getattr(hj, name), output_final_state=True)
    whole, short = function(**operands), function(**{key: a[:, :5] for key, a in operands.items()})
    assert_close(whole[1], short[1])


def of_tokens(arrays, first, last, reflections):
    """The operands of some of the tokens; keys, values and betas have several steps a token."""
    return [
        a[:, first * r : last * r] for a, r in zip(arrays, (1, reflections, reflections, reflections, 1), strict=True)
    ]


@pytest.mark.parametrize("reflections", [1, 2])
def test_packed_tokens_are_sequences_of_their_own(reflections, rng):
    ends, steps = [0, 4, 5, 5, 12], 12 * reflections
    arrays = [randn(rng, (1, tokens, *rest), "float64") for tokens, *rest in [(12, 1, 3), (steps, 1, 3), (steps, 2, 4)]]
    arrays += [rng.random((1, steps, 2)), -rng.random((1, 12, 2))]
    states = randn(rng, (4, 2, 3, 4), "float64")

    def run(q, k, v, beta, g, state, **options):
        options |= {"num_householder": reflections, "output_final_state": True}
        return hj.delta_rule(q, k, v, beta=beta, g=g, initial_state=state, **options)

    def total(function):
        return lambda *a: sum((x**2).sum() for x in function(*a))

    every = tuple(range(6))
    packed = partial(run, cu_seqlens=ends)
    (o, last), grads = compiled(packed, jax.grad(total(packed), every))(*arrays, states)
    one = compiled(run, jax.grad(total(run), every))
    for i, (first, end) in enumerate(pairwise(ends)):
        expected, expected_grads = one(*of_tokens(arrays, first, end, reflections), states[i : i + 1])
        assert_all_close((o[:, first:end], last[i : i + 1]), expected)
        ours = *of_tokens(grads[:5], first, end, reflections), grads[5][i : i + 1]
        assert_all_close(ours, expected_grads)


def test_a_packed_sequence_ends_where_it_ends(rng):
    """The state would grow beyond all numbers in the steps of a longer sequence."""
    u, x, sizes = randn(rng, (4, 2), "float64"), np.zeros((302, 4)), [2, 2] + [1] * 298
    x[1:4:2] = randn(rng, (2, 4), "float64")

    def last_of(u, x, **options):
        w = hj.Reflections(u, np.array([-40.0, -40.0]), columns="full")
        return hj.rnn(w, x, nonlinearity="identity", **options)[1]

    def packed(u, x):
        return last_of(u, x, batch_sizes=sizes)[1]

    def alone(u, x):
        return last_of(u, x[1:4:2])

    assert not np.isfinite(last_of(u, x[1:])).any()
    found, expected = (
        compiled(f, jax.grad(loss(f), (0, 1)), lambda *a, f=f: jax.jvp(f, a, a))(u, x) for f in (packed, alone)
    )
    assert_all_close(found, expected)

    k, v, beta = np.ones((1, 2001, 1, 1)), np.zeros((1, 2001, 1, 2)), np.full((1, 2001, 1), 3.0)
    v[:, 2000:] = randn(rng, (1, 1, 1, 2), "float64")

    def last(k, v, **options):
        return hj.delta_rule(k, k, v, beta=beta[:, : k.shape[1]], output_final_state=True, **options)[1][-1]

    of_both = partial(last, cu_seqlens=[0, 2000, 2001]), lambda k, v: last(k[:, 2000:], v[:, 2000:])
    assert_all_close(*(compiled(f, jax.grad(loss(f), (0, 1)))(k, v) for f in of_both))


def test_all_is_sorted_and_complete():
    public = {name for name, value in vars(hj).items() if inspect.isfunction(value) or inspect.isclass(value)}
    assert hj.__all__ == sorted(public)
