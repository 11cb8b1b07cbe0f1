"""``ht.apply`` and ``ht.matrix``: values, layouts, types and refusals."""

import numpy as np
import pytest
import torch

import householder.torch as ht
from householder._base.spec import METHODS
from tests.conftest import of_arrays
from tests.oracles.torch import DTYPES, explicit_matrix, problem

SHAPES = [(1, 1), (2, 1), (2, 2), (5, 3), (6, 6), (33, 17), (64, 63)]


def size(dtype, n, m):
    """Complex m is at most n - 1, and n at least 2."""
    return (max(n, 2), max(1, min(m, n - 1))) if dtype.is_complex else (n, m)


def phases_of(u):
    return torch.linspace(-1, 2, len(u), dtype=torch.float64) if u.is_complex() else None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_apply_multiplies_by_the_product_of_reflections(dtype, n, m, method):
    u, h = problem(*size(dtype, n, m), 7, dtype=dtype)
    options = {"phases": phases_of(u), "method": method}
    w = explicit_matrix(u, options["phases"])
    torch.testing.assert_close(of_arrays(ht.apply)(u, h, **options), h @ w.mT)
    torch.testing.assert_close(of_arrays(ht.apply)(u, h, transpose=True, **options), h @ w.conj())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_matrix_is_the_product_of_reflections(dtype, n, m):
    u, _ = problem(*size(dtype, n, m), dtype=dtype)
    torch.testing.assert_close(ht.matrix(ht.Reflections(u, phases=phases_of(u))), explicit_matrix(u, phases_of(u)))


@pytest.mark.slow_combinations
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m"), [(8, 3), (70, 9), (130, 130)])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("method", METHODS[1:])
def test_what_an_application_keeps_serves_again(dtype, n, m, transpose, method):
    n, m = size(dtype, n, m)
    u, h = torch.randn(n, m, dtype=dtype, requires_grad=True), torch.randn(200, n, dtype=dtype, requires_grad=True)
    grad = torch.randn(200, n, dtype=dtype)
    w = explicit_matrix(u)
    expected = torch.autograd.grad(h @ (w.conj() if transpose else w.mT), (u, h), grad)
    c = of_arrays(ht.apply)(u, h, transpose=transpose, method=method)
    for _ in range(2):
        torch.testing.assert_close(torch.autograd.grad(c, (u, h), grad, retain_graph=True), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m"), [*SHAPES, (32, 8), (70, 9), (100, 100)])
def test_gradients_of_many_matrices(dtype, n, m):
    n, m = size(dtype, n, m)
    u = torch.randn(3, n, m, dtype=dtype, requires_grad=True)
    grad = torch.randn(3, n, n, dtype=dtype)
    expected = torch.autograd.grad(torch.stack([explicit_matrix(each) for each in u]), u, grad)
    w = ht.matrix(u)
    for _ in range(2):  # what the forward pass keeps serves again
        torch.testing.assert_close(torch.autograd.grad(w, u, grad, retain_graph=True), expected)


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_batch(method):
    u, h = (t.requires_grad_() for t in problem(5, 3, 2, 0))
    c = ht.apply(u, h, method=method)
    assert c.shape == (2, 0, 5)
    c.sum().backward()
    assert torch.equal(u.grad, torch.zeros_like(u))


@pytest.mark.parametrize(
    ("matrices", "vectors"),
    [
        ((), ()),
        ((), (2, 3)),
        ((3,), (3,)),
        ((3,), (2, 3)),
        ((3, 1), (3, 4)),
        ((2, 1, 3), (4, 1)),
        ((3,), ()),
        ((1, 1), (3, 2)),
        ((0,), (2, 1)),
    ],
)
def test_leading_axes_broadcast(matrices, vectors):
    n, m = 4, 2
    u = torch.randn(*matrices, n, m, dtype=torch.float64, requires_grad=True)
    h = torch.randn(*vectors, n, dtype=torch.float64, requires_grad=True)
    c = ht.apply(u, h)
    expected = torch.einsum("...ij,...j->...i", ht.matrix(u), h)
    torch.testing.assert_close(c, expected)
    g = torch.randn_like(c)
    torch.testing.assert_close(torch.autograd.grad(c, (u, h), g), torch.autograd.grad(expected, (u, h), g))


def layouts(t):
    """The same numbers, laid out in other ways."""
    wide = torch.full((*t.shape[:-1], 2 * t.shape[-1] + 1), torch.nan, dtype=t.dtype)
    wide[..., 1::2] = t
    yield wide[..., 1::2]
    yield t.mT.contiguous().mT
    yield torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape)
    yield t.flip(0).flip(0)
    yield torch.complex(torch.zeros_like(t), -t).conj().imag  # negated lazily


