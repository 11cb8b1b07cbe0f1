"""What is saved for a backward pass: hooks may write it to files, and a backward pass reads it once."""

import copy
import io
from collections import Counter

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import householder.torch as ht
from tests.cases.layers import LAYERS
from tests.cases.torch import CASES


def of_layer(make, shape):
    """A layer as a function of its input and its parameters."""
    torch.manual_seed(0)
    layer = make().double()
    kind = torch.complex128 if next(layer.parameters(), torch.empty(0)).is_complex() else torch.float64
    x = torch.randn(shape, dtype=kind).requires_grad_()

    def function(x, *_):
        y = layer(x)
        return y[0] if isinstance(y, tuple) else y

    return function, [x, *(p for p in layer.parameters() if p.requires_grad)]


EVERY = {**CASES, **{f"{name}, a layer": of_layer(*made) for name, made in LAYERS.items()}}
every = pytest.mark.parametrize(("function", "inputs"), EVERY.values(), ids=EVERY)


def loss(y):
    return (torch.view_as_real(y) if y.is_complex() else y).sin().sum()


def to_file(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()


def from_file(written):
    return torch.load(io.BytesIO(written))


@every
def test_what_is_saved_may_go_to_files(function, inputs):
    expected = torch.autograd.grad(loss(function(*inputs)), inputs)
    with saved_tensors_hooks(to_file, from_file):
        value = loss(function(*inputs))
    torch.testing.assert_close(torch.autograd.grad(value, inputs), expected, rtol=1e-12, atol=1e-12)


@every
def test_a_backward_pass_reads_what_is_saved_once(function, inputs):
    saved, read = [], Counter()

    def reads(call):
        """How often a call reads what was saved before it: of all tensors, the one that it reads most often."""
        read.clear()
        before, result = len(saved), call()
        return result, max((count for place, count in read.items() if place < before), default=1)

    def pack(tensor):
        saved.append(tensor)
        return len(saved) - 1

    def unpack(place):
        read[place] += 1
        return saved[place]

    with saved_tensors_hooks(pack, unpack):
        value = loss(function(*inputs))
        first, once = reads(lambda: torch.autograd.grad(value, inputs, create_graph=True))
        penalty = sum(g.abs().square().sum() for g in first)
        _, twice = reads(lambda: torch.autograd.grad(penalty, inputs, allow_unused=True))
    assert (once, twice) == (1, 1)


@every
def test_gradients_may_be_taken_within_a_checkpoint(function, inputs):
    """As gradient penalties and forces do."""

    def penalty(first, *others):
        value = loss(function(first, *others))
        return torch.autograd.grad(value, first, create_graph=True)[0].abs().square().sum()

    def gradients(penalty):
        return torch.autograd.grad(penalty, inputs, allow_unused=True, materialize_grads=True)

    torch.testing.assert_close(
        gradients(checkpoint(penalty, *inputs, use_reentrant=False)), gradients(penalty(*inputs))
    )


class OfFunction(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", [name for name in CASES if name != "rnn packed"])  # shapes depend on its sizes
def test_exported_functions_have_gradients(name):
    function, inputs = CASES[name]
    exported = torch.export.export(OfFunction(function), tuple(inputs), strict=True).module()
    values = [torch.autograd.grad(loss(call(*inputs)), inputs) for call in (exported, function)]
    torch.testing.assert_close(*values)


@pytest.mark.parametrize("change", [copy.deepcopy, torch.clone, lambda t: t.detach().numpy()])
def test_hooks_may_replace_what_stands_for_saved_objects(change):
    u, h = torch.randn(40, 9, requires_grad=True), torch.randn(33, 40)
    expected = torch.autograd.grad(ht.apply(u, h).sum(), u)
    with saved_tensors_hooks(change, torch.as_tensor):
        value = ht.apply(u, h).sum()
    torch.testing.assert_close(torch.autograd.grad(value, u), expected)
