"""Many small matrices in one call."""

import numpy as np

import householder as hh
from householder import reference
from tests.conftest import assert_close, randn


def test_a_thousand_small_matrices_are_each_right(backend):
    rng = np.random.default_rng(0)
    u = rng.standard_normal((1024, 32, 8)).astype(np.float32)
    h, g = (rng.standard_normal((1024, 32)).astype(np.float32) for _ in range(2))
    w, c, grads = backend(hh.matrix, u), backend(hh.forward, u, h), backend(hh.backward, u, h, g)
    for i in range(0, 1024, 31):
        assert_close(w[i], reference.matrix(u[i]))
        assert_close(c[i], reference.forward(u[i], h[i]))
        grad_u, grad_h, _ = reference.backward(u[i], h[i], g[i])
        assert_close(grads.u[i], grad_u)
        assert_close(grads.h[i], grad_h)


def test_a_matrix_of_nan_spoils_no_other(backend, dtype):
    """Problems of a thread share their workspace."""
    rng = np.random.default_rng(0)
    u, h, g = (randn(rng, shape, dtype) for shape in ((64, 13, 5), (64, 13), (64, 13)))
    spoilt, bad = u.copy(), np.arange(64) % 3 == 1
    spoilt[bad, -1] = np.nan
    results = []
    for a in (spoilt, u):
        grads = backend(hh.backward, a, h, g)
        results.append([backend(hh.matrix, a), backend(hh.forward, a, h), grads.h, grads.u])
    for found, undisturbed in zip(*results, strict=True):
        assert np.array_equal(found[~bad], undisturbed[~bad])
        assert np.isnan(found[bad]).any()
