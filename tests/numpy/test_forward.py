"""``forward`` multiplies by the product of explicit reflections, whatever the shapes, strides, scales and methods."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

import householder as hh
from householder import reference
from tests.conftest import METHODS, REAL_DTYPES, SIZES, assert_close, of_arrays, problem, randn, real, real_of


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(
    ("n", "m", "rows"), [(1, 1, 1), (2, 1, 3), (3, 3, 2), (8, 4, 5), (17, 16, 1), (33, 33, 9), (65, 8, 64)]
)
def test_forward_multiplies_by_explicit_reflections(backend, dtype, n, m, rows, transpose, method):
    p = problem(n, m, rows, dtype)
    w = reference.matrix(p.u, p.phases)
    c = backend(of_arrays(hh.forward), p.u, p.h, transpose=transpose, method=method, **p.options)
    assert c.dtype == dtype
    assert_close(c, p.h @ (w.conj() if transpose else w.T), dtype)


@given(
    n=st.sampled_from(SIZES),
    m=st.sampled_from(SIZES),
    rows=st.sampled_from(SIZES),
    transpose=st.booleans(),
    method=st.sampled_from(METHODS),
    seed=st.integers(0, 99),
)
def test_forward_around_the_edges_of_blocks(backend, dtype, n, m, rows, transpose, method, seed):
    p = problem(n, min(n, m), rows, dtype, seed)
    c = backend(of_arrays(hh.forward), p.u, p.h, transpose=transpose, method=method, **p.options)
    assert_close(c, reference.forward(p.u, p.h, p.phases, transpose), dtype)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("u_1", [1.0, -1.0, 0.5, 0.0, -3.0])
@real("dtype")
def test_u_1_multiplies_the_last_coordinate_first(backend, dtype, u_1, method):
    p = problem(6, 6, 4, dtype)
    p.u[-1, -1] = u_1
    without = backend(hh.forward, p.u[:, :5], p.h * np.array([1, 1, 1, 1, 1, u_1], dtype), method=method)
    assert_close(backend(hh.forward, p.u, p.h, method=method), without)


@given(
    n=st.integers(1, 6),
    m=st.integers(1, 6),
    lead=mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=3),
    transpose=st.booleans(),
)
def test_leading_axes_broadcast_like_those_of_a_generalised_ufunc(backend, dtype, n, m, lead, transpose):
    p = problem(n, min(m, n), 1, dtype)
    n, m = p.u.shape
    (lead_u, lead_h), shape = lead
    rng = np.random.default_rng(0)
    u, h = randn(rng, (*lead_u, n, m), dtype), randn(rng, (*lead_h, n), dtype)
    all_u, all_h = np.broadcast_to(u, (*shape, n, m)), np.broadcast_to(h, (*shape, n))
    expected = np.empty((*shape, n), np.result_type(dtype, float))
    for i in np.ndindex(*shape):
        expected[i] = reference.forward(all_u[i], all_h[i], p.phases, transpose)
    assert_close(backend(of_arrays(hh.forward), u, h, transpose=transpose, **p.options), expected, dtype)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scale", [1e-30, 1e30, 1e-3])
def test_the_scale_of_columns_does_not_matter(backend, dtype, scale, method):
    p = problem(17, 9, 5, dtype)
    scaled = p.u * np.where(np.arange(9) % 2, scale, 1).astype(dtype)
    assert_close(
        backend(of_arrays(hh.forward), scaled, p.h, method=method, **p.options),
        reference.forward(p.u, p.h, p.phases),
        dtype,
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("fraction", [0, 0.25])  # of the smallest normal number
def test_columns_of_zero_or_subnormal_norm_are_identities(backend, dtype, method, fraction):
    p = problem(17, 9, 5, dtype)
    p.u[:, [0, 4, 8]] = 0
    expected = reference.forward(p.u, p.h, p.phases)
    p.u[-1, [0, 4, 8]] = fraction * np.finfo(dtype).tiny
    assert_close(backend(of_arrays(hh.forward), p.u, p.h, method=method, **p.options), expected, dtype)


@pytest.mark.parametrize("method", METHODS)
def test_entries_above_the_diagonal_are_ignored(backend, dtype, method):
    p = problem(17, 9, 5, dtype)
    garbage = p.u + np.triu(np.full(p.u.shape, np.nan), 1).astype(dtype)
    c = backend(of_arrays(hh.forward), garbage, p.h, method=method, **p.options)
    assert np.array_equal(c, backend(of_arrays(hh.forward), np.tril(p.u), p.h, method=method, **p.options))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["u", "h"])
def test_nan_and_infinity_propagate(backend, dtype, method, bad, where):
    p = problem(9, 4, 3, dtype)
    getattr(p, where)[-1, 0] = bad
    c = backend(of_arrays(hh.forward), p.u, p.h, method=method, **p.options)
    assert not np.isfinite(c[-1] if where == "h" else c).any()


def test_a_nan_in_one_vector_leaves_the_others_alone(backend, dtype):
    p = problem(9, 4, 3, dtype)
    clean = backend(of_arrays(hh.forward), p.u, p.h, **p.options)
    p.h[1, 2] = np.nan
    c = backend(of_arrays(hh.forward), p.u, p.h, **p.options)
    assert np.array_equal(c[[0, 2]], clean[[0, 2]])


def test_results_are_arrays_of_numpys_own_class_in_c_order(dtype):
    """Memory may lie anyhow and stays as it is: the random tester's kind "arrays" draws that."""
    p = problem(7, 3, 5, dtype)
    mine = type("Mine", (np.ndarray,), {})
    c = of_arrays(hh.forward)(p.u.view(mine), np.asfortranarray(p.h).view(mine), **p.options)
    assert type(c) is np.ndarray
    assert c.flags.c_contiguous
    assert np.array_equal(c, of_arrays(hh.forward)(p.u, p.h, **p.options))


