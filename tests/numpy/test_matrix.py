"""The identities that W, its compact WY form and its parameters satisfy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import householder as hh
from householder import reference
from tests.conftest import METHODS, SIZES, assert_close, of_arrays, problem, randn, real, real_of

SHAPES = [(1, 1), (2, 1), (3, 3), (8, 4), (17, 16), (33, 33), (65, 8)]


def adjoint(w):
    return np.swapaxes(w, -1, -2).conj()


def orthogonal_problem(n, m, rows, dtype, seed=0):
    """A random problem with ``u_1 = 1`` or -1."""
    p = problem(n, m, rows, dtype, seed)
    return p._replace(u=hh.snap(p.u))


@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_matrix_is_the_product_of_explicit_reflections(backend, dtype, n, m):
    p = problem(n, m, 1, dtype)
    w = backend(of_arrays(hh.matrix), p.u, phases=p.phases)
    assert w.dtype == dtype
    assert_close(w, reference.matrix(p.u, p.phases), dtype)


def test_matrices_of_a_batch(backend, dtype):
    u = randn(np.random.default_rng(0), (2, 3, 7, 4), dtype)
    w = backend(hh.matrix, u)
    assert w.shape == (2, 3, 7, 7)
    for i in np.ndindex(2, 3):
        assert_close(w[i], reference.matrix(u[i]), dtype)
    assert backend(hh.matrix, u[:, :0]).shape == (2, 0, 7, 7)


@given(n=st.sampled_from(SIZES), m=st.sampled_from(SIZES), seed=st.integers(0, 99))
def test_w_is_orthogonal(backend, dtype, n, m, seed):
    p = orthogonal_problem(n, min(n, m), 1, dtype, seed)
    w = backend(of_arrays(hh.matrix), p.u, phases=p.phases)
    assert_close(adjoint(w) @ w, np.eye(len(w)), dtype)


@given(n=st.sampled_from(SIZES), m=st.sampled_from(SIZES), method=st.sampled_from(METHODS), seed=st.integers(0, 99))
def test_norms_are_preserved(backend, dtype, n, m, method, seed):
    p = orthogonal_problem(n, min(n, m), 9, dtype, seed)
    c = backend(of_arrays(hh.forward), p.u, p.h, method=method, **p.options)
    assert_close(np.linalg.norm(c, axis=-1), np.linalg.norm(p.h, axis=-1), dtype)


@given(
    n=st.sampled_from(SIZES), m=st.sampled_from(SIZES), rows=st.integers(1, 40), method=st.sampled_from(METHODS),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_the_transpose_is_the_adjoint_even_for_soft_u_1(backend, dtype, n, m, rows, method, seed):
    p = problem(n, min(n, m), rows, dtype, seed)
    wh = backend(of_arrays(hh.forward), p.u, p.h, method=method, **p.options)
    wg = backend(of_arrays(hh.forward), p.u, p.g, transpose=True, method=method, **p.options)
    left, right = np.vdot(p.g, wh), np.vdot(wg, p.h)
    scale = np.linalg.norm(p.g) * np.linalg.norm(p.h)
    assert abs(left - right) <= 100 * np.finfo(dtype).eps * scale


@pytest.mark.parametrize(("n", "m"), SHAPES)
@real("double")
def test_determinant_of_real_reflections(backend, double, n, m):
    p = problem(n, m, 1, double)
    expected = (-1.0) ** m if m < n else (-1.0) ** (n - 1) * p.u[-1, -1]
    assert np.linalg.det(backend(hh.matrix, p.u)) == pytest.approx(expected, rel=1e-10)


def test_one_reflection_is_its_own_inverse(backend, dtype):
    w = backend(hh.matrix, problem(17, 1, 1, dtype).u)
    assert_close(w @ w, np.eye(17), dtype)


@pytest.mark.parametrize("split", [1, 7, 15])
def test_columns_side_by_side_multiply(backend, dtype, split):
    u = problem(17, 16, 1, dtype).u
    first, second = np.tril(u)[:, :split], u.copy()
    second[:, :split] = 0
    product = backend(hh.matrix, first.copy()) @ backend(hh.matrix, second)
    assert_close(backend(hh.matrix, u), product, dtype)


def test_a_repeated_reflection_is_undone(backend, dtype):
    u = problem(9, 4, 1, dtype).u
    u[:2, 0], u[:, 1], u[:3, 2], u[:, 3] = 0, u[:, 0], 0, u[:, 2]
    u[:2, 1], u[:3, 3] = 0, 0
    assert_close(backend(hh.matrix, u), np.eye(9), dtype)


@pytest.mark.slow_combinations
@pytest.mark.parametrize("distance", [1e-3, 1e-6, 0])
def test_w_is_orthogonal_for_nearly_collinear_columns(backend, dtype, distance):
    rng = np.random.default_rng(0)
    u = (randn(rng, (128, 1), dtype) + distance * randn(rng, (128, 64), dtype)).astype(dtype)
    w = backend(hh.matrix, u)
    assert_close(adjoint(w) @ w, np.eye(128), dtype)
    assert_close(w, reference.matrix(u), dtype)


@pytest.mark.parametrize("m", [1, 4, 8])
def test_unit_vectors_flip_coordinates(backend, dtype, m):
    w = backend(hh.matrix, np.eye(9, m, dtype=dtype))
    assert np.array_equal(w, np.diag(np.where(np.arange(9) < m, -1, 1)))


@given(scales=st.lists(st.floats(1e-20, 1e20).flatmap(lambda s: st.sampled_from([s, -s])), min_size=5, max_size=5))
def test_w_does_not_depend_on_the_scale_of_columns(backend, dtype, scales):
    u = problem(9, 5, 1, dtype).u
    assert_close(backend(hh.matrix, u * np.array(scales, real_of(dtype))), reference.matrix(u), dtype)


def test_the_two_by_two_example_of_theorem_1(backend):
    """``diag(1, -1)`` and I are no product of two reflections, but of one and ``u_1``."""
    for u_1 in (1.0, -1.0):
        w = backend(hh.matrix, np.array([[0.0, 0.0], [1.0, u_1]]))
        assert np.array_equal(w, np.diag([1, -u_1]))


class TestCompactWY:
    """``W = (I - V S V*) D``; the random tester's kind "arrays" draws all sizes of it."""

    @given(n=st.sampled_from(SIZES), m=st.sampled_from(SIZES), seed=st.integers(0, 99))
    def test_t_is_half_of_the_gram_matrix_and_s_its_inverse(self, backend, dtype, n, m, seed):
        p = problem(n, min(n, m), 1, dtype, seed)
        v, t, s = backend(hh.wy, p.u)
        n, k = v.shape
        assert k == (n - 1 if p.u.shape[0] == p.u.shape[1] else p.u.shape[1])
        assert_close(np.linalg.norm(v, axis=0), np.ones(k), dtype)
        assert_close(t + adjoint(t), adjoint(v) @ v, dtype)
        assert np.array_equal(t, np.triu(t))
        assert np.array_equal(s, np.triu(s))
        assert_close(s @ t, np.eye(k), dtype)
        assert np.abs(s).max(initial=0) <= 4 * (1 + 1e-5)

    def test_batches_and_zero_columns(self, backend, dtype):
        u = randn(np.random.default_rng(0), (2, 3, 7, 4), dtype)
        u[1, 1, :, 2] = 0
        v, t, s = backend(hh.wy, u)
        assert v.shape == (2, 3, 7, 4)
        assert t.shape == s.shape == (2, 3, 4, 4)
        assert_close(np.eye(7) - v @ s @ adjoint(v), backend(hh.matrix, u), dtype)


