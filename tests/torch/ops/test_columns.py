"""Full columns and a given ``tau`` in torch: torch's functions of LAPACK's reflectors, and HRA, by ours.

Derivatives and transforms are tested with those of every operator, by ``torch_cases``.
"""

from unittest import mock

import pytest
import torch
from torch.autograd import gradcheck

import householder as hh
import householder.torch as ht
from householder.torch._base import expressions
from householder.torch._base.dtypes import CORE_NAME
from tests.conftest import of_arrays
from tests.oracles.torch import of_columns

DTYPES = list(CORE_NAME)
DOUBLES = [torch.float64, torch.complex128]


def samples(name, dtype):
    """torch's own samples of an operator."""
    with mock.patch.object(torch.backends, "disable_global_flags"):  # for all later tests of the process
        common = pytest.importorskip("torch.testing._internal.common_methods_invocations", exc_type=ImportError)
    (info,) = (info for info in common.op_db if info.name == name)
    return list(info.sample_inputs("cpu", dtype, requires_grad=True))


def detached(sample):
    return sample.input.detach(), *(a.detach() for a in sample.args)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_torchs_samples_of_householder_product(dtype):
    for sample in samples("linalg.householder_product", dtype):
        a, tau = detached(sample)
        found, expected = ht.householder_product(a, tau), torch.linalg.householder_product(a, tau)
        torch.testing.assert_close(found, expected, check_stride=True)


@pytest.mark.parametrize("dtype", DOUBLES, ids=str)
def test_gradients_of_torchs_samples_of_householder_product(dtype):
    for sample in samples("linalg.householder_product", dtype):
        assert gradcheck(ht.householder_product, (sample.input, *sample.args), fast_mode=True)
        a, tau = (t.detach().requires_grad_() for t in detached(sample))
        theirs, ours = torch.linalg.householder_product(a, tau), ht.householder_product(a, tau)
        g = torch.randn_like(theirs)
        found, expected = (
            torch.autograd.grad(result, (a, tau), g, allow_unused=True, materialize_grads=True)
            for result in (ours, theirs)
        )
        for mine, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("dtype", DOUBLES, ids=str)
def test_torchs_samples_of_ormqr(dtype):
    for sample in samples("ormqr", dtype):
        found = ht.ormqr(*detached(sample), **sample.kwargs)
        torch.testing.assert_close(found, torch.ormqr(*detached(sample), **sample.kwargs))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_geqrf_gives_is_applied_and_differentiated_as_it_is(dtype):
    x = torch.randn(3, 20, 20, dtype=dtype)
    a, tau = torch.geqrf(x)
    q = torch.linalg.qr(x, mode="complete").Q
    rounding = 20 * torch.finfo(dtype).eps  # of entries up to 1, and of vectors up to the norm of x
    torch.testing.assert_close(ht.matrix(ht.Reflections(a, tau)), q, atol=rounding, rtol=0)
    c = ht.apply(ht.Reflections(a, tau), x[..., 0])
    norm = torch.linalg.vector_norm(x[..., 0], dim=-1).max().item()
    torch.testing.assert_close(c, (q @ x[..., :1]).squeeze(-1), atol=rounding * norm, rtol=0)
    a.requires_grad_()
    tau.requires_grad_()
    ht.apply(ht.Reflections(a, tau), x[:, 0].detach()).abs().sum().backward()
    assert not a.grad.triu().any()
    assert tau.grad.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_torch_and_numpy_agree(dtype):
    u, h, tau = torch.randn(2, 9, 12, dtype=dtype), torch.randn(2, 9, dtype=dtype), torch.randn(2, 12, dtype=dtype) / 12
    for options in ({"tau": tau}, {}):
        arrays = {name: value.numpy() for name, value in options.items()}
        c = of_arrays(ht.apply)(u, h, columns="full", **options)
        assert (c.numpy() == of_arrays(hh.forward)(u.numpy(), h.numpy(), columns="full", **arrays)).all()
        w = torch.from_numpy(of_arrays(hh.matrix)(u.numpy(), columns="full", **arrays))
        torch.testing.assert_close(of_arrays(ht.matrix)(u, columns="full", **options), w)


def test_half_types_are_computed_in_float32():
    u, h, tau = torch.randn(6, 8).bfloat16(), torch.randn(3, 6).bfloat16(), (torch.rand(8) / 8).bfloat16()
    c = ht.apply(ht.Reflections(u, tau, columns="full"), h)
    assert c.dtype is torch.bfloat16
    torch.testing.assert_close(
        c, ht.apply(ht.Reflections(u.float(), tau.float(), columns="full"), h.float()).bfloat16()
    )


