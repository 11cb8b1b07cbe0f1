"""The layer of the delta rule: steps are the sequence, all parameters learn, wrong steps are named."""

import copy

import pytest
import torch

import householder.torch as ht
from tests.cases.torch import results

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


def tensors_of(states):
    return [t for state in states for t in state]


@GATES
@pytest.mark.parametrize("options", [{}, {"num_householder": 2}, {"conv_size": 1}], ids=str)
@pytest.mark.parametrize("first", [0, 1, 7])
def test_steps_go_on_from_states_after_chosen_tokens(gate, options, first):
    """Whether a step begins a sequence or follows one, and wherever the state is cut."""
    torch.manual_seed(0)
    layer = ht.DeltaNet(12, 2, expand_v=1.5, gate=gate, **options).double()
    x, positions = torch.randn(3, 40, 12, dtype=torch.float64), [0, 1, 2, 3, 4, 17, 32, 40 - first]
    before = layer.step(x[:, :first])[1] if first else None
    y, last, states = layer.step(x[:, first:], before, states_at=positions)
    expected, expected_last = layer.step(x[:, first:], before)
    torch.testing.assert_close((y, last, states[-1]), (expected, expected_last, last))
    for t, state in zip(positions, states, strict=True):
        torch.testing.assert_close(state, layer.step(x[:, : first + t])[1])
        torch.testing.assert_close(layer.step(x[:, first + t :], state)[0], expected[:, t:])


def test_prefixes_have_gradients():
    """A call that goes on from a prefix's state has the gradients of the whole call."""
    layer = ht.DeltaNet(12, 2, num_householder=2).double()
    x = torch.randn(2, 40, 12, dtype=torch.float64, requires_grad=True)
    leaves = [x, *layer.parameters()]

    def gradients(*results):
        return torch.autograd.grad(sum(result.square().sum() for result in results), leaves)

    _, _, (start, prefix) = layer.step(x, states_at=[3, 21])
    found = gradients(layer.step(x[:, 21:], prefix)[0], *tensors_of([start, prefix]))
    whole, _ = layer.step(x)
    prefixes = tensors_of([layer.step(x[:, :3])[1], layer.step(x[:, :21])[1]])
    torch.testing.assert_close(found, gradients(whole[:, 21:], *prefixes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_prefixes_of_one_sequence_begin_many(dtype):
    torch.manual_seed(0)
    layer, x = ht.DeltaNet(16, 2).to(dtype), torch.randn(1, 40, 16).to(dtype)
    with torch.inference_mode():
        _, _, (prefix,) = layer.step(x, states_at=[30])
        many = prefix._make(t.expand(4, *t.shape[1:]) for t in prefix)
        y, _ = layer.step(x[:, 30:].expand(4, 10, 16), many)
        expected = layer(x)[:, 30:].expand(4, 10, 16)
    assert prefix.recurrent.dtype is torch.float32
    torch.testing.assert_close(y, expected, rtol=1e-2, atol=1e-2 if dtype is not torch.float32 else 1e-5)


def test_states_keep_no_memory_of_other_tokens():
    layer, x = ht.DeltaNet(12, 2), torch.randn(2, 40, 12)
    _, last, states = layer.step(x, states_at=[3, 21])
    for t in tensors_of([last, *states, layer.step(x, last)[1]]):
        assert t.untyped_storage().nbytes() == t.nbytes


def test_a_single_token_has_a_state_before_and_after_it():
    layer, x = ht.DeltaNet(12, 2), torch.randn(3, 12)
    _, state = layer.step(x)
    y, last, (before, after) = layer.step(x, state, states_at=[0, 1])
    assert y.shape == (3, 12)
    torch.testing.assert_close((before, after), (state, last))


def test_compiled_steps_return_states():
    layer, x = ht.DeltaNet(12, 2), torch.randn(2, 20, 12)
    with torch.no_grad():
        _, state = layer.step(x)

    def step(x, *before):
        y, last, states = layer.step(x, state._make(before), states_at=[3, 20])
        return y, *tensors_of([last, *states])

    leaves = [t.requires_grad_() for t in (x, *state)]
    found, expected = (results(f, leaves) for f in (torch.compile(step, fullgraph=True, backend="aot_eager"), step))
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


def test_wrong_states_of_a_step_are_named():
    layer, x = ht.DeltaNet(12, 2), torch.zeros(3, 5, 12)
    _, state = layer.step(x)
    for t in (-1, 6):
        with pytest.raises(ValueError, match=rf"states_at is \[{t}\], expected increasing numbers .* to T = 5"):
            layer.step(x, states_at=[t])
    with pytest.raises(TypeError, match=r"state is a Tensor, expected a DeltaState"):
        layer.step(x, state.recurrent)
    with pytest.raises(ValueError, match=r"state\.inputs has shape \(3, 3, 36\), expected \(2, 3, 36\)"):
        layer.step(x[:2], state)
    with pytest.raises(ValueError, match=r"state\.recurrent has shape \(3, 2, 6, 5\), expected \(3, 2, 6, 6\)"):
        layer.step(x, state._replace(recurrent=state.recurrent[..., 1:]))
    for name, t in state._asdict().items():
        for wrong, message in (
            (None, "is None, expected a torch.Tensor"),
            (t.double(), "has dtype torch.float64 but the layer has dtype torch.float32"),
            (t.to("meta"), "is on meta but the layer is on cpu"),
        ):
            with pytest.raises(TypeError, match=rf"^state\.{name} {message}$"):
                layer.step(x, state._replace(**{name: wrong}))


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("of_state", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_states_of_half_types_and_float32_go_on_in_each_other(kind, of_state):
    torch.manual_seed(0)
    layer, x = ht.DeltaNet(16, 2).to(kind), torch.randn(2, 10, 16).to(kind)
    _, state = layer.step(x[:, :6])
    y, after = layer.step(x[:, 6:], state._make(t.to(of_state) for t in state))
    assert y.dtype is after.inputs.dtype is kind
    torch.testing.assert_close(y, layer(x)[:, 6:], rtol=1e-2, atol=1e-2)


def test_nothing_to_map_over():
    layer, none = ht.DeltaNet(12, 2), torch.zeros(0, 2, 5, 12)
    assert torch.func.vmap(layer)(none).shape == none.shape
