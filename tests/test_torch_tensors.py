"""What the core reads of a tensor by itself, and which tensors it leaves to torch's dispatcher."""

import subprocess
import sys
from textwrap import dedent

import pytest
import torch
from torch import nn

import householder.torch as ht
from householder import _core
from torch_oracle import explicit_matrix, problem


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (0, 5)])
def test_ordinary_tensors_are_plain(dtype, shape):
    u, h = torch.randn(5, 2, dtype=dtype), torch.randn(shape, dtype=dtype)
    assert _core.is_plain_application(u, h)
    assert _core.is_plain_application(nn.Parameter(u), h.requires_grad_())
    assert _core.are_plain(u, None, h)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(5, dtype=torch.complex64).conj().imag,
        torch._efficientzerotensor((5,)),
        torch.ones(5).as_subclass(Subclass),
        torch.ones(5, dtype=torch.complex64),
        torch.ones(5, device="meta"),
        torch.ones(5).to_sparse(),
        [1.0] * 5,
    ],
    ids=["negated", "zeros without memory", "subclass", "complex", "meta", "sparse", "list"],
)
def test_others_are_not(tensor):
    u = torch.ones(5, 2).tril()
    assert not _core.are_plain(u, tensor)
    assert not _core.is_plain_application(u, tensor)


@pytest.mark.parametrize(
    ("u", "h"), [((5, 2), (4,)), ((5, 2), ()), ((2, 5), (2,)), ((5, 0), (5,)), ((3, 5, 2), (3, 5))]
)
def test_shapes_that_want_a_look_are_no_plain_application(u, h):
    assert not _core.is_plain_application(torch.ones(u), torch.ones(h))


@pytest.mark.parametrize("kinds", [(torch.float32, torch.float64), (torch.bfloat16,) * 2, (torch.int64,) * 2])
def test_types_that_want_a_look_are_no_plain_application(kinds):
    u, h = (torch.ones(shape, dtype=kind) for shape, kind in zip(((5, 2), (5,)), kinds, strict=True))
    assert not _core.is_plain_application(u, h)
    assert _core.are_plain(u, h)


def test_views_are_read_where_they_begin():
    u, h = problem(6, 3, 4)
    shifted = torch.cat([torch.zeros(1), h.float().flatten()])[1:].view_as(h)
    torch.testing.assert_close(ht.apply(u.float(), shifted), (h @ explicit_matrix(u).mT).float())


def test_the_core_writes_nothing_where_sizes_do_not_fit():
    u, h = torch.randn(5, 2), torch.randn(3, 5)
    for out, error in [
        (torch.empty(2, 5), "out: expected 15 contiguous numbers"),
        (torch.empty(5, 3).T, r"out: expected 15 contiguous numbers .* with strides \(1, 3\) on cpu"),
        (torch._efficientzerotensor((3, 5)), "out: expected 15 contiguous numbers"),
        (torch.empty(3, 5, dtype=torch.float64), "out is torch.float64 but was torch.float32"),
        (torch.empty(3, 5, device="meta"), "meta"),
        (h.numpy(), "expected a tensor, got <class 'numpy.ndarray'>"),
    ]:
        with pytest.raises((ValueError, RuntimeError, TypeError), match=error):
            _core.forward_tensors(u, h, out, False, "auto", False)
    for u_of, h_of in [((3, 1), (4,)), ((5, 2), (2, 4)), ((0, 0), (0,)), ((5,), (5,)), ((2, 3), (2,))]:
        with pytest.raises(ValueError, match=r"expected u \(\.\., n, m\)"):
            torch.ops.householder.apply(torch.ones(u_of), torch.ones(h_of), False, "auto")
    with pytest.raises(TypeError, match=r"expected u and h of one type, got u torch\.float32"):
        torch.ops.householder.apply(u, h.double(), False, "auto")
    with pytest.raises((ValueError, RuntimeError), match="grad_u: expected 10"):
        _core.backward_tensors(u, h, h, torch.empty(4, 2), None, False, "auto", None)


def test_a_torch_without_the_exchange_of_functions_gives_the_same():
    code = dedent("""
        import torch
        if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
            del torch.Tensor.__dlpack_c_exchange_api__
        import householder.torch as ht
        from householder import _core
        torch.manual_seed(0)
        for kind in (torch.float32, torch.float64, torch.complex64):
            u, h = (torch.randn(s, dtype=kind).requires_grad_() for s in ((2, 7, 3), (2, 5, 7)))
            c = ht.apply(u.tril(), h[:, 0])
            ht.apply(u[0].tril(), h).real.sum().backward()
            assert u.grad.isfinite().all() and h.grad.norm() > 0
            print(c.abs().sum().item(), u.grad.abs().sum().item(), h.grad.abs().sum().item())
        ones = torch.ones(5)
        assert _core.are_plain(ones) and _core.is_plain_application(torch.ones(5, 2), ones)
        for other in (torch._efficientzerotensor((5,)), torch._neg_view(ones), ones.to_sparse(), ones.to("meta")):
            assert not _core.are_plain(other)
    """)
    without = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    with_exchange = subprocess.run(
        [sys.executable, "-c", code.replace("del torch", "torch")], capture_output=True, text=True, check=True
    )
    assert without.stdout == with_exchange.stdout != ""
