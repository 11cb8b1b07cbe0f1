"""``ht.factor``, ``ht.frame``, ``ht.haar`` and ``ht.nearest``: from matrices to reflections and back."""

import numpy as np
import pytest
import torch

import householder as hh
import householder.torch as ht
from tests.oracles.torch import DTYPES

SINGLE_AND_DOUBLE = [torch.float32, torch.complex64, *DTYPES]


def product(u, phases=None):
    return ht.matrix(ht.Reflections(u, phases=phases))


@pytest.mark.parametrize("dtype", SINGLE_AND_DOUBLE, ids=str)
@pytest.mark.parametrize("size", [(), (3,), (2, 2)], ids=str)
def test_factors_of_random_matrices(dtype, size):
    factors = ht.haar(6, rng=1, dtype=dtype, size=size)
    u, phases = factors if dtype.is_complex else (factors, None)
    assert u.dtype == dtype
    assert u.shape == (*size, 6, 6 - dtype.is_complex)
    w = ht.matrix(ht.Reflections(u, phases=phases))
    found = ht.factor(w)
    torch.testing.assert_close(product(*found) if dtype.is_complex else product(found), w)


def test_integers_are_the_seeds_that_they_are_in_numpy():
    assert np.array_equal(ht.haar(5, 3, 7, torch.float64).numpy(), hh.haar(5, 3, 7))


def test_by_default_torch_is_the_source():
    torch.manual_seed(0)
    first, other = ht.haar(5), ht.haar(5)
    torch.manual_seed(0)
    assert torch.equal(ht.haar(5), first)
    assert not torch.equal(first, other)
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    assert torch.equal(ht.haar(5, rng=generators[0]), ht.haar(5, rng=generators[1]))
    for rng in (np.random.RandomState(0), np.random.default_rng(0), 7.0):
        with pytest.raises(TypeError, match=r"rng is .*, expected None, an integer or a torch\.Generator"):
            ht.haar(5, rng=rng)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(5, 2), (5, 4), (3, 7, 2), (2, 3, 4, 3)], ids=str)
def test_a_frame_and_its_gradient_are_the_first_columns_of_the_matrix(dtype, shape):
    u = torch.randn(shape, dtype=dtype, requires_grad=True)
    phases = torch.randn(shape[:-1], dtype=torch.float64, requires_grad=True) if dtype.is_complex else None
    wanted = [t for t in (u, phases) if t is not None]
    frame, expected = (
        ht.frame(ht.Reflections(u, phases=phases)),
        ht.matrix(ht.Reflections(u, phases=phases))[..., : shape[-1]],
    )
    torch.testing.assert_close(frame, expected)
    g = torch.randn_like(expected)
    torch.testing.assert_close(torch.autograd.grad(frame, wanted, g), torch.autograd.grad(expected, wanted, g))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_a_frame_of_half_precision(half):
    u = torch.randn(9, 2).to(half)
    assert torch.equal(ht.frame(u), ht.frame(u.float()).to(half))


@pytest.mark.parametrize("r", [1, 5, 31, 32])
def test_householder_product_is_a_frame(r):
    """Ones on the diagonal; the last column of a square one is reflected."""
    param = torch.randn(32, r, dtype=torch.float64)
    u = param.tril(-1) + torch.eye(32, r, dtype=torch.float64)
    tau = 2 / u.square().sum(0)
    if r == 32:
        u[-1, -1] = -1
    torch.testing.assert_close(ht.frame(u), torch.linalg.householder_product(u.tril(-1), tau))


@pytest.mark.parametrize("dtype", SINGLE_AND_DOUBLE, ids=str)
@pytest.mark.parametrize("shape", [(5, 5), (2, 6, 3), (3, 6)], ids=str)
def test_nearest_agrees_with_numpy(dtype, shape):
    a = torch.randn(shape, dtype=dtype)
    torch.testing.assert_close(ht.nearest(a), torch.from_numpy(hh.nearest(a.numpy())))


def test_lazy_views_are_read_as_they_are():
    u, phases = ht.haar(4, dtype=torch.complex128)
    w = ht.matrix(ht.Reflections(u, phases=phases))
    torch.testing.assert_close(product(*ht.factor(w.mH)), w.mH)


def test_half_types_are_refused():
    for function in (ht.factor, ht.nearest):
        with pytest.raises(TypeError, match=r"has dtype torch\.bfloat16, expected one of torch\.float32"):
            function(torch.eye(3, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match=r"dtype is torch\.float16"):
        ht.haar(4, dtype=torch.float16)


@pytest.mark.parametrize("shape", [(8, 3), (8, 8), (64, 16), (5, 1), (1, 1)], ids=str)
def test_torch_householder_has_the_same_frames(shape):
    theirs = pytest.importorskip("torch_householder", reason="torch-householder is not installed")
    v = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).tril(-1)
    v += torch.eye(*shape, dtype=v.dtype)
    expected = theirs.torch_householder_orgqr(v)
    if shape[0] == shape[1]:
        v[-1, -1] = -1  # a reflection there, a number here
    torch.testing.assert_close(ht.frame(v), expected)
