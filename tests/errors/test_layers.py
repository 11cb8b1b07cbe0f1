"""Layers, adapters and parametrizations made wrongly: each error names the argument and what was given.

A row has an argument, a wrong value and what is expected. ``rest`` is what else the call needs for the value to be the
only mistake. The message begins with ``argument is value`` and goes on with what is expected. Rows that say something
else have a text of their own.
"""

import ast
import copy
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import householder.torch as ht

MADE_BY: dict[Callable[..., nn.Module], dict[str, Any]] = {
    ht.OrthogonalRNN: {"input_size": 3, "hidden_size": 8},
    ht.OrthogonalRNNCell: {"input_size": 3, "hidden_size": 8},
    ht.UnitaryRNN: {"input_size": 3, "hidden_size": 8},
    ht.UnitaryRNNCell: {"input_size": 3, "hidden_size": 8},
    ht.Orthogonal: {"in_features": 6, "out_features": 4},
    ht.Unitary: {"in_features": 6, "out_features": 4},
    ht.SVDLinear: {"in_features": 6, "out_features": 4},
    ht.ModReLU: {"num_moduli": 4},
    ht.DeltaNet: {"hidden_size": 12, "num_heads": 2},
    ht.OrthogonalAdapter: {"linear": nn.Linear(16, 5), "num_reflections": 4},
    ht.orthogonal: {"module": nn.Linear(3, 4)},
}
RECURRENT = ht.OrthogonalRNN, ht.OrthogonalRNNCell, ht.UnitaryRNN, ht.UnitaryRNNCell
LINEAR = ht.Orthogonal, ht.Unitary, ht.SVDLinear
REAL = ht.OrthogonalRNN, ht.OrthogonalRNNCell, ht.Orthogonal, ht.SVDLinear, ht.ModReLU, ht.DeltaNet
COMPLEX = ht.UnitaryRNN, ht.UnitaryRNNCell, ht.Unitary
PAIRS = {"hidden_size": 7}
TWO_LAYERS = {"num_layers": 2}


class Mistake(NamedTuple):
    """Layers, an argument with a wrong value, what is expected, the rest of the call, and a message of its own."""

    layers: tuple[Callable[..., nn.Module], ...]
    argument: str
    value: Any
    expected: str = ""
    rest: dict[str, Any] = {}  # noqa: RUF012
    says: str | None = None


def refused_by(*layers):
    return lambda *row, **more: Mistake(layers, *row, **more)


rnn, delta, adapter, constrained = map(refused_by, (ht.OrthogonalRNN, ht.DeltaNet, ht.OrthogonalAdapter, ht.orthogonal))
AT_LEAST_ONE = "expected at least 1"
INTEGER, NUMBER, FLAG = "expected an integer", "expected a number", "expected True or False"

