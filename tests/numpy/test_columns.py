"""Columns of full length and a given ``tau``: against products of explicit reflections, by every method."""

import numpy as np
import pytest
import torch
from scipy.linalg import lapack

import householder as hh
from householder import reference
from tests.conftest import METHODS, SEQUENCE_METHODS, assert_close, of_arrays, randn, real
from tests.oracles.torch import exact, of_columns, rnn

SIZES = [(1, 1, 2), (1, 4, 1), (3, 3, 2), (5, 12, 4), (17, 6, 9), (33, 70, 3), (70, 20, 5)]
KINDS = ["own", "reflections", "any"]


def problem(n, m, rows, dtype, kind, form="full"):
    """``u``, ``tau``, ``h`` and a gradient; every third tau of reflections is zero."""
    rng = np.random.default_rng(n * m + rows)
    u, h, g = (randn(rng, size, dtype) for size in ((n, m), (rows, n), (rows, n)))
    v = u if form == "full" else np.tril(u, -1) + np.eye(n, m)
    own = 2 / (np.abs(v.astype(np.result_type(u, float))) ** 2).sum(axis=0)
    tau = None
    if kind == "reflections":
        tau = np.where(np.arange(m) % 3 == 2, 0, own).astype(dtype)
    elif kind == "any":  # small enough that products of many stay of ordinary size
        tau = (randn(rng, m, dtype) * own / 2).astype(dtype)
    return u, tau, h, g


def explicit(u, tau, h, g, form="full", transpose=False):
    """Products with explicit matrices, and their gradients."""

    def function(u, tau, h):
        w = of_columns(u, tau, form)
        return h @ (w.conj() if transpose else w.T)

    return exact(function, g, u, tau, h)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "m", "rows"), SIZES)
def test_full_columns_reflect(dtype, n, m, rows, kind, method):
    u, tau, h, g = problem(n, m, rows, dtype, kind)
    for transpose in (False, True):
        c = of_arrays(hh.forward)(u, h, tau=tau, columns="full", transpose=transpose, method=method)
        assert c.dtype == dtype
        assert_close(c, explicit(u, tau, h, g, transpose=transpose)[0], dtype)
    w, _ = explicit(u, tau, np.eye(n, dtype=dtype), np.eye(n, dtype=dtype))
    assert_close(hh.matrix(hh.Reflections(u, tau, columns="full")), w.T, dtype)


@pytest.mark.parametrize("form", ["full", "trapezoidal"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "m", "rows"), [(3, 3, 2), (5, 12, 4), (9, 4, 3)])
def test_gradients_are_derivatives(double, n, m, rows, kind, form):
    if form == "trapezoidal" and (m > n or kind == "own"):
        pytest.skip("no such columns")
    u, tau, h, g = problem(n, m, rows, double, kind, form)
    for method in METHODS:
        for transpose in (False, True):
            found = of_arrays(hh.backward)(u, h, g, tau=tau, columns=form, transpose=transpose, method=method)
            _, expected = explicit(u, tau, h, g, form, transpose)
            for ours, theirs in zip((found.u, tau if tau is None else found.tau, found.h), expected, strict=True):
                assert (ours is None) == (theirs is None)
                if ours is not None:
                    assert_close(ours, theirs)
            if form == "trapezoidal":
                assert not np.triu(found.u).any()


@pytest.mark.parametrize("kind", KINDS)
def test_methods_agree_on_gradients(dtype, kind):
    u, tau, h, g = problem(70, 90, 130, dtype, kind)
    double = np.result_type(dtype, np.float64)
    exact = (None if a is None else a.astype(double) for a in (u, h, g, tau))
    u64, h64, g64, tau64 = exact
    expected = hh.backward(hh.Reflections(u64, tau64, columns="full"), h64, g64, method="reflections")
    for method in METHODS:
        for found, wanted in zip(
            hh.backward(hh.Reflections(u, tau, columns="full"), h, g, method=method), expected, strict=True
        ):
            assert np.abs(found - wanted).max() <= 400 * np.finfo(dtype).eps * np.abs(wanted).max()