class TestNormalize:
    @pytest.mark.parametrize("scale", [1e-30, 1, 1e30])
    def test_unit_columns_of_the_same_matrix(self, dtype, scale):
        p = problem(9, 9, 1, dtype)
        p.u[:, :-1] *= scale
        unit = hh.normalize(p.u)
        assert unit.dtype == dtype
        assert_close(np.linalg.norm(unit[:, :8], axis=0), np.ones(8), dtype)
        assert np.array_equal(unit, np.tril(unit))
        if dtype.kind == "f":
            assert unit[-1, -1] == p.u[-1, -1]
        assert_close(
            hh.matrix(hh.Reflections(unit, phases=p.phases)), hh.matrix(hh.Reflections(p.u, phases=p.phases)), dtype
        )

    @pytest.mark.parametrize("fraction", [0, 0.25])
    def test_zero_and_subnormal_columns_become_zero(self, dtype, fraction):
        u = np.stack([problem(5, 2, 1, dtype).u] * 2)
        u[1, :, 1] = 0
        u[1, -1, 1] = fraction * np.finfo(dtype).tiny
        unit = hh.normalize(u)
        assert not unit[1, :, 1].any()
        assert_close(np.linalg.norm(unit[:, :, 0], axis=1), np.ones(2), dtype)

    def test_nan_stays(self, dtype):
        u = np.ones((3, 2), dtype)
        u[2, 0] = np.nan
        unit = hh.normalize(u)
        assert np.isnan(unit[:, 0]).any()
        assert not np.isnan(unit[:, 1]).any()


class TestSnap:
    @pytest.mark.parametrize(("u_1", "snapped"), [(0.3, 1), (-2.0, -1), (0.0, -1), (-0.0, -1), (1e-30, 1)])
    def test_u_1_becomes_its_sign(self, u_1, snapped):
        u = np.ones((2, 3, 3))
        u[1, -1, -1] = u_1
        result = hh.snap(u)
        assert result[1, -1, -1] == snapped
        assert u[1, -1, -1] == u_1
        result[1, -1, -1] = u_1
        assert np.array_equal(result, u)

    def test_fewer_reflections_are_copied(self, dtype):
        u = problem(5, 3, 1, dtype).u
        assert np.array_equal(hh.snap(u), u)
        assert not np.shares_memory(hh.snap(u), u)

    def test_nan_stays(self):
        assert np.isnan(hh.snap(np.array([[np.nan]]))).all()


class TestRealForm:
    @pytest.fixture(params=["complex64", "complex128"])
    def parts(self, request):
        rng = np.random.default_rng(0)
        return [randn(rng, shape, request.param) for shape in ((2, 4, 4), (2, 4, 4), (4,), (4, 3))]

    def test_it_is_a_homomorphism(self, parts):
        w, z, h, v = parts
        real = hh.real_form
        assert real(w).dtype == real_of(w.dtype)
        assert_close(real(w) @ real(z), real(w @ z))
        assert_close(real(adjoint(w)), adjoint(real(w)))
        assert_close(real(w) @ real(h, axis=-1), real(w @ h, axis=-1))
        x = np.ones(3, real_of(v.dtype))
        assert_close(real(v, axis=0) @ x, real(v @ x, axis=0))

    def test_a_unitary_matrix_becomes_orthogonal(self, parts):
        q = hh.real_form(np.linalg.qr(parts[0])[0])
        assert_close(adjoint(q) @ q, np.broadcast_to(np.eye(8), q.shape))
