"""The readable implementation against explicit reflections: afterwards it may serve as the oracle."""

import numpy as np
import pytest

from householder import reference
from householder._base.spec import COMPLEX, NONLINEARITIES
from householder.reference import sequence
from tests.conftest import DOUBLES, Problem, assert_close, each_nonlinearity, problem, randn

SHAPES = [(1, 1, 1), (2, 1, 3), (2, 2, 3), (5, 3, 2), (6, 6, 4), (7, 4, 1), (9, 8, 5)]


def explicit_factors(u, phases=None):
    """The n x n factors of W in double precision: a reflection for each column, then the diagonal."""
    n, m = u.shape
    columns = np.tril(u).astype(np.result_type(u.dtype, np.float64))
    diagonal = np.ones(n, columns.dtype)
    if phases is not None:
        diagonal = np.exp(1j * np.asarray(phases, np.float64))
    elif m == n:
        diagonal[-1] = columns[-1, -1]
        columns = columns[:, :-1]
    reflections = [np.eye(n) - 2 * np.outer(v, v.conj()) / np.vdot(v, v).real for v in columns.T]
    return [*reflections, np.diag(diagonal)]


def explicit_matrix(u, phases=None):
    w = np.eye(len(u))
    for factor in explicit_factors(u, phases):
        w = w @ factor
    return w


def explicit_gradients(u, h, g, phases=None, transpose=False):
    """Gradients of u, h, phases by the product rule over explicit factors.

    With ``G = dL/dH_j``, a reflection ``H = I - 2 v v* / |v|^2`` has
    ``dL/dv = -2 (G + G*) v / |v|^2 + 4 Re(v* G v) v / |v|^4``.
    """
    n, m = u.shape
    factors = explicit_factors(u, phases)
    w = explicit_matrix(u, phases)
    grad_h = g @ (w.T if transpose else w.conj())
    grad_w = h.T @ g.conj() if transpose else g.T @ h.conj()
    grad_u = np.zeros(u.shape, w.dtype)
    before = np.eye(n)
    for j, factor in enumerate(factors):
        after = np.eye(n)
        for later in factors[j + 1 :]:
            after = after @ later
        G = before.conj().T @ grad_w @ after.conj().T
        before = before @ factor
        if j < len(factors) - 1:
            v = np.tril(u)[:, j].astype(w.dtype)
            square = np.vdot(v, v).real
            grad_u[:, j] = -2 * (G + G.conj().T) @ v / square + 4 * np.vdot(v, G @ v).real * v / square**2
    if phases is None and m == n:
        grad_u[-1, -1] = G[-1, -1]
    d = np.diagonal(factors[-1])
    grad_phases = None if phases is None else (np.diagonal(G).conj() * 1j * d).real
    return np.tril(grad_u), grad_h, grad_phases


@pytest.fixture(params=DOUBLES)
def double(request):
    return request.param


@pytest.fixture(params=SHAPES, ids=str)
def p(request, double) -> Problem:
    return problem(*request.param, double)


def test_matrix_is_the_product_of_explicit_reflections(p):
    assert_close(reference.matrix(p.u, p.phases), explicit_matrix(p.u, p.phases))


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("forward", [reference.forward, reference.forward_wy])
def test_forward_is_multiplication_by_the_matrix(p, forward, transpose):
    w = explicit_matrix(p.u, p.phases)
    assert_close(forward(p.u, p.h, p.phases, transpose), p.h @ (w.conj() if transpose else w.T))


@pytest.mark.parametrize("transpose", [False, True])
def test_theorem_2_is_the_product_rule(p, transpose):
    expected = explicit_gradients(p.u, p.h, p.g, p.phases, transpose)
    for actual, gradient in zip(reference.backward(p.u, p.h, p.g, p.phases, transpose), expected, strict=True):
        assert (actual is None) == (gradient is None)
        if gradient is not None:
            assert_close(actual, gradient)


def test_algorithm_1_is_theorem_2(p):
    tape = reference.tape(p.u, p.h, p.phases)
    by_algorithm = reference.backward_algorithm_1(p.u, p.h, tape, p.g, p.phases)
    for actual, gradient in zip(by_algorithm, reference.backward(p.u, p.h, p.g, p.phases), strict=True):
        if gradient is not None:
            assert_close(actual, gradient)


def test_a_column_of_subnormal_norm_is_the_identity():
    u = np.array([[1e-45], [3e-45]], np.float32)
    assert np.array_equal(reference.matrix(u), np.eye(2))
    grad_u, _, _ = reference.backward(u, np.ones((1, 2)), np.ones((1, 2)))
    assert not grad_u.any()


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_factor_inverts_matrix(n, double):
    p = problem(n, n, 1, double)
    q = reference.matrix(p.u if p.phases is not None else np.where(np.eye(n) * (n == 1), 1, p.u), p.phases)
    if p.phases is None:
        q = np.linalg.qr(q)[0]
    u, d = reference.factor(q)
    assert_close(reference.matrix(u, None if p.phases is None else np.angle(d)), q)


@each_nonlinearity("double", DOUBLES)
def test_derivatives_of_nonlinearities_are_finite_differences(nonlinearity, double, rng):
    a, g, da = (randn(rng, (4, 6), double) for _ in range(3))
    moduli = NONLINEARITIES[nonlinearity].moduli(6, double in COMPLEX)
    bias = rng.standard_normal(moduli) if NONLINEARITIES[nonlinearity].has_bias else None
    phi = sequence.ReferenceNonlinearity(nonlinearity, 0.3, bias)
    step = 1e-6
    slope = np.vdot(g, phi.forward(a + step * da) - phi.forward(a - step * da)).real / (2 * step)
    grad_a, grad_bias = phi.backward(a, g)
    assert_close(np.vdot(grad_a, da).real, slope, "float32")
    if bias is not None:
        up, down = (phi._replace(bias=bias + sign * step) for sign in (1, -1))
        slopes = (g.conj() * (up.forward(a) - down.forward(a))).real / (2 * step)
        slopes = slopes[:, :3] + slopes[:, 3:] if moduli == 3 else slopes
        assert_close(grad_bias, slopes.sum(axis=0), "float32")
