"""Forward mode: against finite differences, against the gradients, and beneath a second derivative."""

import numpy as np
import pytest

import householder as hh
from tests.conftest import assert_close, of_arrays, problem, randn, real_of

SHAPES = [(1, 1), (2, 1), (5, 5), (9, 4), (17, 16), (33, 33), (40, 8)]


def tangents(p, seed=0):
    """Random directions of u, h and, where there are any, the phases."""
    rng = np.random.default_rng([seed, *p.u.shape])
    options = {}
    if p.phases is not None:
        options["tangent_phases"] = rng.standard_normal(p.phases.shape).astype(p.phases.dtype)
    return randn(rng, p.u.shape, p.u.dtype), randn(rng, p.h.shape, p.h.dtype), options


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_jvp_is_the_derivative(backend, double, n, m, transpose):
    p = problem(n, m, 3, double)
    u, h, options = tangents(p)

    def moved(step):
        phases = {} if p.phases is None else {"phases": p.phases + step * options["tangent_phases"]}
        return of_arrays(hh.forward)(p.u + step * u, p.h + step * h, transpose=transpose, **phases)

    step = 1e-6
    expected = (moved(step) - moved(-step)) / (2 * step)
    actual = backend(of_arrays(hh.jvp), p.u, p.h, u, h, transpose=transpose, **p.options, **options)
    assert np.abs(actual - expected).max() < 1e-7 * max(1, np.abs(expected).max())


def test_columns_of_any_norm(backend, dtype):
    p = problem(9, 4, 3, dtype)
    tangent_u, tangent_h, options = tangents(p)
    expected = backend(of_arrays(hh.jvp), p.u, p.h, tangent_u, tangent_h, **p.options, **options)
    largest = real_of(dtype).type(np.finfo(dtype).max ** 0.9)
    for scale in (largest, 1 / largest):
        actual = backend(of_arrays(hh.jvp), p.u * scale, p.h, tangent_u * scale, tangent_h, **p.options, **options)
        assert_close(actual, expected)


def test_many_matrices_broadcast(backend, dtype):
    p = problem(9, 4, 1, dtype)
    rng = np.random.default_rng(0)
    u, tangent_u = (randn(rng, (3, 1, *p.u.shape), dtype) for _ in range(2))
    h, tangent_h = (randn(rng, (2, 9), dtype) for _ in range(2))
    together = backend(hh.jvp, u, h, tangent_u, tangent_h)
    assert together.shape == hh.forward(u, h).shape == (3, 2, 9)
    for i in range(3):
        assert_close(together[i], hh.jvp(u[i, 0], h, tangent_u[i, 0], tangent_h))


def test_a_zero_column_does_not_move(dtype):
    p = problem(9, 4, 3, dtype)
    p.u[:, 2] = 0
    tangent_u = np.zeros_like(p.u)
    tangent_u[:, 2] = 1
    options = {} if p.phases is None else {"tangent_phases": np.zeros(9, real_of(dtype))}
    assert not np.any(of_arrays(hh.jvp)(p.u, p.h, tangent_u, np.zeros_like(p.h), **p.options, **options))


def test_tangents_have_the_shapes_of_their_arguments():
    u, h = np.ones((4, 2)), np.ones(4)
    with pytest.raises(ValueError, match=r"tangent_u has shape \(4, 1\), expected \(4, 2\)"):
        hh.jvp(u, h, u[:, :1], h)
    with pytest.raises(ValueError, match=r"tangent_h has shape \(1, 4\), expected \(4,\)"):
        hh.jvp(u, h, u, h[None])
    with pytest.raises(ValueError, match="only one of W's phases and tangent_phases is given"):
        hh.jvp(hh.Reflections(u + 0j, phases=np.zeros(4)), h + 0j, u + 0j, h + 0j)