@pytest.mark.parametrize(("lead_u", "lead_h"), [((), (0,)), ((), (3, 0)), ((0,), (1,)), ((0,), ()), ((2, 0), (2, 1))])
def test_empty_batches_give_empty_results(backend, dtype, lead_u, lead_h):
    u, h = np.ones((*lead_u, 5, 2), dtype), np.ones((*lead_h, 5), dtype)
    c = backend(hh.forward, u, h)
    assert c.shape == (*np.broadcast_shapes(lead_u, lead_h), 5)
    assert c.dtype == dtype


@pytest.mark.parametrize("dtype", REAL_DTYPES)
def test_tape_holds_every_partial_product(backend, dtype):
    p = problem(6, 4, 3, dtype)
    c, tape = backend(hh.forward_tape, p.u, p.h)
    assert tape.shape == (3, 5, 6)
    assert np.array_equal(tape[:, 0], c)
    assert np.array_equal(tape[:, 4], p.h)
    assert_close(np.moveaxis(tape, 1, 0), reference.tape(p.u, p.h), dtype)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 5), (9, 4), (33, 16)])
def test_forward_tape_applies_as_forward_does(backend, dtype, n, m, transpose):
    p = problem(n, m, 6, dtype)
    c, tape = backend(of_arrays(hh.forward_tape), p.u, p.h.reshape(2, 3, -1), transpose=transpose, **p.options)
    n, m = p.u.shape
    assert tape.shape == (2, 3, m + 1, n)
    assert_close(c.reshape(p.h.shape), reference.forward(p.u, p.h, p.phases, transpose), dtype)


def test_dtypes_of_all_results_are_the_input_s(dtype):
    p = problem(5, 3, 2, dtype)
    for result in (
        hh.forward(p.u, p.h),
        *hh.forward_tape(p.u, p.h),
        hh.matrix(p.u),
        *hh.wy(p.u),
        *hh.backward(p.u, p.h, p.g),
    ):
        assert result.dtype == dtype
    if p.phases is not None:
        assert hh.backward(hh.Reflections(p.u, phases=p.phases), p.h, p.g).phases.dtype == real_of(dtype)
