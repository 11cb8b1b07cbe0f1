"""Theorem 1: every orthogonal or unitary matrix is a product of reflections, and ``factor`` finds it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import householder as hh
from householder import reference
from tests.conftest import COMPLEX_DTYPES, REAL_DTYPES, assert_close, of_arrays, problem, product, randn


def orthogonal(n, dtype, seed=0):
    q, r = np.linalg.qr(randn(np.random.default_rng([seed, n]), (n, n), np.dtype(dtype)))
    return q * (np.diagonal(r) / abs(np.diagonal(r)))


def assert_factors(backend, q, m=None):
    factors = backend(hh.factor, q, m)
    u, phases = factors if q.dtype.kind == "c" else (factors, None)
    assert u.dtype == q.dtype
    assert u.shape == (len(q), m or len(q) - (q.dtype.kind == "c"))
    assert_close(backend(of_arrays(hh.matrix), u, phases=phases), q)
    return u


@given(n=st.sampled_from([2, 3, 7, 8, 17, 33, 64, 65, 100, 129]), seed=st.integers(0, 99))
def test_factor_inverts_matrix(backend, dtype, n, seed):
    assert_factors(backend, orthogonal(n, dtype, seed))


@pytest.mark.parametrize("sign", [1, -1])
def test_one_by_one_matrices_are_signs(backend, sign):
    assert np.array_equal(backend(hh.factor, np.array([[float(sign)]])), [[sign]])


EXACT = {
    "identity": np.eye(6),
    "minus identity": -np.eye(6),
    "one sign": np.diag([1.0, 1, -1, 1, 1, 1]),
    "last sign": np.diag([1.0, 1, 1, 1, 1, -1]),
    "swap": np.eye(6)[[1, 0, 2, 3, 4, 5]],
    "reversal": np.eye(6)[::-1],
    "cycle": np.roll(np.eye(6), 1, axis=0),
}


@pytest.mark.parametrize("q", list(EXACT.values()), ids=list(EXACT))
def test_exact_matrices(backend, dtype, q):
    u = assert_factors(backend, q.astype(dtype))
    assert np.all(np.linalg.norm(u, axis=0) > 0.5), "a zero column would never get a gradient"


@pytest.mark.parametrize("distance", [1e-2, 1e-5, 1e-8, 1e-12])
def test_matrices_next_to_the_identity(backend, dtype, distance):
    """Where ``x - |x| e_1`` would cancel."""
    skew = randn(np.random.default_rng(0), (9, 9), np.result_type(dtype, np.float64)) * distance
    skew = skew - skew.conj().T
    q = np.linalg.solve(np.eye(9) - skew, np.eye(9) + skew).astype(dtype)
    assert_factors(backend, q)


@pytest.mark.parametrize("m", [1, 3, 8])
@pytest.mark.parametrize("dtype", REAL_DTYPES)
def test_a_product_of_m_reflections_needs_m(backend, dtype, m):
    assert_factors(backend, hh.matrix(problem(9, m, 1, dtype).u), m)


def short_diagonals(rng, n, m):
    """Columns of W almost like unit vectors."""
    u = rng.standard_normal((n, m))
    u[np.arange(m), np.arange(m)] *= 10.0 ** rng.uniform(-16, 0, m)
    return u


def small_entries(rng, n, m):
    return rng.standard_normal((n, m)) * 10.0 ** rng.uniform(-12, 0, (n, m))


def nearly_dependent(rng, n, m):
    below = np.arange(n)[:, None] >= m
    return below * rng.standard_normal((n, 1)) + 10.0 ** rng.uniform(-12, -2) * rng.standard_normal((n, m))


def next_to_the_identity(rng, n, m):
    """Pairs of reflections that almost undo each other."""
    u = rng.standard_normal((n, m))
    for j in range(1, m, 2):
        u[: j + 1, j - 1] = 0
        u[:, j] = u[:, j - 1] + 1e-9 * rng.standard_normal(n)
    return u


def sparse(rng, n, m):
    u = rng.standard_normal((n, m)) * (rng.random((n, m)) < 0.3)
    u[-1] += ~u.any(axis=0)
    return u


@pytest.mark.parametrize("dtype", REAL_DTYPES)
@pytest.mark.parametrize("make", [short_diagonals, small_entries, nearly_dependent, next_to_the_identity, sparse])
def test_every_real_product_of_m_reflections_is_found_again_with_m(dtype, make):
    rng = np.random.default_rng(0)
    for _ in range(50):
        n = rng.integers(2, 60)
        m = rng.integers(1, n)
        u = np.tril(make(rng, n, m)).astype(dtype)
        u[-1] += ~u.any(axis=0)
        w = hh.matrix(u)
        again = hh.factor(w, m)
        assert np.array_equal(again, np.tril(again))
        assert_close(hh.matrix(again), w)


@pytest.mark.slow_combinations
@pytest.mark.parametrize("diagonal", [1, 10], ids=["any vectors", "long diagonals"])
@pytest.mark.parametrize("dtype", COMPLEX_DTYPES)
def test_complex_products_of_few_reflections_are_found_again(dtype, diagonal):
    """A column tells its phase but for the sign, on which depends whether m reflections do."""
    rng = np.random.default_rng(0)
    shapes = [(n, m) for m in (*range(1, 5), *range(13, 17)) for n in (2 * m + 1, 33, 50) if 2 * m < n]
    for n, m in shapes * 5:
        u = randn(rng, (n, m), np.dtype(dtype))
        u[np.arange(m), np.arange(m)] *= diagonal
        w = hh.matrix(hh.Reflections(u, phases=rng.uniform(-np.pi, np.pi, n).astype(u.real.dtype)))
        assert_close(product(*hh.factor(w, m)), w)


@pytest.mark.slow_combinations
@pytest.mark.parametrize("diagonal", [1, 10], ids=["any vectors", "long diagonals"])
@pytest.mark.parametrize("n", range(4, 15))
def test_complex_products_of_half_as_many_reflections_and_more_are_found_again(n, diagonal):
    """The first ``2 m - n + 1`` columns leave the signs of their phases open; all choices are tried."""
    rng = np.random.default_rng(n)
    for m in range((n + 1) // 2, n - 1):
        u = randn(rng, (n, m), np.dtype(complex))
        u[np.arange(m), np.arange(m)] *= diagonal
        w = hh.matrix(hh.Reflections(u, phases=rng.uniform(-np.pi, np.pi, n)))
        assert_close(product(*hh.factor(w, m)), w)


def test_the_search_for_signs_passes_columns_that_need_no_reflection():
    rng = np.random.default_rng(0)
    u = randn(rng, (8, 6), np.dtype(complex))
    u[:4, :4], u[:2, 4:] = 0, 0  # the first two columns of W are unit vectors
    w = hh.matrix(hh.Reflections(u, phases=rng.uniform(-np.pi, np.pi, 8)))
    assert_close(product(*hh.factor(w, 6)), w)


NOT_OF_TWO = r"not (found to be )?a product of m = 2 reflections"


def test_too_few_reflections_are_refused_with_what_they_leave(backend, dtype):
    with pytest.raises(ValueError, match=NOT_OF_TWO + r".*[0-9]\.[0-9]"):
        backend(hh.factor, orthogonal(9, dtype), 2)


def test_a_quarter_turn_of_three_planes_is_no_product_of_two(backend, dtype):
    """It takes the range that two reflections would have into its orthogonal complement."""
    eye, none = np.eye(3), np.zeros((3, 3))
    with pytest.raises(ValueError, match=NOT_OF_TWO):
        backend(hh.factor, np.block([[none, -eye], [eye, none]]).astype(dtype), 2)


def full_length(rng, n, m, dtype):
    """A product of explicit reflections along vectors without leading zeros."""
    q = np.eye(n, dtype=dtype)
    for v in randn(rng, (m, n), np.dtype(dtype)):
        q = q @ reference.reflection(v / np.linalg.norm(v))
    return q


@pytest.mark.parametrize("n", [5, 9, 17, 33])
def test_one_complex_reflection_of_full_length_is_found(n):
    q = full_length(np.random.default_rng(n), n, 1, complex)
    assert_close(product(*hh.factor(q, 1)), q)


@pytest.mark.parametrize("n", [5, 9, 17, 33])
def test_more_are_not_reached_by_as_many_with_leading_zeros_and_the_error_says_so(n):
    q = full_length(np.random.default_rng(n), n, 2, complex)
    with pytest.raises(ValueError, match=f"with leading zeros and of phases.*n - 1 = {n - 1} reach every"):
        hh.factor(q, 2)
    assert_close(product(*hh.factor(q)), q)


@pytest.mark.parametrize(("n", "m"), [(5, 1), (7, 3), (9, 2), (8, 6)])
def test_complex_products_have_as_many_degrees_of_freedom_as_the_docstring_says(n, m):
    """The rank of the Jacobian of ``matrix`` by u and phases."""
    rng = np.random.default_rng(0)
    u, phases, eye = randn(rng, (n, m), np.dtype(complex)), rng.standard_normal(n), np.eye(n, dtype=complex)
    directions = [(d * i, np.zeros(n)) for d in (1, 1j) for i in np.eye(n * m).reshape(-1, n, m)]
    directions += [(np.zeros((n, m)), d) for d in np.eye(n)]
    moved = [
        hh.jvp(hh.Reflections(u, phases=phases), eye, t.astype(complex), np.zeros_like(eye), tangent_phases=p)
        for t, p in directions
    ]
    jacobian = np.stack([np.concatenate([c.real, c.imag]).ravel() for c in moved])
    assert np.linalg.matrix_rank(jacobian, tol=1e-8) == 2 * n * m - m**2 - m + n


def test_other_matrices_are_refused_with_their_distance(backend, dtype):
    with pytest.raises(ValueError, match=r"max \|q\* q - I\| is 3"):
        backend(hh.factor, 2 * orthogonal(5, dtype))
    with pytest.raises(ValueError, match="q has entries that are not finite"):
        backend(hh.factor, np.full((5, 5), np.nan, dtype))


def test_the_matrix_is_not_modified(dtype):
    q = orthogonal(7, dtype)
    copy = q.copy()
    hh.factor(q)
    assert np.array_equal(q, copy)


@pytest.mark.parametrize("many", [(3,), (2, 2), (0,)], ids=str)
def test_many_matrices_are_factored_at_once(backend, dtype, many):
    q = np.empty((*many, 5, 5), dtype)
    for seed, i in enumerate(np.ndindex(many)):
        q[i] = orthogonal(5, dtype, seed)
    factors = backend(hh.factor, q)
    assert_close(product(*factors) if dtype.kind == "c" else product(factors), q)


def test_the_matrix_that_is_not_orthogonal_is_named():
    q = np.stack([np.eye(4), 2 * np.eye(4)])
    with pytest.raises(ValueError, match=r"q\[1\] is not orthogonal: .* nearest makes it so"):
        hh.factor(q)
    assert_close(hh.matrix(hh.factor(hh.nearest(q))), np.stack([np.eye(4)] * 2))
