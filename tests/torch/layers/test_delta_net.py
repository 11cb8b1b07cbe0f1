"""The layer of the delta rule: steps are the sequence, all parameters learn, wrong steps are named."""

import copy

import pytest
import torch

import householder.torch as ht

GATES = pytest.mark.parametrize("gate", [None, "head", "channel"])


@pytest.mark.slow_combinations
@GATES
@pytest.mark.parametrize("reflections", [1, 2])
def test_a_sequence_is_its_steps(gate, reflections):
    torch.manual_seed(0)
    layer = ht.DeltaNet(12, 2, expand_v=1.5, gate=gate, num_householder=reflections).double()
    x, state, outputs = torch.randn(3, 20, 12, dtype=torch.float64), None, []
    for t in range(20):
        y, state = layer.step(x[:, t], state)
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), layer(x))
    prompt, later = layer.step(x[:, :7])
    y, later = layer.step(x[:, 7:7], later)  # no token
    assert y.shape == (3, 0, 12)
    y, later = layer.step(x[:, 7:], later)
    torch.testing.assert_close(torch.cat([prompt, y], 1), layer(x))
    for found, expected in zip(later, state, strict=True):
        torch.testing.assert_close(found, expected)


@GATES
def test_every_parameter_learns(gate):
    layer = ht.DeltaNet(12, 2, gate=gate, num_householder=2)
    layer(torch.randn(2, 9, 12)).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in layer.parameters())


def test_later_tokens_do_not_change_earlier_outputs():
    layer, x = ht.DeltaNet(12, 2), torch.randn(1, 50, 12)
    changed = x.clone()
    changed[:, 30:] += 1
    torch.testing.assert_close(layer(changed)[:, :30], layer(x)[:, :30])


@GATES
@pytest.mark.parametrize("shape", [(2, 0, 12), (0, 5, 12), (0, 0, 12)], ids=str)
@pytest.mark.parametrize("options", [{}, {"num_householder": 2}, {"conv_size": 1}], ids=str)
def test_no_tokens_give_no_outputs_and_zero_gradients(gate, shape, options):
    layer, x = ht.DeltaNet(12, 2, gate=gate, **options), torch.zeros(shape, requires_grad=True)
    y = layer(x)
    assert y.shape == shape
    y.sum().backward()
    assert x.grad.shape == shape
    assert all(not p.grad.any() for p in layer.parameters())


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)], ids=str
)
@pytest.mark.parametrize(("width", "heads"), [(16, 2), (256, 4)])
def test_dtypes_differ_by_rounding(width, heads, dtype, error):
    """The outputs of heads are small at the start, so a constant beside them that depends on the dtype would show."""
    torch.manual_seed(0)
    layer, x = ht.DeltaNet(width, heads), torch.randn(2, 70, width)
    exact = copy.deepcopy(layer).double()(x.double())
    found = layer.to(dtype)(x.to(dtype)).double()
    assert (found - exact).norm() < error * exact.norm()


def test_it_is_made_where_and_in_the_dtype_that_is_asked_for():
    layer = ht.DeltaNet(12, 2, device="meta", dtype=torch.float64)
    assert {(p.device.type, p.dtype) for p in layer.parameters()} == {("meta", torch.float64)}
    x = torch.randn(1, 5, 12, dtype=torch.float64)
    assert layer(x.to("meta")).is_meta
    torch.manual_seed(0)
    layer.to_empty(device="cpu").reset_parameters()
    torch.manual_seed(0)
    made = ht.DeltaNet(12, 2, dtype=torch.float64)
    torch.testing.assert_close(layer.state_dict(), made.state_dict(), rtol=0, atol=0)
    assert layer(x).isfinite().all()


def test_wrong_inputs_of_a_step_are_named():
    step = ht.DeltaNet(12, 2).step
    with pytest.raises(TypeError, match=r"x is a list, expected a torch\.Tensor"):
        step([1.0])
    with pytest.raises(ValueError, match=r"expected \(B, 12\) or \(B, T, 12\)"):
        step(torch.zeros(3, 1, 11))
