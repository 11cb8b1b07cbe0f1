"""LAPACK's reflectors and ours describe the same products."""

import numpy as np
import pytest
from scipy.linalg import lapack

import householder as hh
from householder import reference
from tests.conftest import assert_close, problem


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return np.dtype(request.param)


@pytest.fixture(params=[(1, 1), (4, 1), (5, 3), (9, 9), (33, 16)], ids=str)
def x(request, dtype):
    """A matrix to decompose."""
    return np.random.default_rng(0).standard_normal(request.param).astype(dtype)


def test_qr_of_numpy(x):
    a, tau = np.linalg.qr(x, mode="raw")
    u = hh.from_lapack(a.T, tau)
    assert u.dtype == x.dtype
    assert_close(hh.matrix(u), np.linalg.qr(x, mode="complete")[0])


def test_round_trip_through_qr(x):
    a, tau = (b.astype(x.dtype) for b in np.linalg.qr(x, mode="raw"))
    back, back_tau = hh.to_lapack(hh.from_lapack(a.T, tau))
    assert_close(np.tril(back, -1), np.tril(a.T, -1))
    assert_close(back_tau, tau)


def test_orgqr_multiplies_the_same_reflectors(dtype):
    u = problem(9, 9, 1, dtype).u
    u[-1, -1] = -1
    a, tau = hh.to_lapack(u)
    orgqr = lapack.get_lapack_funcs("orgqr", [a])
    q, _, info = orgqr(a, tau)
    assert info == 0
    assert_close(q, reference.matrix(u), dtype)


def test_torch_decomposes_and_multiplies_the_same_reflectors(x):
    torch = pytest.importorskip("torch")
    a, tau = torch.geqrf(torch.from_numpy(x))
    u = hh.from_lapack(a.numpy(), tau.numpy())
    m = u.shape[1]
    assert_close(hh.matrix(u)[:, :m], torch.linalg.householder_product(a, tau).numpy(), x.dtype)
    back = (torch.from_numpy(b) for b in hh.to_lapack(u))
    assert_close(torch.linalg.householder_product(*back).numpy(), hh.matrix(u)[:, :m], x.dtype)


def test_a_published_example():
    """Of Paddle's documentation of ``householder_product``."""
    a = np.array(
        [[-1.1280, 0.9012, -0.0190], [0.3699, 2.2133, -1.4792], [0.0308, 0.3361, -3.1761], [-0.0726, 0.8245, -0.3812]]
    )
    tau = 2 / (np.tril(a, -1) ** 2 + np.eye(4, 3)).sum(axis=0)
    assert np.allclose(tau, [1.7497, 1.1156, 1.7462], atol=2e-4)
    q = [
        [-0.74969995, -0.02181768, 0.31115776],
        [-0.64721400, -0.12367040, -0.21738708],
        [-0.05389076, -0.37562513, -0.84836429],
        [0.12702822, -0.91822824, 0.36892811],
    ]
    assert np.allclose(hh.matrix(hh.from_lapack(a, tau))[:, :3], q, atol=2e-4)


def test_scale_of_columns_does_not_matter(dtype):
    u = problem(7, 4, 1, dtype).u
    for tiny, plain in zip(hh.to_lapack(u * dtype.type(1e-30)), hh.to_lapack(u), strict=True):
        assert_close(tiny, plain)


def test_batches(dtype):
    u = np.random.default_rng(0).standard_normal((2, 3, 6, 4)).astype(dtype)
    a, tau = hh.to_lapack(u)
    assert a.shape == (2, 3, 6, 4)
    assert tau.shape == (2, 3, 4)
    assert_close(hh.matrix(hh.from_lapack(a, tau)), hh.matrix(u))


def test_identities_have_tau_zero(dtype):
    u = problem(5, 5, 1, dtype).u
    u[:, 2] = 0
    u[-1, -1] = 1
    a, tau = hh.to_lapack(u)
    assert np.array_equal(tau == 0, [False, False, True, False, True])
    assert np.array_equal(np.diagonal(a), np.ones(5))
    assert_close(hh.matrix(hh.from_lapack(a, tau)), hh.matrix(u))


def test_what_lapack_cannot_express_is_refused():
    u = np.ones((3, 3))
    u[1, 1] = 0
    with pytest.raises(ValueError, match=r"u has the diagonal .* expected no zeros"):
        hh.to_lapack(u)
    u[1, 1], u[2, 2] = 1, 0.5
    with pytest.raises(ValueError, match=r"u_1 is 0\.5, expected 1 or -1"):
        hh.to_lapack(u)
    with pytest.raises(ValueError, match="u has dtype complex128"):
        hh.to_lapack(np.ones((3, 2), complex))


def test_what_no_reflection_can_express_is_refused():
    a = np.ones((3, 2))
    with pytest.raises(ValueError, match=r"tau is .* expected 0 or 2 / \|v\|\^2"):
        hh.from_lapack(a, np.array([0.5, 1.0]))
    with pytest.raises(ValueError, match=r"tau has shape \(3,\), expected \(2,\)"):
        hh.from_lapack(a, np.ones(3))
    with pytest.raises(ValueError, match=r"a has shape \(3,\)"):
        hh.from_lapack(a[:, 0], np.ones(3))
    with pytest.raises(TypeError, match="tau has dtype float32 but"):
        hh.from_lapack(a, np.ones(2, np.float32))
