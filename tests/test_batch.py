"""Many small matrices in one call."""

import numpy as np

import householder as hh
from conftest import assert_close, randn
from householder import reference


def test_a_thousand_small_matrices_are_each_right():
    rng = np.random.default_rng(0)
    u = rng.standard_normal((1024, 32, 8)).astype(np.float32)
    h, g = (rng.standard_normal((1024, 32)).astype(np.float32) for _ in range(2))
    w, c, grads = hh.matrix(u), hh.forward(u, h), hh.backward(u, h, g)
    for i in range(0, 1024, 31):
        assert_close(w[i], reference.matrix(u[i]))
        assert_close(c[i], reference.forward(u[i], h[i]))
        grad_u, grad_h, _ = reference.backward(u[i], h[i], g[i])
        assert_close(grads.u[i], grad_u)
        assert_close(grads.h[i], grad_h)


def test_a_matrix_of_nan_spoils_no_other(dtype):
    """Problems of a thread share their workspace."""
    rng = np.random.default_rng(0)
    u, h, g = (randn(rng, shape, dtype) for shape in ((64, 13, 5), (64, 13), (64, 13)))
    spoilt, bad = u.copy(), np.arange(64) % 3 == 1
    spoilt[bad, -1] = np.nan
    for of in (hh.matrix, lambda u: hh.forward(u, h), lambda u: hh.backward(u, h, g).h):
        assert np.array_equal(of(spoilt)[~bad], of(u)[~bad])
        assert np.isnan(of(spoilt)[bad]).any()
    assert np.array_equal(hh.backward(spoilt, h, g).u[~bad], hh.backward(u, h, g).u[~bad])
