"""The core is given addresses: nothing that happens to tensors around a call may make it read or write beyond them."""

import pytest
import torch
from torch.autograd import forward_ad

import householder.torch as ht
from tests.cases.torch import CASES
from tests.oracles.torch import problem

each_case = pytest.mark.parametrize(("function", "inputs"), CASES.values(), ids=CASES)


def test_a_backward_pass_inside_an_autocast_region_reads_its_own_types():
    torch.manual_seed(0)
    adapter = ht.OrthogonalAdapter(torch.nn.Linear(64, 64), 8)
    x = torch.randn(20, 64)
    (expected,) = torch.autograd.grad(adapter(x).square().mean(), adapter.reflections)
    loss = adapter(x).square().mean()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (found,) = torch.autograd.grad(loss, adapter.reflections)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["reflections", "weight_ih", "bias"])
@pytest.mark.parametrize("change", [lambda t: t.bfloat16(), lambda t: t[:3].clone()], ids=["type", "shape"])
def test_parameters_exchanged_before_the_backward_pass_are_an_error(name, change):
    layer = ht.OrthogonalRNN(3, 16, num_reflections=2, nonlinearity="tanh")
    output, _ = layer(torch.randn(40, 8, 3))
    parameter = getattr(layer.cells[0], name)
    parameter.data = change(parameter.data)
    with pytest.raises(RuntimeError, match=r"in the forward pass|between forward and backward"):
        output.sum().backward()


def test_hooks_that_change_the_type_of_states_are_an_error():
    layer = ht.OrthogonalRNN(3, 16)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.bfloat16() if t.dim() == 3 else t):
        output, _ = layer(torch.randn(40, 8, 3))
    with pytest.raises(RuntimeError, match=r"in the forward pass|between forward and backward"):
        output.sum().backward()


def test_hooks_may_compress_what_is_saved():
    """As activation compression does, which looks for the largest entry of each tensor."""
    for layer in (ht.Orthogonal(64), ht.OrthogonalRNN(64, 64), ht.OrthogonalRNN(64, 64, num_reflections=64)):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (t, t.abs().max()), lambda packed: packed[0]):
            output = layer(torch.randn(5, 50, 64))
        sum(t.sum() for t in output).backward()


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


def delta_rule_of(v):
    return ht.delta_rule(torch.randn(1, 5, 1, 4), torch.randn(1, 5, 1, 4), v, beta=torch.rand(1, 5, 1))


@pytest.mark.parametrize(
    "call",
    [
        lambda: ht.apply(torch.randn(6, 2), freed(torch.randn(5, 6))),
        lambda: ht.apply(torch.randn(6, 2), freed(torch.randn(6, 5).mT)),
        lambda: ht.apply(freed(torch.randn(6, 2, requires_grad=True)), torch.randn(5, 6)),
        lambda: ht.apply(freed(torch.randn(6, 2).bfloat16()), torch.randn(5, 6).bfloat16()),
        lambda: ht.matrix(freed(torch.randn(6, 2))),
        lambda: ht.rnn(torch.randn(6, 2), freed(torch.randn(5, 3, 6))),
        lambda: ht.rnn(torch.randn(6, 2), freed(torch.randn(6, 3, 5).transpose(0, 2))),
        lambda: ht.apply(torch.randn(6, 2, requires_grad=True), torch.ones(6)).backward(freed(torch.randn(6))),
        lambda: delta_rule_of(freed(torch.randn(1, 5, 1, 4))),
        lambda: delta_rule_of(freed(torch.randn(1, 1, 5, 4).expand(1, 5, 5, 4)[:, :, :1])),
    ],
)
def test_a_freed_storage_is_an_error(call):
    """torch's own operations on strided ones crash."""
    with pytest.raises(ValueError, match="has no memory: its storage was freed"):
        call()


@pytest.mark.parametrize("num_reflections", [4, 6])
def test_a_layer_whose_storage_was_freed_is_an_error(num_reflections):
    layer = ht.Orthogonal(6, num_reflections=num_reflections)
    freed(layer.reflections)
    with pytest.raises(ValueError, match="has no memory: its storage was freed"):
        layer(torch.randn(3, 6))


def test_a_tensor_without_memory_is_zero():
    u, h = (t.requires_grad_() for t in problem(6, 2, 3))
    zero = torch._efficientzerotensor(3, 6, dtype=h.dtype)
    assert not ht.apply(u, zero).any()
    assert not any(grad.any() for grad in torch.autograd.grad(ht.apply(u, h), (u, h), zero))


@each_case
def test_forward_mode_goes_through_a_backward_pass_recorded_before(function, inputs):
    inputs = [t.detach().requires_grad_() for t in inputs]
    result = function(*inputs)
    grad, tangent = torch.randn_like(result), torch.randn_like(result)
    with forward_ad.dual_level():
        found = torch.autograd.grad(result, inputs, forward_ad.make_dual(grad, tangent), retain_graph=True)
        tangents = [forward_ad.unpack_dual(t).tangent for t in found]
    # gradients are linear in the gradient of the result
    torch.testing.assert_close(tangents, list(torch.autograd.grad(result, inputs, tangent)))


@each_case
def test_forward_mode_goes_through_a_pullback(function, inputs):
    result, pullback = torch.func.vjp(function, *(t.detach() for t in inputs))
    grad, tangent = torch.randn_like(result), torch.randn_like(result)
    _, tangents = torch.func.jvp(pullback, (grad,), (tangent,))
    torch.testing.assert_close(tangents, pullback(tangent))
