"""Layers called wrongly: each error names the argument, what was given and what was expected.

A row has layers, an argument, a wrong value and the message. The other arguments are those of a good call.
"""

import re
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import householder.torch as ht
from tests.cases.layers import LAYERS

SEQUENCES, CELLS = ("OrthogonalRNN", "UnitaryRNN"), ("OrthogonalRNNCell", "UnitaryRNNCell")
LARGE = "large cell", "one large step"
LINEAR = "Orthogonal", "Unitary", "SVDLinear", "orthogonal", "OrthogonalAdapter", "fused adapter"
IMAGES = ("adapter of images",)
WITH_DTYPE = *SEQUENCES, *CELLS, *LARGE, *LINEAR, *IMAGES, "DeltaNet"
ADAPTERS = "OrthogonalAdapter", "fused adapter", *IMAGES
REAL = [name for name in WITH_DTYPE if not name.startswith("Unitary")]
WITH_DEVICE = *WITH_DTYPE, "ModReLU"


class Mistake(NamedTuple):
    """Layers, a wrong input or an initial state beside a good one, and the message."""

    layers: tuple[str, ...]
    value: Any
    message: str
    is_state: bool = False


def size(layers, shape, expected):
    return Mistake(layers, torch.ones(shape), rf"^input has shape {shape!r}, expected {expected}$")


def state(layers, shape, expected):
    return Mistake(layers, torch.ones(shape), f"^hx has shape {shape!r}, expected {expected!r}$", is_state=True)


VALUES = [
    *(size(SEQUENCES, shape, "(T, B, 3) or (T, 3)") for shape in ((5, 4, 2), (3,), (), (1, 5, 4, 3))),
    *(size(CELLS, shape, "(B, 3) or (3,)") for shape in ((4, 2), (), (5, 4, 3))),
    *(size(LINEAR, shape, "a last axis of 6") for shape in ((5, 7), (), (0,))),
    *(size(IMAGES, shape, "(..., 6, height, width)") for shape in ((2, 5, 6, 6), (6, 5), ())),
    *(state(SEQUENCES, shape, (2, 4, 8)) for shape in ((1, 4, 8), (2, 5, 8), (2, 4, 9), (2, 8))),
    *(state(CELLS, shape, (4, 8)) for shape in ((8,), (3, 8), (1, 8), (4, 7), (1, 4, 8))),
    *(
        Mistake(("ModReLU",), torch.ones(shape), f"^input is torch.float32 of shape {shape}, expected (..., 6)$")
        for shape in ((5, 7), ())
    ),
    Mistake(("ModReLU",), torch.ones(5, 6) + 0j, "^input is torch.complex64 of shape (5, 6), expected (..., 3)$"),
    *(
        Mistake(
            ("OPLU",), x, f"^input is {x.dtype} of shape {(*x.shape,)}, expected real numbers and an even last axis$"
        )
        for x in (torch.ones(5, 7), torch.ones(()), torch.ones(5, 6) + 0j)
    ),
    *(
        Mistake(("DeltaNet",), torch.ones(shape), f"^x has shape {shape}, expected (B, T, 12)$")
        for shape in ((2, 5, 13), (), (5, 12), (1, 2, 5, 12))
    ),
]
OTHERS = {
    "a str": "abc",
    "a list": [1.0],
    "a tuple": (torch.ones(5, 3),),
    "a collections.OrderedDict": OrderedDict(),
    "a numpy.ndarray": torch.ones(5, 3).numpy(),
    "None": None,
}
TYPES = [
    *(Mistake(tuple(LAYERS), wrong, f"is {kind}, expected a torch.Tensor$") for kind, wrong in OTHERS.items()),
    *(
        Mistake((*SEQUENCES, *CELLS), wrong, f"^hx is {kind}, expected", is_state=True)
        for kind, wrong in OTHERS.items()
        if wrong is not None
    ),
    Mistake(
        ("ModReLU",),
        torch.ones(5, 6).long(),
        "^input has dtype torch.int64, expected real or complex numbers",
    ),
]


