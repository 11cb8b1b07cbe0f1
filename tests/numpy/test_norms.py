"""A column is the identity if its norm is zero or subnormal, however it is applied, differentiated or normalised."""

import importlib
import math
import random

import numpy as np
import pytest

import householder as hh
from householder import reference
from tests.conftest import DTYPES

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")


def columns(rng, n, m, dtype):
    """Reflections of lengths between the smallest and the largest numbers, some close to the smallest normal one."""
    dtype = np.dtype(dtype)
    real = np.finfo(dtype)
    low, high = math.log2(float(real.smallest_subnormal)), math.log2(float(real.max)) - 2
    u = np.empty((n, m), dtype)
    for j in range(m):
        exponent = rng.choice([rng.uniform(low, high), rng.uniform(-3, 3) + math.log2(float(real.tiny)), 0.0])
        direction = np.array([rng.gauss(0, 1) + 1j * rng.gauss(0, 1) for _ in range(n)])
        direction = direction if dtype.kind == "c" else direction.real
        half = exponent / 2
        u[:, j] = (direction / np.linalg.norm(direction) * 2.0**half * 2.0 ** (exponent - half)).astype(dtype)
    return np.tril(u)


def cases(count, dtype):
    rng = random.Random(dtype)
    for _ in range(count):
        n = rng.randint(2, 40)
        yield columns(rng, n, rng.randint(1, min(n - 1, 6)), dtype)


def identities(u):
    """Which columns are the identity: exact sums of squares of integers times a power of two."""
    parts = np.stack([u.real, u.imag]).astype(np.float64)
    smallest = float(np.finfo(u.dtype).tiny)
    with np.errstate(over="ignore"):
        return [math.hypot(*(column / smallest).ravel()) < 1 for column in np.moveaxis(parts, -1, 0)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_and_array_functions_agree(dtype):
    for u in cases(300, dtype):
        w = hh.matrix(u)
        eps = 100 * np.finfo(u.dtype).eps
        assert np.allclose(w, reference.matrix(u), atol=eps, rtol=0), u
        assert np.allclose(w, hh.matrix(hh.normalize(u)), atol=eps, rtol=0), u
        assert [not v.any() for v in hh.normalize(u).T] == identities(u)
        assert [not v.any() for v in hh.wy(u).v.T] == identities(u)


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_expressions_and_renormalisation_agree_with_the_kernels(dtype):
    torch = pytest.importorskip("torch")
    ht = pytest.importorskip("householder.torch")
    expressions = importlib.import_module("householder.torch._base.expressions")
    decomposed = ht.decompositions()[torch.ops.householder.matrix.default]
    for case in cases(150, dtype):
        u = torch.from_numpy(case)
        eps = 100 * torch.finfo(u.dtype).eps
        w = ht.matrix(u)
        assert torch.allclose(expressions.matrix(u), w, atol=eps, rtol=0), case
        assert torch.allclose(decomposed(u, False)[0], w, atol=eps, rtol=0), case
        assert torch.allclose(ht.matrix(ht.renormalize_(u.clone())), w, atol=eps, rtol=0), case


@pytest.mark.parametrize("dtype", DTYPES)
def test_derivatives_of_expressions_agree_with_the_kernels(dtype):
    """First derivatives in both modes; second ones where columns are as long as ordinary ones."""
    torch = pytest.importorskip("torch")
    ht = pytest.importorskip("householder.torch")
    expressions = importlib.import_module("householder.torch._base.expressions")
    for case in cases(40, dtype):
        u = torch.from_numpy(case)
        n = len(u)
        torch.manual_seed(0)
        g = torch.randn(n, n, dtype=u.dtype)
        ordinary = (np.abs(case).max(0) > 1e-18) & (np.abs(case).max(0) < 1e18)
        lengths = torch.from_numpy(np.where(ordinary, np.linalg.norm(np.where(ordinary, case, 0), axis=0), 0))
        kernel, expression = (
            torch.autograd.grad((g * f(leaf)).sum().real, leaf)[0]
            for f, leaf in (
                (ht.matrix, u.clone().requires_grad_()),
                (expressions.matrix, u.clone().requires_grad_()),
            )
        )
        eps = 1e4 * torch.finfo(u.dtype).eps
        for j in range(u.shape[1]):
            if ordinary[j]:
                assert torch.allclose(kernel[:, j] * lengths[j], expression[:, j] * lengths[j], atol=eps, rtol=0), case
        assert not torch.isnan(expression).any()
        tangent = (torch.randn(n, u.shape[1], dtype=u.dtype) * lengths).tril()
        _, moved = torch.func.jvp(ht.matrix, (u,), (tangent,))
        pushed = hh.jvp(case, np.eye(n, dtype=case.dtype), tangent.numpy(), np.zeros((n, n), case.dtype)).T
        assert np.allclose(moved.numpy(), pushed, atol=eps, rtol=0), case


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fraction", [0, 0.5])
def test_vanishing_columns_have_no_gradient_in_any_formula(dtype, fraction):
    torch = pytest.importorskip("torch")
    ht = pytest.importorskip("householder.torch")
    expressions = importlib.import_module("householder.torch._base.expressions")
    dtype = getattr(torch, dtype)
    u = torch.randn(5, 3, dtype=dtype, generator=torch.Generator().manual_seed(0)).tril()
    u[:, 1] = 0
    u[2, 1] = fraction * torch.finfo(dtype).tiny
    without, h = u[:, [0, 2]], torch.randn(4, 5, dtype=dtype)
    table, options = ht.decompositions(), (None, False, False, "auto", "full")
    decomposed = table[torch.ops.householder.apply.default]
    for function in (
        lambda u: ht.apply(ht.Reflections(u, columns="full"), h),
        lambda u: expressions.apply(u, h, False, None, "full"),
        lambda u: decomposed(u, h, *options)[0],
        lambda u: torch.ops.householder.apply(u, h, *options)[0],
    ):
        leaf = u.clone().requires_grad_()
        result = function(leaf)
        torch.testing.assert_close(result, ht.apply(ht.Reflections(without, columns="full"), h))
        (found,) = torch.autograd.grad(result.abs().square().sum() + result.real.sum(), leaf)
        assert not found[:, 1].any()
        assert found.isfinite().all()


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_column_of_subnormal_entries_and_normal_norm_reflects_in_every_derivative(dtype):
    torch = pytest.importorskip("torch")
    ht = pytest.importorskip("householder.torch")
    u = torch.full((33, 1), 9e-39, dtype=getattr(torch, dtype))
    eye = torch.eye(33, dtype=u.dtype)
    forward = torch.func.jvp(lambda h: ht.apply(u, h), (eye,), (eye,))[1]
    assert torch.allclose(forward, ht.apply(u, eye), atol=1e-5)
    assert not torch.allclose(ht.apply(u, eye), eye, atol=1e-2)


@pytest.mark.parametrize(("dtype", "size"), [("complex64", 1e-40), ("complex128", 5e-324), ("complex128", 1e-310)])
def test_renormalising_vanishing_complex_columns_makes_them_zero(dtype, size):
    torch = pytest.importorskip("torch")
    ht = pytest.importorskip("householder.torch")
    u = torch.full((4, 2), size, dtype=getattr(torch, dtype))
    assert torch.equal(ht.renormalize_(u), torch.zeros(4, 2, dtype=u.dtype))
