"""``frame`` forms the first columns of the product, ``nearest`` the closest orthonormal columns."""

import numpy as np
import pytest

import householder as hh
from tests.conftest import COMPLEX_DTYPES, assert_close, of_arrays, problem, randn


def adjoint(w):
    return np.swapaxes(w, -1, -2).conj()


@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 1), (5, 2), (5, 3), (6, 6), (70, 8)])
def test_a_frame_is_the_first_columns_of_the_matrix(backend, dtype, n, m):
    p = problem(n, m, 1, dtype)
    assert_close(
        backend(of_arrays(hh.frame), p.u, phases=p.phases),
        hh.matrix(hh.Reflections(p.u, phases=p.phases))[:, : p.u.shape[1]],
    )


def test_frames_of_a_batch(backend, dtype):
    u = randn(np.random.default_rng(0), (2, 3, 9, 2), dtype)
    assert_close(backend(hh.frame, u), hh.matrix(u)[..., :2])


@pytest.mark.parametrize("dtype", COMPLEX_DTYPES)
@pytest.mark.parametrize("function", [hh.matrix, hh.frame])
def test_each_matrix_may_have_phases_of_its_own(backend, dtype, function):
    rng = np.random.default_rng(0)
    u, phases = randn(rng, (3, 9, 2), np.dtype(dtype)), rng.standard_normal((3, 9)).astype(dtype).real
    function = of_arrays(function)
    expected = np.stack([function(a, phases=p) for a, p in zip(u, phases, strict=True)])
    assert_close(backend(function, u, phases=phases), expected)


def test_the_last_column_of_a_square_frame_has_the_sign_that_lapack_fixes():
    u = hh.haar(6, rng=0)
    u[-1, -1] = -1.0
    a, tau = hh.to_lapack(u)
    lapack = pytest.importorskip("scipy.linalg.lapack")
    assert_close(hh.frame(u), lapack.dorgqr(a, tau)[0])


@pytest.mark.parametrize("shape", [(5, 5), (7, 3), (3, 7), (2, 3, 6, 4), (0, 4, 4)])
def test_the_nearest_frame_is_the_polar_factor(backend, dtype, shape):
    a = randn(np.random.default_rng(0), shape, dtype)
    q = backend(hh.nearest, a)
    if shape[-2] < shape[-1]:
        q, a = adjoint(q), adjoint(a)
    p = adjoint(q) @ a
    assert_close(q @ p, a)
    assert_close(p, adjoint(p))
    assert (np.linalg.eigvalsh(p) > 0).all()


def test_an_orthogonal_matrix_is_nearest_to_itself(dtype):
    u = hh.haar(9, 8, rng=0, dtype=dtype)
    assert_close(hh.nearest(hh.matrix(u)), hh.matrix(u))
