"""The formulas of ``householder.torch.flops`` against the products that torch counts."""

import doctest

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import householder.torch as ht
import householder.torch.flops
from householder.torch._base import expressions


def counted(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize(("n", "m"), [(16, 4), (16, 16), (64, 8)])
@pytest.mark.parametrize("lead", [(), (3,)], ids=str)
def test_an_application_counts_the_products_of_its_expression(n, m, lead):
    u, h = torch.randn(*lead, n, m), torch.randn(*lead, 10, n)
    k, many = m - (m == n), 3 if lead else 1
    expected = counted(lambda: expressions.apply(u, h, False)) + many * 10 * k * k  # torch counts no triangular solves
    assert counted(lambda: torch.ops.householder.apply(u, h, None, False, False, "wy", "trapezoidal")) == expected
    dense = counted(lambda: torch.ops.householder.matrix(u, False)) + counted(lambda: h @ torch.ones(*lead, n, n))
    assert counted(lambda: torch.ops.householder.apply(u, h, None, False, False, "dense", "trapezoidal")) == dense


@pytest.mark.parametrize(("n", "m"), [(16, 4), (64, 8)])
def test_gradients_count_the_products_of_theorem_2(n, m):
    u, h = torch.randn(n, m, requires_grad=True), torch.randn(10, n, requires_grad=True)
    v, j, p = torch.randn(n, m), torch.randn(m, m), torch.randn(m, 10)

    def products():
        _ = v.mT @ v, v.mT @ h.mT, v.mT @ h.mT, j @ p, j @ p  # T, V* h, V* g; the solves count half
        _ = p @ p.mT, v @ j, h.mT @ p.mT, h.mT @ p.mT, v @ p

    expected = counted(products) - 2 * 10 * m * m
    c = ht.apply(u, h)
    assert counted(lambda: c.backward(torch.ones_like(c))) == expected


@pytest.mark.parametrize("nonlinearity", ["tanh", "modrelu"])
def test_a_sequence_counts_its_steps_and_inputs(nonlinearity):
    layer = ht.OrthogonalRNN(3, 16, nonlinearity=nonlinearity, num_reflections=4, method="wy")
    x = torch.randn(5, 2, 3)
    steps = counted(lambda: ht.apply(layer.cells[0].reflections, torch.randn(10, 16), method="wy"))
    forward = counted(lambda: layer(x))
    assert forward == steps + 2 * 10 * 3 * 16
    output = layer(x)[0]
    assert counted(lambda: output.sum().backward()) > forward


def test_the_example_of_the_module():
    assert doctest.testmod(householder.torch.flops).failed == 0


@pytest.mark.parametrize("kind", [ht.Orthogonal, ht.Unitary])
def test_fewer_reflections_cost_less(kind):
    few, many = (kind(64, num_reflections=m, method="wy") for m in (2, 32))
    x = torch.randn(100, 64)
    assert 0 < 4 * counted(lambda: few(x)) < counted(lambda: many(x))