def test_an_exported_program_runs_without_the_package():
    class Layer(torch.nn.Module):
        def forward(self, u, x, tau):
            c = (
                ht.apply(ht.Reflections(u, tau, columns="full"), x[0]),
                ht.apply(ht.Reflections(u, columns="full").H, x[0]),
            )
            return *c, *ht.rnn(ht.Reflections(u, tau, columns="full"), x)

    inputs = torch.randn(5, 7), torch.randn(2, 3, 5), torch.randn(7) / 7
    plain = torch.export.export(Layer(), inputs).run_decompositions(ht.decompositions())
    assert not any("householder" in str(node.target) for node in plain.graph.nodes)
    torch.testing.assert_close(plain.module()(*inputs), Layer()(*inputs))


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"expected \(\.\.\., m, n\) with m >= n"):
        ht.householder_product(torch.ones(2, 3), torch.ones(2))
    with pytest.raises(ValueError, match=r"tau has shape \(4,\), expected \(k\) with k <= 3"):
        ht.householder_product(torch.ones(3, 3), torch.ones(4))
    with pytest.raises(ValueError, match=r"other has shape \(2, 2\), expected \(3, n\)"):
        ht.ormqr(torch.ones(3, 3), torch.ones(3), torch.ones(2, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a, tau: ht.householder_product(a, tau.double()), "tau has dtype torch.float64 but input has dtype"),
        (lambda a, tau: ht.householder_product(a, tau.to("meta")), "tau is on meta but input is on cpu"),
        (lambda a, tau: ht.householder_product(a.int(), tau), "input has dtype torch.int32, expected one of"),
        (lambda a, tau: ht.householder_product(a.numpy(), tau), "input is a numpy.ndarray, expected a torch.Tensor"),
        (lambda a, _: ht.householder_product(a, None), "tau is None, expected a torch.Tensor"),
        (lambda a, tau: ht.ormqr(a, tau, a.double()), "other has dtype torch.float64 but input has dtype"),
        (lambda a, tau: ht.ormqr(a, tau, None), "other is None, expected a torch.Tensor"),
    ],
)
def test_arguments_have_the_names_that_torch_gives_them(call, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        call(torch.ones(3, 3), torch.ones(3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lead", [(), (2,), (0,)])
def test_an_empty_tau_keeps_the_graph(lead, dtype):
    a, tau = torch.randn(*lead, 4, 3, dtype=dtype), torch.randn(*lead, 0, dtype=dtype)
    other = torch.randn(*lead, 4, 5, dtype=dtype)
    a, tau, other = (t.requires_grad_() for t in (a, tau, other))
    theirs = torch.linalg.householder_product(a, tau)
    for result, expected, leaves in (
        (ht.householder_product(a, tau), theirs, (a, tau)),
        (ht.ormqr(a, tau, other), other, (a, tau)),
        (ht.ormqr(a, tau, other.mT, left=False), other.mT, (a, tau)),
    ):
        torch.testing.assert_close(result, expected)
        for found, leaf in zip(torch.autograd.grad(result.abs().sum(), leaves), leaves, strict=True):
            torch.testing.assert_close(found, torch.zeros_like(leaf))


FAR = [(72, 16, 3000, 30.0), (33, 33, 2000, 30.0), (64, 64, 2000, 6.0), (64, 64, 2000, -1.5), (16, 40, 500, 6.0)]
"""Sizes of which a formed W would be faster, and ``tau |v|^2``."""


@pytest.mark.parametrize(("n", "m", "rows", "size"), FAR)
def test_gradients_stay_accurate_where_tau_is_far_from_a_reflections(n, m, rows, size):
    generator = torch.Generator().manual_seed(0)
    u, h, g = (torch.randn(s, dtype=torch.float64, generator=generator) for s in ((n, m), (rows, n), (rows, n)))
    tau = size / u.square().sum(0) * (1 + 0.1 * torch.rand(m, dtype=torch.float64, generator=generator))
    u, tau, h, g = (t.float() for t in (u, tau, h, g))

    def gradients(function, kind):
        leaves = [t.to(kind).requires_grad_() for t in (u, tau, h)]
        return torch.autograd.grad(function(*leaves), leaves, g.to(kind))

    expected = gradients(lambda u, tau, h: h @ of_columns(u, tau, "full").mT, torch.float64)
    routes = {
        "native": lambda u, tau, h: ht.apply(ht.Reflections(u, tau, columns="full"), h),
        "expression": lambda u, tau, h: expressions.apply(u, h, False, tau, "full"),
        "one step": lambda u, tau, h: ht.rnn(
            ht.Reflections(u, tau, columns="full"), torch.zeros(1, rows, n), h, nonlinearity="identity"
        )[1],
    }
    for name, route in routes.items():
        for found, exact in zip(gradients(route, torch.float32), expected, strict=True):
            assert (found - exact).norm() < 2e-5 * exact.norm(), name