@pytest.mark.parametrize("which", range(5))
def test_any_layout_gives_the_same_result(which):
    u, h = problem(6, 4, 5)
    laid_u, laid_h = list(layouts(u))[which], list(layouts(h))[which]
    g = torch.randn(5, 6, dtype=torch.float64)
    laid_g = list(layouts(g))[which]

    def run(u, h, g):
        u, h = u.detach().requires_grad_(), h.detach().requires_grad_()
        c = ht.apply(u, h)
        return c, *torch.autograd.grad(c, (u, h), g)

    for ours, expected in zip(run(laid_u, laid_h, laid_g), run(u, h, g), strict=True):
        assert torch.equal(ours, expected)


def test_expanded_tensors():
    u, h = problem(5, 2)
    c = ht.apply(u.expand(3, 5, 2), h.expand(4, 3, 5))
    torch.testing.assert_close(c, (explicit_matrix(u) @ h).expand(4, 3, 5))
    u.requires_grad_()
    ht.apply(u, h).sum().backward()  # an expanded gradient
    (expected,) = torch.autograd.grad((explicit_matrix(u) @ h).sum(), u)
    torch.testing.assert_close(u.grad, expected)


def test_conjugate_views():
    u, h = problem(5, 2, 3, dtype=torch.complex128)
    torch.testing.assert_close(ht.apply(u.conj(), h.conj()), h.conj() @ explicit_matrix(u).conj().mT)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_vectors_are_computed_with_in_float32_and_come_back_in_kind(half):
    u, h = problem(32, 8, 5, dtype=torch.float32)
    h = h.to(half)
    u.requires_grad_()
    h.requires_grad_()
    c = ht.apply(u, h)
    assert c.dtype == half
    assert torch.equal(c, ht.apply(u, h.float()).to(half))
    c.float().square().sum().backward()
    assert (u.grad.dtype, h.grad.dtype) == (torch.float32, half)
    assert ht.apply(u.to(half), h).dtype == half
    assert ht.matrix(u.to(half)).dtype == half


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing_but_the_type_of_half_inputs(half):
    u, h = problem(16, 4, 5, dtype=torch.float32)
    u.requires_grad_()
    linear = torch.nn.Linear(16, 16)
    with torch.autocast("cpu", half):
        c = ht.apply(u, h)
        assert c.dtype == torch.float32
        mixed = ht.apply(u, linear(h))
        assert mixed.dtype == half
        (grad,) = torch.autograd.grad(c.square().sum(), u, create_graph=True)
        (second,) = torch.autograd.grad(grad.sin().sum(), u)
    assert torch.equal(c, ht.apply(u, h))
    mixed.float().sum().backward()
    assert second.dtype == torch.float32


def test_results_are_new_and_inputs_untouched():
    u, h = problem(5, 2, 3)
    before = u.clone(), h.clone()
    c = ht.apply(torch.zeros(5, 2, dtype=torch.float64), h)
    assert torch.equal(c, h)
    c.add_(1)
    assert torch.equal(u, before[0])
    assert torch.equal(h, before[1])


@pytest.mark.parametrize(
    ("u", "h", "message"),
    [
        (
            torch.ones(3, 1, dtype=torch.float64),
            torch.ones(3, dtype=torch.bfloat16),
            "h has dtype torch.bfloat16 but u has dtype torch.float64",
        ),
        (torch.ones(3, 1), torch.ones(3, device="meta"), "h is on meta but u is on cpu"),
        (torch.ones(3, 1), np.ones(3), "h is a numpy.ndarray, expected a torch.Tensor"),
        ([[1.0]], torch.ones(1), "u is a list, expected a torch.Tensor"),
    ],
)
def test_types_that_do_not_fit(u, h, message):
    with pytest.raises(TypeError, match=message):
        ht.apply(u, h)


def test_meta_tensors_have_shapes_only():
    c = ht.apply(torch.ones(2, 5, 3, device="meta"), torch.ones(4, 2, 5, device="meta"))
    assert (c.shape, c.device.type) == ((4, 2, 5), "meta")


def test_derivatives_of_meta_tensors_have_shapes_only():
    u, h = torch.ones(5, 3, device="meta"), torch.ones(4, 5, device="meta")
    c, tangent = torch.func.jvp(ht.apply, (u, h), (u, h))
    assert c.shape == tangent.shape == (4, 5)
    u.requires_grad_()
    (grad,) = torch.autograd.grad(ht.apply(u, h).sum(), u, create_graph=True)
    assert torch.autograd.grad(grad.sum(), u)[0].shape == (5, 3)
