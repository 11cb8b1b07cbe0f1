"""Recurrent layers and functions used wrongly: messages name what was given and what was expected."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import householder.torch as ht

F64 = torch.float64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_size": 0}, "input_size is 0, expected at least 1"),
        ({"hidden_size": 0}, "hidden_size is 0, expected at least 1"),
        ({"num_layers": 0}, "num_layers is 0, expected at least 1"),
        ({"num_reflections": 9}, "num_reflections is 9, expected at least 1 and at most 8"),
        ({"num_reflections": 0}, "num_reflections is 0"),
        ({"num_layers": 2, "num_reflections": [1, 2, 3]}, "expected one number or 2, one per layer"),
        ({"nonlinearity": "sigmoid"}, "nonlinearity is 'sigmoid', expected one of 'identity', 'tanh'"),
        ({"hidden_size": 7, "nonlinearity": "oplu"}, "acts on pairs"),
        ({"hidden_size": 7, "nonlinearity": "modrelu"}, "acts on pairs"),
        ({"negative_slope": -0.1}, "negative_slope is -0.1"),
        ({"dropout": 1.5}, "dropout is 1.5, expected a number in"),
        ({"constraint": "none"}, "constraint is 'none', expected one of 'hard', 'soft'"),
        ({"method": "fast"}, "method is 'fast', expected one of 'auto', 'wy', 'dense'"),
        ({"method": "reflections"}, "method is 'reflections', expected one of 'auto', 'wy', 'dense'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_mistakes_in_the_constructor(options, message):
    with pytest.raises(ValueError, match=message):
        ht.OrthogonalRNN(**({"input_size": 3, "hidden_size": 8} | options))


@pytest.mark.parametrize("kind", [nn.RNN, ht.OrthogonalRNN, ht.OrthogonalRNNCell])
def test_inputs_and_states_have_entries(kind):
    with pytest.raises(ValueError, match="hidden_size"):
        kind(3, 0)
    with pytest.raises(ValueError, match="input_size"):
        kind(0, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_size": 3.0}, "input_size is 3.0, expected an integer"),
        ({"hidden_size": "8"}, "hidden_size is '8', expected an integer"),
        ({"num_layers": 1.5}, "num_layers is 1.5, expected an integer"),
        ({"num_reflections": 2.0}, "num_reflections is 2.0, expected an integer"),
        ({"num_layers": 2, "num_reflections": [2, 2.0]}, "num_reflections is 2.0, expected an integer"),
        ({"dropout": "a"}, "dropout is 'a', expected a number"),
        ({"dropout": True, "num_layers": 2}, "dropout is True, expected a number"),
        ({"negative_slope": "a"}, "negative_slope is 'a', expected a number"),
        ({"negative_slope": True}, "negative_slope is True, expected a number"),
        ({"proj_size": False}, "proj_size is False, expected an integer"),
        ({"learn_h0": 1}, "learn_h0 is 1, expected True or False"),
        ({"dtype": torch.int32}, "dtype is torch.int32, expected one of torch.float32"),
    ],
    ids=str,
)
def test_mistakes_in_the_types_of_the_constructor(options, message):
    with pytest.raises(TypeError, match=message):
        ht.OrthogonalRNN(**({"input_size": 3, "hidden_size": 8} | options))


@pytest.mark.parametrize("wrong", [(torch.ones(5, 3),), "abc", [1.0, 2.0, 3.0]], ids=["tuple", "str", "list"])
@pytest.mark.parametrize("kind", [ht.OrthogonalRNN, ht.OrthogonalRNNCell])
def test_mistakes_in_what_is_no_tensor(kind, wrong):
    module, x = kind(3, 8), torch.ones(5, 3)
    name = type(wrong).__name__
    with pytest.raises(TypeError, match=rf"input is a builtins\.{name}, expected a torch\.Tensor"):
        module(wrong)
    with pytest.raises(TypeError, match=rf"hx is a builtins\.{name}, expected a torch\.Tensor"):
        module(x, wrong)


@pytest.mark.parametrize("dtype", [F64, torch.complex128])
@pytest.mark.parametrize("kind", [ht.UnitaryRNN, ht.UnitaryRNNCell])
def test_digits_are_not_dropped(kind, dtype):
    with pytest.raises(TypeError, match=f"input has dtype {dtype} but the layer has dtype torch.complex64"):
        kind(3, 8)(torch.ones(5, 3, dtype=dtype))


@pytest.mark.parametrize(
    ("x", "hx", "message"),
    [
        ((5, 4, 2), None, r"input has shape \(5, 4, 2\), expected \(T, B, 3\) or \(T, 3\)"),
        ((3,), None, r"input has shape \(3,\)"),
        ((1, 5, 4, 3), None, r"input has shape \(1, 5, 4, 3\)"),
        ((5, 4, 3), (1, 4, 8), r"hx has shape \(1, 4, 8\), expected \(2, 4, 8\)"),
        ((5, 4, 3), (2, 5, 8), r"hx has shape \(2, 5, 8\), expected \(2, 4, 8\)"),
        ((5, 4, 3), (2, 4, 9), r"hx has shape \(2, 4, 9\), expected \(2, 4, 8\)"),
        ((5, 4, 3), (2, 8), r"hx has shape \(2, 8\), expected \(2, 4, 8\)"),
        ((5, 3), (2, 1, 8), r"hx has shape \(2, 1, 8\), expected \(2, 8\)"),
    ],
)
def test_mistakes_in_the_input(x, hx, message):
    module = ht.OrthogonalRNN(3, 8, num_layers=2)
    with pytest.raises(ValueError, match=message):
        module(torch.ones(x), None if hx is None else torch.ones(hx))


def test_mistakes_in_a_packed_input():
    module = ht.OrthogonalRNN(3, 8)
    packed = pack_sequence([torch.ones(4, 2), torch.ones(2, 2)])
    with pytest.raises(ValueError, match=r"input packs data of shape \(6, 2\), expected \(rows, 3\)"):
        module(packed)
    packed = pack_sequence([torch.ones(4, 3), torch.ones(2, 3)])
    with pytest.raises(ValueError, match=r"hx has shape \(1, 3, 8\), expected \(1, 2, 8\)"):
        module(packed, torch.ones(1, 3, 8))


def test_mistakes_in_a_step():
    with pytest.raises(ValueError, match=r"input has shape \(5, 4, 3\), expected \(B, 3\) or \(3,\)"):
        ht.OrthogonalRNNCell(3, 8)(torch.ones(5, 4, 3))


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("n", [8, 128])
@pytest.mark.parametrize("kind", [ht.OrthogonalRNN, ht.OrthogonalRNNCell])
def test_mistakes_in_types_and_devices_name_the_arguments_of_the_layer(kind, n, steps):
    module, x = kind(3, n), torch.ones(steps, 3)
    hx = torch.ones(steps if kind is ht.OrthogonalRNNCell else 1, n)
    for wrong, message in (
        (torch.double, r"has dtype torch\.float64 but the layer has"),
        ("meta", "is on meta but the"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"input {message}"):
            module(x.to(wrong))
        with pytest.raises((TypeError, ValueError), match=f"hx {message}"):
            module(x, hx.to(wrong))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_refused_by_name(layout):
    nested = torch.nested.nested_tensor([torch.ones(3, 3), torch.ones(2, 3)], layout=layout)
    with pytest.raises(TypeError, match=r"input is a nested tensor, .*pack_sequence"):
        ht.OrthogonalRNN(3, 8)(nested)


def test_packed_sequences_have_ends_of_their_own():
    packed = torch.ones(4, 2), torch.ones(3, 4), torch.zeros(2, 4), *[None] * 5, torch.tensor([2, 1])
    with pytest.raises(ValueError, match="reverse is for sequences of one length"):
        torch.ops.householder.rnn(*packed, False, "relu", 0.0, False, True, "trapezoidal", "auto")
