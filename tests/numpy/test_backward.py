"""``backward`` against the product rule over explicit reflections, finite differences and its own other methods."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

import householder as hh
from householder import reference
from tests.conftest import METHODS, SIZES, assert_close, of_arrays, problem, randn


def assert_gradients(actual, expected, dtype, factor=200):
    """Compare ``(u, h[, phases])``; the expected phases may be None."""
    expected = [gradient for gradient in expected if gradient is not None]
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected, strict=True):
        assert_close(a, e, dtype, factor)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("n", "m", "rows"), [(1, 1, 1), (2, 1, 3), (3, 3, 2), (8, 4, 5), (17, 16, 1), (33, 33, 9)])
def test_gradients_follow_from_explicit_reflections(backend, dtype, n, m, rows, transpose, method):
    p = problem(n, m, rows, dtype)
    grads = backend(of_arrays(hh.backward), p.u, p.h, p.g, transpose=transpose, method=method, **p.options)
    assert_gradients(grads, reference.backward(p.u, p.h, p.g, p.phases, transpose), dtype)


@given(
    n=st.sampled_from(SIZES),
    m=st.sampled_from(SIZES),
    rows=st.sampled_from(SIZES),
    transpose=st.booleans(),
    method=st.sampled_from(METHODS),
    seed=st.integers(0, 99),
)
def test_gradients_around_the_edges_of_blocks(backend, dtype, n, m, rows, transpose, method, seed):
    p = problem(n, min(n, m), rows, dtype, seed)
    grads = backend(of_arrays(hh.backward), p.u, p.h, p.g, transpose=transpose, method=method, **p.options)
    assert_gradients(grads, reference.backward(p.u, p.h, p.g, p.phases, transpose), dtype)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 1), (3, 3), (6, 4), (9, 8)])
def test_gradients_are_finite_differences(backend, double, n, m, transpose):
    p = problem(n, m, 3, double)
    du, dh, _, dphases = problem(n, m, 3, double, seed=1)
    step = 1e-6

    def loss(sign):
        options = {} if p.phases is None else {"phases": p.phases + sign * step * dphases}
        c = backend(
            of_arrays(hh.forward), p.u + sign * step * du, p.h + sign * step * dh, transpose=transpose, **options
        )
        return np.vdot(p.g, c).real

    grads = backend(of_arrays(hh.backward), p.u, p.h, p.g, transpose=transpose, **p.options)
    along = sum(np.vdot(gradient, d).real for gradient, d in zip(grads, (du, dh, dphases), strict=False))
    assert along == pytest.approx((loss(1) - loss(-1)) / (2 * step), rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("n", "m", "rows"), [(1, 1, 2), (5, 5, 4), (9, 4, 1), (33, 16, 20), (64, 64, 7)])
def test_a_tape_gives_the_same_gradients(backend, dtype, n, m, rows, transpose):
    p = problem(n, m, rows, dtype)
    _, tape = backend(of_arrays(hh.forward_tape), p.u, p.h, transpose=transpose, **p.options)
    grads = backend(of_arrays(hh.backward), p.u, p.h, p.g, transpose=transpose, tape=tape, **p.options)
    assert_gradients(grads, reference.backward(p.u, p.h, p.g, p.phases, transpose), dtype)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("transpose", [False, True])
def test_the_gradient_of_a_reflection_is_orthogonal_to_it(backend, dtype, method, transpose):
    """Since ``W(c U) = W(U)``, for every column ``Re u* dL/du = 0``."""
    p = problem(33, 17, 12, dtype)
    grad_u = backend(of_arrays(hh.backward), p.u, p.h, p.g, transpose=transpose, method=method, **p.options).u
    assert_close((np.tril(p.u).conj() * grad_u).real.sum(axis=0) / np.abs(grad_u).max(), np.zeros(17), dtype)


@pytest.mark.parametrize("method", METHODS)
def test_no_gradient_above_the_diagonal(backend, dtype, method):
    p = problem(9, 8, 4, dtype)
    grad_u = backend(of_arrays(hh.backward), p.u, p.h, p.g, method=method, **p.options).u
    assert np.array_equal(grad_u, np.tril(grad_u))
    garbage = p.u + np.triu(np.full(p.u.shape, np.nan), 1).astype(dtype)
    assert np.array_equal(backend(of_arrays(hh.backward), garbage, p.h, p.g, method=method, **p.options).u, grad_u)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_gradients_scale_inversely_with_their_columns(backend, dtype, scale, method):
    p = problem(17, 9, 5, dtype)
    scales = np.where(np.arange(9) % 2, dtype.type(scale), 1).real
    expected = reference.backward(p.u, p.h, p.g, p.phases)
    grads = backend(of_arrays(hh.backward), p.u * scales.astype(dtype), p.h, p.g, method=method, **p.options)
    assert_gradients([grads.u * scales, *grads[1:]], expected, dtype)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fraction", [0, 0.25])  # of the smallest normal number
def test_columns_of_zero_or_subnormal_norm_have_no_gradient(backend, dtype, method, fraction):
    p = problem(17, 9, 5, dtype)
    p.u[:, [0, 4, 8]] = 0
    expected = reference.backward(p.u, p.h, p.g, p.phases)
    p.u[-1, [0, 4, 8]] = fraction * np.finfo(dtype).tiny
    grads = backend(of_arrays(hh.backward), p.u, p.h, p.g, method=method, **p.options)
    assert not grads.u[:, [0, 4, 8]].any()
    assert_gradients(grads, expected, dtype)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("where", ["u", "h", "g"])
def test_nan_propagates(backend, dtype, method, where):
    p = problem(9, 4, 3, dtype)
    getattr(p, where)[-1, 0] = np.nan
    grads = backend(of_arrays(hh.backward), p.u, p.h, p.g, method=method, **p.options)
    assert np.isnan(np.tril(grads.u)).any()
    assert np.isnan(grads.h[-1]).any() or where == "h"


@given(
    n=st.integers(1, 5),
    m=st.integers(1, 5),
    lead=mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=3),
    transpose=st.booleans(),
)
def test_gradients_of_broadcast_arguments_are_summed(backend, dtype, n, m, lead, transpose):
    p = problem(n, min(m, n), 1, dtype)
    n, m = p.u.shape
    (lead_u, lead_h), shape = lead
    rng = np.random.default_rng(0)
    u, h, g = (randn(rng, s, dtype) for s in ((*lead_u, n, m), (*lead_h, n), (*shape, n)))
    index_u = np.broadcast_to(np.arange(u.size).reshape(u.shape), (*shape, n, m))
    index_h = np.broadcast_to(np.arange(h.size).reshape(h.shape), (*shape, n))
    wide = np.result_type(dtype, float)
    expected_u, expected_h, expected_phases = np.zeros(u.size, wide), np.zeros(h.size, wide), np.zeros(n)
    for i in np.ndindex(*shape):
        one = reference.backward(u.flat[index_u[i]], h.flat[index_h[i]], g[i], p.phases, transpose)
        expected_u[index_u[i]] += one[0]
        expected_h[index_h[i]] += one[1]
        expected_phases += 0 if one[2] is None else one[2]
    expected = expected_u.reshape(u.shape), expected_h.reshape(h.shape)
    expected += () if p.phases is None else (expected_phases,)
    assert_gradients(backend(of_arrays(hh.backward), u, h, g, transpose=transpose, **p.options), expected, dtype)


@pytest.mark.parametrize(("lead_u", "lead_h"), [((), (0,)), ((), (3, 0)), ((0,), (1,)), ((0,), ()), ((2, 0), (2, 1))])
def test_empty_batches_have_zero_gradients(backend, dtype, lead_u, lead_h):
    u, h = np.ones((*lead_u, 5, 2), dtype), np.ones((*lead_h, 5), dtype)
    grads = backend(hh.backward, u, h, np.ones((*np.broadcast_shapes(lead_u, lead_h), 5), dtype))
    assert grads.u.shape == u.shape
    assert grads.h.shape == h.shape
    assert not grads.u.any()
    assert not grads.h.any()


def test_numbers_published_by_an_svd_rnn(backend):
    """A worked example of the spectral RNN's tests, ``L = sum(h W)``; its row vectors multiply W from the left."""
    u = np.array([[0.557619274, 0], [0.559727728, 0.635844827], [0.612997234, -0.771816969]])
    h = np.array([[0.608415484, -0.575018406, 0.710458696], [1.020405412, 1.035417199, -0.101987585]])
    w = [
        [0.378121487, -0.790478102, -0.481838677],
        [-0.624229943, -0.602064261, 0.497850985],
        [-0.683638149, 0.112529975, -0.721093534],
    ]
    hw = [[0.103302006, -0.054793186, -1.091738764], [-0.190778604, -1.441472485, 0.097355267]]
    grad_u = [[-2.780749891, 0], [0.678133023, -0.774722297], [1.910334686, -0.638238318]]
    assert np.allclose(backend(hh.matrix, u), w, rtol=0, atol=2e-9)
    assert np.allclose(backend(of_arrays(hh.forward), u, h, transpose=True), hw, rtol=0, atol=4e-9)
    grads = backend(of_arrays(hh.backward), u, h, np.ones_like(h), transpose=True)
    assert np.allclose(grads.h, [[-0.894195293, -0.728443219, -1.292201708]] * 2, rtol=0, atol=3e-9)
    assert np.allclose(grads.u, grad_u, rtol=0, atol=2e-8)