VALUES = [
    Mistake(RECURRENT, "input_size", 0, AT_LEAST_ONE),
    Mistake(RECURRENT, "hidden_size", 0),
    Mistake(RECURRENT, "nonlinearity", "sigmoid", "expected one of 'identity'"),
    Mistake(RECURRENT, "method", "fast", "expected one of 'auto', 'wy', 'dense'"),
    Mistake(RECURRENT, "method", "reflections", "expected one of 'auto', 'wy', 'dense'"),
    Mistake(RECURRENT, "num_reflections", 0, AT_LEAST_ONE),
    Mistake(RECURRENT[:2], "num_reflections", 9, "expected at least 1 and at most 8"),
    Mistake(RECURRENT[2:], "num_reflections", 8, "expected at least 1 and at most 7"),
    Mistake(RECURRENT[2:], "hidden_size", 1, "expected at least 2"),
    rnn("num_layers", 0, AT_LEAST_ONE),
    rnn("num_reflections", [1, 2, 3], rest=TWO_LAYERS, says="expected one number or 2, one per layer"),
    rnn("nonlinearity", "oplu", rest=PAIRS, says="acts on pairs"),
    rnn("nonlinearity", "modrelu", rest=PAIRS, says="acts on pairs"),
    rnn("negative_slope", -0.1),
    *(rnn("dropout", value, "expected a number in") for value in (-0.1, 1.1)),
    rnn("constraint", "none", "expected one of 'hard', 'soft'"),
    Mistake(LINEAR, "in_features", 0, AT_LEAST_ONE),
    Mistake(LINEAR, "out_features", 0, AT_LEAST_ONE),
    refused_by(ht.Orthogonal)("num_reflections", 5, "expected at least 1 and at most 4"),
    refused_by(ht.Unitary)("num_reflections", 4, "expected at least 1 and at most 3", {"in_features": 4}),
    refused_by(ht.Unitary)("in_features", 1, rest={"out_features": 1}, says="expected n = max"),
    refused_by(ht.SVDLinear)("margin", 1.5, "expected a number in"),
    delta("hidden_size", 12, "expected a multiple of num_heads = 5", {"num_heads": 5}),
    delta("hidden_size", 0),
    delta("gate", "row"),
    delta("num_householder", 0),
    delta("conv_size", 0),
    delta("expand_v", 0.1, "values of 0.6 numbers, expected at least 1 and less than 2147483648"),
    delta("expand_v", 1e12, r"values of 6e\+12 numbers"),
    delta("expand_v", float("nan")),
    delta("expand_v", float("inf")),
    delta("max_beta", 2.5, "expected above 0 and at most 2"),
    *(adapter("num_reflections", m, "expected an even number from 2") for m in (0, 3, 16, 18)),
    adapter("method", "zz", "expected one of 'auto'"),
    constrained("name", "weigth", says="Linear has no parameter 'weigth'.*: weight, bias"),
    constrained("name", "bias", rest={"module": nn.Linear(3, 4, bias=False)}, says="no parameter 'bias'.*: weight$"),
    constrained("module", nn.Sequential(nn.Linear(3, 4)), says="no parameter 'weight' of its own.*: none"),
    constrained("name", "bias", says=r"bias of Linear has shape \(4,\)"),
    constrained("module", nn.Linear(1, 1, dtype=torch.complex64), says=r"complex weight of shape \(1, 1\)"),
    constrained("module", ht.orthogonal(nn.Linear(3, 4)), says="already parametrized"),
    constrained("num_reflections", 4, "expected at least 1 and at most 3"),
    constrained("orthogonal_map", "matrix_exp", "expected 'householder' or None"),
    constrained("orthogonal_map", "cayley", "expected 'householder' or None"),
]
TYPES = [
    Mistake(RECURRENT, "input_size", 3.0, INTEGER),
    Mistake(RECURRENT, "hidden_size", "8", INTEGER),
    Mistake(RECURRENT, "num_reflections", 2.0, INTEGER),
    rnn("num_layers", 1.5, INTEGER),
    rnn("num_reflections", [2, 2.0], rest=TWO_LAYERS, says="num_reflections is 2.0, expected an integer"),
    rnn("dropout", "a", NUMBER),
    rnn("dropout", True, NUMBER, TWO_LAYERS),
    rnn("negative_slope", "a", NUMBER),
    rnn("negative_slope", True, NUMBER),
    rnn("proj_size", False, INTEGER),
    rnn("learn_h0", 1, FLAG),
    Mistake(LINEAR, "in_features", 4.0, INTEGER),
    Mistake(LINEAR, "in_features", "4", INTEGER),
    Mistake(LINEAR, "out_features", True, INTEGER),
    Mistake(LINEAR, "out_features", 2.0, INTEGER),
    Mistake(LINEAR, "num_reflections", True, INTEGER),
    Mistake(LINEAR, "num_reflections", 2.0, INTEGER),
    Mistake(LINEAR, "bias", 1, FLAG),
    Mistake(LINEAR, "bias", 0.1, FLAG),
    refused_by(ht.SVDLinear)("margin", "a", NUMBER),
    refused_by(ht.SVDLinear)("margin", False, NUMBER),
    refused_by(ht.ModReLU)("num_moduli", 3.0, INTEGER),
    delta("hidden_size", 12.0, INTEGER),
    delta("num_heads", True, INTEGER),
    delta("num_householder", True, INTEGER),
    delta("conv_size", 4.0, INTEGER),
    delta("expand_v", True, NUMBER),
    delta("max_beta", True, NUMBER),
    Mistake(REAL, "dtype", torch.int32, "expected one of torch.float32"),
    Mistake(REAL, "dtype", torch.complex64, "expected one of torch.float32"),
    Mistake(COMPLEX, "dtype", torch.int32, "expected one of torch.complex64"),
    Mistake(COMPLEX, "dtype", torch.float16, "expected one of torch.complex64"),
    Mistake(COMPLEX, "dtype", torch.bfloat16, "expected one of torch.complex64"),
    adapter("num_reflections", 4.0, INTEGER),
    *(
        adapter("linear", layer, says="^linear is lazy and has no size yet: call it once before$")
        for layer in (nn.LazyLinear(4), nn.LazyConv2d(4, 1))
    ),
    adapter("linear", nn.Conv1d(4, 4, 1), says=r"linear is a Conv1d, expected an nn\.Linear"),
    adapter("linear", nn.LSTM(4, 4), says=r"linear is an LSTM, expected an nn\.Linear"),
    adapter("linear", nn.Linear(4, 4, dtype=torch.complex64), says=r"dtype torch\.complex64, expected a real layer"),
    constrained("module", nn.Linear(3, 4).weight, says=r"module is a Parameter, expected a torch\.nn\.Module"),
    constrained("module", nn.Linear(3, 4, dtype=torch.bfloat16), says=r"weight has dtype torch\.bfloat16"),
    constrained("num_reflections", "cayley", INTEGER),
]