def test_many_matrices_broadcast(dtype):
    rng = np.random.default_rng(0)
    u, h, g = randn(rng, (3, 2, 7, 9), dtype), randn(rng, (3, 1, 7), dtype), randn(rng, (3, 2, 7), dtype)
    tau = (randn(rng, (3, 2, 9), dtype) / 9).astype(dtype)
    w = hh.matrix(hh.Reflections(u, tau, columns="full"))
    c = hh.forward(hh.Reflections(u, tau, columns="full"), h)
    found = hh.backward(hh.Reflections(u, tau, columns="full"), h, g)
    for i in np.ndindex(3, 2):
        value, (grad_u, grad_tau, _) = explicit(u[i], tau[i], h[i[0], 0], g[i])
        assert_close(c[i], value, dtype)
        assert_close(w[i] @ h[i[0], 0], value, dtype)
        assert_close(found.u[i], grad_u, dtype)
        assert_close(found.tau[i], grad_tau, dtype)


def test_full_columns_without_entries_above_the_diagonal_are_trapezoidal_ones(dtype):
    u, _, h, g = problem(9, 5, 4, dtype, "own")
    u = np.tril(u)
    for method in METHODS:
        assert_close(hh.forward(hh.Reflections(u, columns="full"), h, method=method), hh.forward(u, h, method=method))
        full, usual = (hh.backward(hh.Reflections(u, columns=s), h, g, method=method) for s in ("full", "trapezoidal"))
        assert_close(np.tril(full.u), usual.u, dtype)


@pytest.mark.parametrize("size", [(5, 5), (9, 4), (40, 40), (80, 33)])
def test_what_geqrf_gives_is_applied_as_it_is(dtype, size):
    x = randn(np.random.default_rng(0), size, dtype)
    geqrf = lapack.get_lapack_funcs("geqrf", [x])
    a, tau, _, _ = geqrf(x)
    q = np.linalg.qr(x, mode="complete")[0]
    for method in METHODS:
        c = hh.forward(hh.Reflections(a, tau), np.eye(len(x), dtype=dtype), method=method)
        assert_close(c.T, q, dtype)
    assert_close(hh.matrix(hh.Reflections(a, tau)), q, dtype)


@real("dtype")
def test_the_form_of_lapack_goes_both_ways(dtype):
    u = randn(np.random.default_rng(0), (6, 4), dtype)
    a, tau = hh.to_lapack(u)
    assert_close(hh.matrix(hh.Reflections(a, tau)), hh.matrix(u))


def test_a_tau_of_zero_is_the_identity_and_has_a_gradient(double):
    u, _, h, g = problem(6, 3, 4, double, "own")
    tau = np.zeros(3, double)
    for method in METHODS:
        assert np.array_equal(hh.forward(hh.Reflections(u, tau, columns="full"), h, method=method), h)
        found = hh.backward(hh.Reflections(u, tau, columns="full"), h, g, method=method)
        assert not found.u.any()
        assert np.allclose(found.tau, -((g @ u.conj()) * (h @ u.conj()).conj()).sum(axis=0))


@pytest.mark.parametrize("method", SEQUENCE_METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_sequences(double, kind, method):
    u, tau, x, g = problem(6, 8, 12, double, kind)
    options = {"tau": tau, "columns": "full", "nonlinearity": "tanh" if double.kind == "f" else "identity"}
    x, g = x.reshape(4, 3, 6), g.reshape(4, 3, 6)
    expected, (grad_u, grad_tau) = exact(
        lambda u, tau: rnn(u, torch.from_numpy(x), **(options | {"tau": tau}))[0], g, u, tau
    )
    (h, _), vjp = of_arrays(hh.rnn_vjp)(u, x, method=method, **options)
    assert_close(h, expected, double)
    grads = vjp(g)
    assert_close(grads.u, grad_u)
    assert (grads.tau is None) == (grad_tau is None)
    if tau is not None:
        assert_close(grads.tau, grad_tau)


def test_phases_go_with_full_columns():
    u, _, h, g = problem(5, 7, 3, np.complex128, "own")
    phases = np.linspace(-1, 1, 5)
    expected, _ = explicit(u, None, h * np.exp(1j * phases), g)
    assert_close(hh.forward(hh.Reflections(u, phases=phases, columns="full"), h), expected)
    assert hh.backward(hh.Reflections(u, phases=phases, columns="full"), h, g).phases.shape == (5,)


def test_a_tape_is_of_trapezoidal_columns():
    h = np.ones(3)
    with pytest.raises(ValueError, match="tape is for trapezoidal columns"):
        hh.backward(hh.Reflections(np.ones((3, 2)), np.ones(2)), h, h, tape=np.ones((3, 3)))


def test_the_reference_agrees_on_trapezoidal_columns(double):
    u = np.tril(randn(np.random.default_rng(0), (6, 4), double))
    assert_close(hh.matrix(hh.Reflections(u, columns="full")), reference.matrix(u))
