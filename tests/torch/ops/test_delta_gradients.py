"""Gradients of the delta rule and linear attention in closed form, as devices without kernels compute them."""

from unittest import mock

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from benches.pages import operations
from householder.torch._base import expressions
from tests.cases.torch import results
from tests.tester import oracle
from tests.torch.ops.test_delta import ERASES, GATES, in_closed_form, operands


def by_oracle(q, k, v, beta, g, state, ends, r, normalize):
    options = {"scale": q.shape[-1] ** -0.5, "reflections": r, "normalize": normalize}
    return oracle.delta_rule(q, k, v, beta, g, state, ends, **options)


def of(function, *options):
    return lambda *tensors: function(*tensors, *options)


def relative_error(found, exact):
    return float((found - exact).norm() / exact.norm())


@GATES
@pytest.mark.parametrize(("erases", "r"), [(True, 1), (True, 3), (False, 1)])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("tokens", [1, 2, 3, 63, 64, 65, 129])
def test_gradients_are_those_of_the_oracle_at_the_edges_of_chunks(gate, erases, r, normalize, group, tokens):
    tensors = operands(gate, tokens=tokens, erases=erases, r=r, group=group, widths=(5, 3))
    found, exact = (results(of(rule, None, r, normalize), tensors) for rule in (in_closed_form, by_oracle))
    torch.testing.assert_close(found, exact, rtol=1e-11, atol=1e-11)


@GATES
@pytest.mark.parametrize(("erases", "r"), [(True, 1), (True, 2), (False, 1)])
@pytest.mark.parametrize("ends", [[0, 0, 30, 31, 130], [0, 64, 130]])
def test_packed_sequences_have_gradients_of_their_own(gate, erases, r, ends):
    sizes = {"tokens": ends[-1], "batch": 1, "count": len(ends) - 1}
    tensors, ends = operands(gate, **sizes, erases=erases, r=r), torch.tensor(ends)
    found, exact = (results(of(rule, ends, r, True), tensors) for rule in (in_closed_form, by_oracle))
    torch.testing.assert_close(found, exact, rtol=1e-11, atol=1e-11)


@GATES
@pytest.mark.parametrize("ends", [None, [0, 0, 0], [0]])
def test_without_tokens_the_gradients_of_states_pass_through(gate, ends):
    count, ends = (2, None) if ends is None else (len(ends) - 1, torch.tensor(ends))
    tensors = operands(gate, tokens=0, batch=2 if ends is None else 1, count=count)
    o, last = in_closed_form(*tensors, ends, 1, True)
    given = [t for t in tensors if t is not None]
    *others, of_state = torch.autograd.grad((o, last), given, (o.detach(), last.detach().cos()))
    assert torch.equal(of_state, last.cos())
    assert [t.shape for t in others] == [t.shape for t in given[:-1]]


@GATES
@ERASES
def test_rounding_is_that_of_the_forward_pass(gate, erases):
    tensors = operands(gate, tokens=200, widths=(32, 32), erases=erases)
    if gate:
        tensors[4].data[:, ::4] = -100.0
    exact = results(of(by_oracle, None, 1, True), [*tensors[:-1], None])
    tensors = [None if t is None else t.detach().float().requires_grad_() for t in tensors[:-1]]
    found = results(of(in_closed_form, None, 1, True), [*tensors, None])
    assert max(map(relative_error, found, exact)) < 1e-6


@GATES
@ERASES
def test_finite_differences_agree(gate, erases):
    tensors = operands(gate, tokens=3, erases=erases)
    given = [i for i, t in enumerate(tensors) if t is not None]

    def function(*leaves):
        arguments = [None] * len(tensors)
        for i, leaf in zip(given, leaves, strict=True):
            arguments[i] = leaf
        return in_closed_form(*arguments, None, 1, True)

    leaves = tuple(tensors[i] for i in given)
    assert gradcheck(function, leaves, check_batched_grad=True, fast_mode=False)
    assert gradgradcheck(function, leaves, fast_mode=True)


@ERASES
@pytest.mark.parametrize("result", [0, 1], ids=["outputs", "final states"])
def test_one_result_and_one_operand_suffice(erases, result):
    tensors = operands("head", tokens=70, erases=erases)
    for i, t in enumerate(tensors):
        if t is None or (result, i) == (1, 0):  # no query reaches a state
            continue
        alone = [None if a is None else a.detach().requires_grad_(a is t) for a in tensors]
        found, exact = (
            torch.autograd.grad(rule(*alone, None, 1, False)[result].sin().sum(), alone[i])
            for rule in (in_closed_form, by_oracle)
        )
        torch.testing.assert_close(found, exact, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_types_are_those_of_their_operands(half):
    q, k, v, *others = (t.detach().float() for t in operands("head", tokens=70))
    tensors = [*(t.to(half) for t in (q, k, v)), *others]
    full = [t.float().requires_grad_() for t in tensors]
    tensors = [t.requires_grad_() for t in tensors]
    found, exact = (
        torch.autograd.grad(in_closed_form(*leaves, None, 1, True)[0].float().sum(), leaves)
        for leaves in (tensors, full)
    )
    assert [t.dtype for t in found] == [half] * 3 + [torch.float32] * 3
    torch.testing.assert_close(found, tuple(t.to(half) if i < 3 else t for i, t in enumerate(exact)))


@pytest.mark.parametrize("create_graph", [False, True])
def test_the_expression_is_differentiated_only_if_its_gradients_are(create_graph):
    tensors = operands("head")
    with mock.patch.object(expressions, "delta_rule", wraps=expressions.delta_rule) as expression:
        o, _ = in_closed_form(*tensors, None, 1, True)
        torch.autograd.grad(o.sum(), tensors, create_graph=create_graph)
    assert expression.call_count == 1 + create_graph


@pytest.mark.parametrize(("work", "most", "times"), [("gated delta rule", 440, 24), ("Kimi delta attention", 640, 36)])
def test_both_passes_take_few_operations_and_little_memory(work, most, times):
    """On a device without kernels each operation is a launch; memory is some times that of the keys."""
    gate, *_ = operations.FUNCTIONS[work]
    tensors = operations.delta_operands(2048, gate)
    trained, _ = operations.training(operations.delta_rule(operations.pretrained._delta_rule), tensors)
    assert operations.solves(trained) == 0
    assert trained.count <= most
    assert trained.peak <= times * tensors[1].nbytes
