"""Recurrent layers and functions used wrongly: messages name what was given and what was expected."""

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import householder.torch as ht

F64 = torch.float64


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
