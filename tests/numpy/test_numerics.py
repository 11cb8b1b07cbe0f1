"""Rounding: how orthogonal W is, and how far results are from a wider precision, on inputs made to hurt."""

import numpy as np
import pytest

import householder as hh
from householder import reference
from tests.conftest import METHODS, REAL_DTYPES, product

N, M, ROWS = 128, 64, 4
WIDER = {"float32": np.float64, "float64": np.longdouble}
BELOW = np.arange(N)[:, None] >= M  # rows in which equal columns fit the trapezoid


def vanishing(rng):
    u = rng.standard_normal((N, M))
    u[:, ::3] = 0
    u[:, 1::3] = 1e-310  # denormal in float64, zero in float32
    return u


INPUTS = {
    "random": lambda rng: rng.standard_normal((N, M)),
    "full": lambda rng: np.append(rng.standard_normal((N, N - 1)), -np.eye(N)[:, -1:], axis=1),
    "collinear": lambda rng: BELOW * rng.standard_normal((N, 1)) + 1e-6 * rng.standard_normal((N, M)),
    "duplicated": lambda rng: BELOW * np.repeat(rng.standard_normal((N, M // 2)), 2, axis=1),
    "tiny": lambda rng: 1e-30 * rng.standard_normal((N, M)),
    "huge": lambda rng: 1e30 * rng.standard_normal((N, M)),
    "vanishing": vanishing,
}
inputs = pytest.mark.parametrize("name", INPUTS)


def inputs_of(name, dtype, seed=0):
    rng = np.random.default_rng(seed)
    u = INPUTS[name](rng).astype(dtype)
    return u, *(rng.standard_normal((ROWS, N)).astype(dtype) for _ in range(2))


def exact(u, h, g):
    wider = WIDER[u.dtype.name]
    present = np.linalg.norm(hh.normalize(u), axis=0) > 0
    u, h, g = (a.astype(wider) for a in (np.where(present, u, 0), h, g))
    states = reference.tape(u, h)
    return states[0], *reference.backward_algorithm_1(u, h, states, g)[:2]


def error(actual, expected):
    scale = np.abs(expected).max()
    return np.linalg.norm((actual - expected) / scale) / np.linalg.norm(expected / scale)


def errors(u, h, g, expected, method="auto"):
    grads = hh.backward(u, h, g, method=method)
    return [error(a, b) for a, b in zip((hh.forward(u, h, method=method), *grads), expected, strict=True)]


def departure(w):
    w = w.astype(np.result_type(w, np.float64))
    return np.abs(w.conj().T @ w - np.eye(len(w))).max()


@inputs
@pytest.mark.parametrize("dtype", REAL_DTYPES)
@pytest.mark.parametrize("method", METHODS[1:])
def test_errors_are_those_of_rounding(name, dtype, method):
    u, h, g = inputs_of(name, dtype)
    c, grad_u, grad_h = errors(u, h, g, exact(u, h, g), method)
    eps = np.finfo(dtype).eps
    assert max(c, grad_h) < 20 * eps
    assert grad_u < 200 * eps


@inputs
@pytest.mark.parametrize("dtype", REAL_DTYPES)
def test_w_is_orthogonal(name, dtype):
    departures = [departure(hh.matrix(inputs_of(name, dtype, seed)[0])) for seed in range(10)]
    assert np.mean(departures) < 30 * np.finfo(dtype).eps


def test_a_large_matrix_is_orthogonal_in_float32():
    u = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
    assert departure(hh.matrix(hh.snap(u))) <= 2e-6


@pytest.mark.parametrize("seed", range(20))
def test_collinear_columns_cost_at_most_five_times_the_errors_of_single_reflections(seed):
    u, h, g = inputs_of("collinear", "float32", seed)
    expected = exact(u, h, g)
    for compact, sequential in zip(
        errors(u, h, g, expected, "wy"), errors(u, h, g, expected, "reflections"), strict=True
    ):
        assert compact <= 5 * sequential


SIZES = [(2, 1), (2, 2), (8, 3), (16, 16), (33, 20), (64, 8), (64, 64), (65, 65), (130, 40), (256, 32)]


def formed_by_a_sequence(u, phases=None):
    """W of the first of two steps; a single step would not form it."""
    n = len(u)
    eye = np.eye(n, dtype=u.dtype)
    return hh.rnn(
        hh.Reflections(u, phases=phases), np.zeros((2, n, n), u.dtype), eye, nonlinearity="identity", method="dense"
    )[0][0].T


@pytest.mark.slow_combinations
@pytest.mark.parametrize("formed", [product, formed_by_a_sequence], ids=["matrix", "sequence"])
@pytest.mark.parametrize("size", SIZES, ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_formed_matrix_is_as_orthogonal_as_one_rounded_from_float64(size, dtype, formed):
    worst = np.zeros(2)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        u, phases = rng.standard_normal(size), None
        if dtype == "complex64":
            u = u[:, : size[0] - 1] + 1j * rng.standard_normal(u[:, : size[0] - 1].shape)
            phases = rng.standard_normal(size[0]).astype(np.float32)
        else:
            u = hh.snap(u)
        u = u.astype(dtype)
        wide = hh.matrix(
            hh.Reflections(
                u.astype(np.result_type(dtype, np.float64)), phases=phases if phases is None else phases.astype(float)
            )
        )
        worst = np.maximum(worst, [departure(formed(u, phases)), departure(wide.astype(dtype))])
    assert worst[0] <= 1.5 * worst[1]


@pytest.mark.parametrize(("method", "most"), [("auto", 2e-4), ("dense", 2e-4), ("wy", 1e-3)])
@pytest.mark.parametrize("n", [8, 64])
def test_ten_thousand_identity_steps_keep_the_length(n, method, most):
    x = np.zeros((10_000, 1, n), np.float32)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        u, h0 = (rng.standard_normal(shape).astype(np.float32) for shape in ((n, n), (1, n)))
        h = hh.rnn(hh.snap(u), x, h0, nonlinearity="identity", method=method)[0]
        assert abs(np.linalg.norm(h[-1].astype(float)) / np.linalg.norm(h0.astype(float)) - 1) < most


@pytest.mark.parametrize("dtype", REAL_DTYPES)
@pytest.mark.parametrize("keys", [16, 64, 128])
def test_a_reflection_that_is_repeated_errs_by_at_most_two_units_of_rounding_each_time(dtype, keys):
    """The norm of one key is rounded in the same way at every step, so these errors add up."""
    rng, steps = np.random.default_rng(keys), 501
    key = rng.standard_normal(keys)
    key, state = (key / np.linalg.norm(key)).astype(dtype), rng.standard_normal((keys, 4)).astype(dtype)
    k = np.broadcast_to(key, (1, steps, 1, keys))
    rest = {"beta": np.full((1, steps, 1), 2, dtype), "initial_state": state[None, None], "output_final_state": True}
    found = hh.delta_rule(k, k, np.zeros((1, steps, 1, 4), dtype), **rest).final_state[0, 0]
    wide = key.astype(WIDER[dtype])
    ratio = (1 - 2 * wide @ wide) ** steps  # of the part along the key
    expected = state + (ratio - 1) / (wide @ wide) * wide[:, None] * (wide @ state)
    assert np.abs(found - expected).max() <= 2 * steps * np.finfo(dtype).eps * np.abs(expected).max()
