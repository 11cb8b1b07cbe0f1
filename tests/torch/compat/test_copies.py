"""Every object of the public interface is copied and pickled, before and after its first use."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel

import householder as hh
import householder.torch as ht
from householder.torch import parametrizations
from tests.cases import copies
from tests.cases.layers import LAYERS

F64 = torch.float64


def rows(*shape):
    return np.random.default_rng(0).standard_normal(shape)


def recurrence(**options):
    return hh.Recurrence(rows(6, 3), input_weight=rows(6, 2), **options)


def step(made):
    return made.step(rows(6), rows(2))


def vjp(**options):
    return hh.rnn_vjp(rows(6, 3), rows(7, 2, 6), rows(6), **options)[1]


def delta():
    return hh.delta_rule_vjp(*rows(3, 1, 7, 2, 4), beta=rows(1, 7, 2) ** 2, output_final_state=True)


OBJECTS = {
    "Recurrence": (recurrence, step),
    "Recurrence without a batch": (
        lambda: hh.Recurrence(hh.Reflections(rows(6, 3), rows(3), columns="full")),
        lambda r: r.step(rows(2, 6), rows(2, 6)),
    ),
    "SequenceVjp": (vjp, lambda pull: pull(rows(7, 2, 6), grad_last=rows(2, 6))),
    "SequenceVjp of pairs": (lambda: vjp(nonlinearity="oplu"), lambda pull: pull(rows(7, 2, 6))),
    "DeltaVjp": (lambda: delta()[1], lambda pull: pull(rows(1, 7, 2, 4), grad_final_state=rows(1, 2, 4, 4))),
    "Delta": (lambda: delta()[0], lambda results: results),
    "SequenceGradients": (lambda: vjp()(rows(7, 2, 6)), lambda grads: [a for a in grads if a is not None]),
    "Reflections": (lambda: hh.Reflections(rows(6, 3), phases=None), lambda w: w @ rows(6)),
    "Reflections of torch": (lambda: ht.Reflections(torch.from_numpy(rows(6, 3))), lambda w: w.matrix().numpy()),
    "WY": (lambda: hh.wy(rows(6, 3)), lambda form: form),
    "Plan": (lambda: hh.plan(6, 3), lambda plan: (plan.method, plan.costs, plan.reason)),
}


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, copies.pickled])
@pytest.mark.parametrize("name", OBJECTS)
def test_objects_of_numpy_are_copied(name, duplicate, is_used):
    make, use = OBJECTS[name]
    made = make()
    if is_used:
        use(made)
    np.testing.assert_equal(use(duplicate(duplicate(made))), use(made))


def test_a_recurrence_copies_its_parameters():
    u, v = rows(6, 3), rows(6, 2)
    made = hh.Recurrence(u, input_weight=v)
    u[:], v[:] = 0, 0
    np.testing.assert_array_equal(step(copy.copy(made)), step(recurrence()))


def networks():
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        for names in (["weight_hh_l0"], ["weight_hh_l0", "weight_ih_l1_reverse"]):
            yield pytest.param(kind, names, id=f"{kind.__name__} {len(names)}")


def constrained(kind, names):
    torch.manual_seed(0)
    network = kind(6, 8, 2, bidirectional=True, dtype=F64)
    for name in names:
        ht.orthogonal(network, name)
    return network


def train(module, x):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(x)[0].square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize(("kind", "names"), list(networks()))
def test_recurrent_networks_with_constrained_weights_are_copied(kind, names, steps):
    network, x = constrained(kind, names), torch.randn(5, 3, 6, dtype=F64)
    for _ in range(steps):
        train(network, x)
    twin = copy.deepcopy(network)
    best = copy.deepcopy(nn.ModuleDict({"inner": network}))["inner"]
    before = [t.clone() for t in network(x)[0]]
    for replica in (twin, best):
        torch.testing.assert_close(replica(x)[0], network(x)[0], rtol=0, atol=0)
        replica.flatten_parameters()
    train(twin, x)
    train(twin, x)
    assert not torch.allclose(twin(x)[0], network(x)[0])
    torch.testing.assert_close(list(network(x)[0]), before, rtol=0, atol=0)
    for name in names:
        weight = getattr(twin, name)
        gram = weight.mT @ weight if weight.shape[0] >= weight.shape[1] else weight @ weight.mT
        torch.testing.assert_close(gram, torch.eye(len(gram), dtype=F64))


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_networks_with_constrained_weights_are_averaged(kind):
    network, x = constrained(kind, ["weight_hh_l0"]), torch.randn(5, 3, 6, dtype=F64)
    train(network, x)
    average = AveragedModel(network)
    for _ in range(2):
        average.update_parameters(network)
    torch.testing.assert_close(average(x)[0], network(x)[0])


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_networks_whose_constraint_was_removed_are_copied(kind):
    network, x = constrained(kind, ["weight_hh_l0"]), torch.randn(5, 3, 6, dtype=F64)
    train(network, x)
    parametrize.remove_parametrizations(network, "weight_hh_l0")
    for duplicate in copies.WAYS:
        torch.testing.assert_close(duplicate(network)(x)[0], network(x)[0], rtol=0, atol=0)


def output(module, x):
    found = module(x)
    return found[0] if isinstance(found, tuple) else found


def is_parametrized(module):
    return any(isinstance(part, parametrize.ParametrizationList) for part in module.modules())


@pytest.mark.parametrize("use", ["none", "without gradients", "with gradients", "a step of training"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_copied(name, use):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    module, x = make(), torch.randn(shape)
    if use != "none":
        with torch.set_grad_enabled(use != "without gradients"):
            y = output(module, x)
        if use == "a step of training" and y.requires_grad:
            y.abs().sum().backward()
            torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1).step()
    ways = [copy.deepcopy] if is_parametrized(module) else copies.WAYS  # torch pickles no parametrized module
    for duplicate in ways:
        twin = duplicate(module)
        with torch.no_grad():
            torch.testing.assert_close(output(twin, x), output(module, x), rtol=0, atol=0)
        assert repr(twin) == repr(module)
        assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in module.parameters()}


def test_the_state_of_a_delta_net_is_copied():
    layer, x = ht.DeltaNet(12, 2), torch.randn(2, 12)
    with torch.no_grad():
        _, state = layer.step(x)
        expected = layer.step(x, state)
        for duplicate in (copy.copy, copy.deepcopy, copies.pickled):
            twin = duplicate(state)
            assert type(twin) is type(state)
            torch.testing.assert_close(layer.step(x, twin), expected, rtol=0, atol=0)


def test_a_parametrization_is_copied():
    weight = torch.linalg.qr(torch.randn(6, 4)).Q
    frames = parametrizations.Frames(weight)
    u = frames.right_inverse(weight)
    for duplicate in copies.WAYS:
        assert torch.equal(duplicate(frames)(u), frames(u))


def test_every_class_is_tried():
    tried = {type(part) for make, _ in LAYERS.values() for part in make().modules()}
    tried |= {type(make()) for make, _ in OBJECTS.values()} | {parametrizations.Frames}
    for library in (hh, ht, parametrizations):
        assert {getattr(library, name) for name in library.__all__ if isinstance(getattr(library, name), type)} <= tried


def test_functions_are_pickled():
    for library in (hh, ht, parametrizations):
        for name in library.__all__:
            assert pickle.loads(pickle.dumps(getattr(library, name))) is getattr(library, name)