def literally(message):
    """Make a pattern of a message: only ``^`` at its beginning and ``$`` at its end are special."""
    inner = re.escape(message.removeprefix("^").removesuffix("$"))
    return "^" * message.startswith("^") + inner + "$" * message.endswith("$")


def rows(*tables):
    return pytest.mark.parametrize(
        ("error", "layer", "mistake"),
        [
            pytest.param(error, layer, mistake, id=f"{layer} {error.__name__} {i}")
            for error, mistakes in tables
            for i, mistake in enumerate(mistakes)
            for layer in mistake.layers
        ],
    )


@pytest.mark.parametrize("gradients", [True, False])
@rows((ValueError, VALUES), (TypeError, TYPES))
def test_a_mistake_is_named(error, layer, mistake, gradients):
    make, shape = LAYERS[layer]
    arguments = (torch.ones(shape), mistake.value) if mistake.is_state else (mistake.value,)
    with torch.set_grad_enabled(gradients), pytest.raises(error, match=literally(mistake.message)):
        make()(*arguments)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(
    ("layer", "to", "message"),
    [
        *((layer, torch.float64, "has dtype torch.float64 but the layer has dtype") for layer in WITH_DTYPE),
        *(
            (layer, torch.bfloat16, "has dtype torch.bfloat16 but the layer has dtype")
            for layer in (*ADAPTERS, "DeltaNet")
        ),
        *((layer, torch.int64, "has dtype torch.int64 but the layer has dtype") for layer in REAL),
        *((layer, torch.complex64, "has dtype torch.complex64 but the layer has dtype") for layer in REAL),
        *((layer, "meta", "is on meta but the layer is on cpu") for layer in WITH_DEVICE),
    ],
)
def test_other_dtypes_and_devices_are_refused(layer, to, message, gradients):
    make, shape = LAYERS[layer]
    with torch.set_grad_enabled(gradients), pytest.raises((TypeError, ValueError), match=rf"^(input|x) {message}"):
        make()(torch.ones(shape).to(to))


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("to", [torch.float64, "meta"])
@pytest.mark.parametrize("layer", [*SEQUENCES, *CELLS, *LARGE])
def test_initial_states_of_other_dtypes_and_devices_are_refused(layer, to, gradients):
    make, shape = LAYERS[layer]
    module, x = make(), torch.ones(shape)
    with torch.no_grad():
        result = module(x)
    good = result if isinstance(result, torch.Tensor) else result[1]
    wrong = good.to("meta") if to == "meta" else good.to(torch.complex128 if good.is_complex() else to)
    with torch.set_grad_enabled(gradients), pytest.raises((TypeError, ValueError), match=r"^hx (has dtype|is on)"):
        module(x, wrong)


@pytest.mark.parametrize("layer", LAYERS)
def test_each_layer_can_be_called_without_a_mistake(layer):
    make, shape = LAYERS[layer]
    make()(torch.ones(shape))


@pytest.mark.parametrize(
    ("sequences", "hx", "message"),
    [
        ([(4, 2), (2, 2)], None, r"input packs data of shape \(6, 2\), expected \(rows, 3\)"),
        ([(4, 3), (2, 3)], (1, 3, 8), r"hx has shape \(1, 3, 8\), expected \(1, 2, 8\)"),
    ],
)
def test_mistakes_in_a_packed_input(sequences, hx, message):
    packed = pack_sequence([torch.ones(shape) for shape in sequences])
    with pytest.raises(ValueError, match=message):
        ht.OrthogonalRNN(3, 8)(packed, None if hx is None else torch.ones(hx))


def test_packed_sequences_have_ends_of_their_own():
    packed = torch.ones(4, 2), torch.ones(3, 4), torch.zeros(2, 4), *[None] * 5, torch.tensor([2, 1])
    with pytest.raises(ValueError, match="reverse is for sequences of one length"):
        torch.ops.householder.rnn(*packed, False, "relu", 0.0, False, True, "trapezoidal", "auto")