@pytest.mark.parametrize(
    ("error", "layer", "mistake"),
    [
        pytest.param(error, layer, mistake, id=f"{layer.__name__}, {mistake.argument} {error.__name__} {i}")
        for error, mistakes in ((ValueError, VALUES), (TypeError, TYPES))
        for i, mistake in enumerate(mistakes)
        for layer in mistake.layers
    ],
)
def test_a_mistake_is_named(error, layer, mistake):
    arguments = MADE_BY[layer] | mistake.rest | {mistake.argument: mistake.value}
    message = mistake.says or rf"^{mistake.argument} is {re.escape(repr(mistake.value))}.*{mistake.expected}"
    with pytest.raises(error, match=message):
        layer(**arguments)


def test_each_layer_can_be_made_without_a_mistake():
    for layer, arguments in MADE_BY.items():
        assert isinstance(layer(**copy.deepcopy(arguments)), nn.Module)


@pytest.mark.parametrize("layer", [kind for kind in MADE_BY if isinstance(kind, type)], ids=lambda kind: kind.__name__)
def test_a_call_that_does_not_fit_names_the_class_and_what_may_be_meant(layer):
    needed, known = MADE_BY[layer], inspect.signature(layer).parameters
    first, *_, last = known
    for wrong in (f"the_{last}", f"{last[:-1]}"):
        message = f"^{layer.__name__}: got an unexpected keyword argument '{wrong}', did you mean '{last}'\\?$"
        with pytest.raises(TypeError, match=message):
            layer(**needed, **{wrong: 1})
    with pytest.raises(TypeError, match=f"^{layer.__name__}: got an unexpected keyword argument 'zzzz'$"):
        layer(**needed, zzzz=1)
    with pytest.raises(TypeError, match=f"^{layer.__name__}: missing a required argument: '{first}'$"):
        layer()
    with pytest.raises(TypeError, match=f"^{layer.__name__}: too many positional arguments$"):
        layer(*range(len(known) + 1))


def test_the_keyword_that_is_meant():
    with pytest.raises(TypeError, match="'reflections', did you mean 'num_reflections'"):
        ht.OrthogonalRNN(3, 8, reflections=4)


@pytest.mark.parametrize("kind", [ht.OrthogonalRNN, ht.UnitaryRNN])
def test_so_many_layers_may_be_meant_as_reflections(kind):
    with pytest.warns(UserWarning, match=r"num_layers is 16: for reflections in one layer, write num_reflections=16"):
        assert len(kind(2, 128, 16).cells) == 16
    kind(2, 8, 16, num_reflections=2)
    kind(2, 8, 7)


FUNCTIONS_OF_MODULES = {
    "accelerate": ht.accelerate,
    "restore": ht.restore,
    "adapt": lambda model: ht.adapt(model, "*"),
    "adapter_state": ht.adapter_state,
    "load_adapter_state": lambda model: ht.load_adapter_state(model, {}),
    "merge_adapters": ht.merge_adapters,
    "orthogonal": ht.orthogonal,
    "from_rnn": ht.OrthogonalRNN.from_rnn,
    "last_state": lambda rnn: ht.last_state(rnn, torch.ones(5, 3), every=2),
}


@pytest.mark.parametrize("name", FUNCTIONS_OF_MODULES)
@pytest.mark.parametrize(
    ("wrong", "kind"),
    [(3, "an int"), (None, "None"), ({}, "a dict"), (nn.Linear(2, 2).state_dict(), "a collections.OrderedDict")],
)
def test_what_is_no_module_is_named(name, wrong, kind):
    with pytest.raises(TypeError, match=rf"^\w+ is {kind}, expected an? [\w. ]+$"):
        FUNCTIONS_OF_MODULES[name](wrong)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (nn.LSTM(2, 2), "an LSTM"),
        (nn.RNN(2, 2), "an RNN"),
        (nn.GRU(2, 2), "a GRU"),
        (nn.Linear(2, 2), "a Linear"),
        (nn.Softmax(0), "a Softmax"),
        (ht.OPLU(), "an OPLU"),
        (ht.UnitaryRNN(2, 2), "a UnitaryRNN"),
        (ht.OrthogonalRNN(2, 2), "an OrthogonalRNN"),
        (nn.Module(), "a Module"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_kinds_have_their_article(value, told):
    with pytest.raises(TypeError, match=f"^u is {told}, expected a torch.Tensor$"):
        ht.apply(value, torch.ones(2))


def test_no_message_writes_an_article_or_a_module_before_the_name_of_a_type():
    """The article depends on the name, and ``builtins`` is no module that users know."""
    for path in Path(ht.__file__).parent.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        raised = [ast.unparse(node) for node in nodes if isinstance(node, ast.Raise)]
        assert [text for text in raised if re.search(r"\ban? \{type\(|__module__", text)] == []
