"""The layer of the delta rule: steps are the sequence, all parameters learn, mistakes are named."""

import pytest
import torch

import householder.torch as ht

GATES = pytest.mark.parametrize("gate", [None, "head", "channel"])


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


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ((12, 5), {}, "hidden_size is 12, expected a multiple of num_heads = 5"),
        ((12, 2), {"gate": "row"}, "gate is 'row'"),
        ((12, 2), {"num_householder": 0}, "num_householder is 0"),
        ((12, 2), {"expand_v": 0.1}, "expand_v is 0.1"),
        ((12, 2), {"max_beta": 2.5}, "max_beta is 2.5, expected above 0 and at most 2"),
    ],
)
def test_mistakes_are_named(sizes, options, message):
    with pytest.raises(ValueError, match=message):
        ht.DeltaNet(*sizes, **options)


def test_wrong_inputs_are_named():
    layer = ht.DeltaNet(12, 2)
    with pytest.raises(ValueError, match=r"expected \(B, T, 12\)"):
        layer(torch.zeros(3, 12))
    with pytest.raises(ValueError, match=r"expected \(B, 12\)"):
        layer.step(torch.zeros(3, 1, 12))
