"""Contiguous tensors go to the core without a copy, and little is saved for the backward pass."""

import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import householder.torch as ht
from householder import _core
from householder.torch.layers.recurrent_cell import Sequences
from tests.oracles.torch import problem

FUNCTIONS = ("forward", "backward", "matrix", "rnn_forward", "rnn_backward")


@pytest.fixture
def addresses(monkeypatch):
    """The addresses that each function of the core was given in its last call."""
    seen = {}

    def watched(name):
        function = getattr(_core, name)

        def call(*arguments):
            given = [t for a in arguments for t in (a if isinstance(a, (tuple, list)) else [a])]
            seen[name] = pointers(*(t for t in given if isinstance(t, torch.Tensor)))
            return function(*arguments)

        return call

    for name in FUNCTIONS:
        monkeypatch.setattr(_core, name, watched(name))
    return seen


def pointers(*tensors):
    return {t.data_ptr() for t in tensors}


def test_an_application_copies_nothing(addresses):
    u, h = (t.requires_grad_() for t in problem(5, 2, 3))
    c = ht.apply(u, h)
    assert pointers(u, h, c) <= addresses["forward"]
    g = torch.randn_like(c)
    grads = torch.autograd.grad(c, (u, h), g)
    assert pointers(u, h, g, *grads) <= addresses["backward"]


def test_a_matrix_is_not_copied(addresses):
    u, _ = problem(5, 2)
    w = ht.matrix(u.requires_grad_())
    assert pointers(u, w) <= addresses["matrix"]


@pytest.mark.parametrize("packed", [False, True])
def test_a_sequence_copies_nothing(addresses, packed):
    u, x = problem(8, 2, 6, *() if packed else (3,))
    batch_sizes = torch.tensor([3, 2, 1]) if packed else None
    tensors = [u, x, torch.randn(3, 8), torch.randn(8, 8), torch.randn(8)]
    tensors = [t.double().requires_grad_() for t in tensors]
    u, x, h0, v, b = tensors
    h, _ = ht.rnn(u, x, h0, input_weight=v, bias=b, batch_sizes=batch_sizes)
    assert pointers(*tensors, h) <= addresses["rnn_forward"]
    g = torch.randn_like(h)
    grads = torch.autograd.grad(h, tensors, g)
    assert pointers(*tensors, h, g, *grads) <= addresses["rnn_backward"]


def test_layers_hand_their_parameters_over_as_they_are(addresses):
    layer = ht.OrthogonalRNN(3, 8, num_reflections=2)
    x = torch.randn(6, 4, 3)
    output, _ = layer(x)
    assert pointers(x, output, *layer.parameters()) <= addresses["rnn_forward"]
    output.sum().backward()
    assert pointers(*(p.grad for p in layer.parameters())) <= addresses["rnn_backward"]


def test_sequences_that_lie_one_after_the_other_are_not_copied(addresses):
    layer = ht.OrthogonalRNN(3, 8, num_reflections=2, batch_first=True)
    x, g = torch.randn(4, 6, 3), torch.randn(4, 6, 8)
    output, _ = layer(x)
    output.backward(g)
    assert pointers(x) <= addresses["rnn_forward"]
    assert pointers(x, g) <= addresses["rnn_backward"]


def test_both_directions_read_what_they_are_given(monkeypatch):
    seen, backward = [], _core.rnn_backward

    def watched(inputs, options, h, grad_h, *others):
        seen.append(grad_h.data_ptr())
        backward(inputs, options, h, grad_h, *others)

    monkeypatch.setattr(_core, "rnn_backward", watched)
    layer = ht.OrthogonalRNN(3, 8, num_reflections=2, bidirectional=True)
    g = torch.randn(6, 4, 16)
    output, _ = layer(torch.randn(6, 4, 3))
    output.backward(g)
    assert set(seen) == pointers(g, g[..., 8:])


def test_large_states_of_two_directions_are_those_of_each():
    layer = ht.OrthogonalRNN(3, 64, num_reflections=2, bidirectional=True)
    x, (forward, backward) = torch.randn(100, 20, 3), layer.cells
    there, back = forward(x, None, over=Sequences(None)), backward(x, None, over=Sequences(None, reverse=True))
    output, expected = layer(x)[0], torch.cat((there[0], back[0]), -1)
    assert output.nbytes > 1 << 18
    assert torch.equal(output, expected)
    gradients = [torch.autograd.grad(h.sin().sum(), list(layer.parameters())) for h in (output, expected)]
    assert all(map(torch.equal, *gradients))


def saved(run):
    """The tensors that ``run`` saves for the backward pass, and what it returns."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        result = run()
    return kept, result


def test_an_application_keeps_its_inputs_only():
    u, h = (t.requires_grad_() for t in problem(64, 8, 100))
    kept, _ = saved(lambda: ht.apply(u, h))
    assert pointers(*(t for t in kept if t.numel() > 1)) == pointers(u, h)


@pytest.fixture
def factors(monkeypatch):
    """What each call of the core leaves to its backward pass, as weak references."""
    left = []

    def watched(function):
        def call(*arguments):
            kept = function(*arguments)
            if kept is not None:
                left.append(weakref.ref(kept))
            return kept

        return call

    for name in ("forward", "matrix", "rnn_forward"):
        monkeypatch.setattr(_core, name, watched(getattr(_core, name)))
    return left


def keeping(kind):
    """A call whose forward pass leaves something to its backward pass, and its inputs."""
    u, h = (t.requires_grad_() for t in problem(128, 16, 50))
    inputs = {"apply": (u, h), "matrix": (u,), "rnn": (u, h.detach()[None].requires_grad_())}[kind]
    function = {"apply": ht.apply, "matrix": ht.matrix, "rnn": lambda u, x: ht.rnn(u, x)[0]}[kind]
    return lambda: function(*inputs), inputs


@pytest.mark.parametrize("kind", ["apply", "matrix", "rnn"])
def test_factors_live_until_the_last_backward_pass(kind, factors):
    call, inputs = keeping(kind)
    result = call()
    (left,) = factors
    torch.autograd.grad(result.sum(), inputs, retain_graph=True)
    assert left() is not None
    torch.autograd.grad(result.sum(), inputs)
    assert left() is None
    assert result.grad_fn is not None


@pytest.mark.parametrize("kind", ["apply", "matrix", "rnn"])
def test_activation_checkpoints_hold_no_factors(kind, factors):
    call, inputs = keeping(kind)
    expected = torch.autograd.grad(call().square().sum(), inputs)
    factors.clear()
    loss = checkpoint(lambda: call().square().sum(), use_reentrant=False)
    (left,) = factors
    assert left() is None
    torch.testing.assert_close(torch.autograd.grad(loss, inputs), expected)


@pytest.mark.parametrize("m", [8, 64])
def test_a_sequence_keeps_no_tensor_but_its_states(m):
    """No pre-activation and no second state; the projections ``U* h`` are in the core's memory."""
    layer = ht.OrthogonalRNN(3, 64, num_reflections=m)
    x = torch.randn(200, 10, 3)
    kept, (output, _) = saved(lambda: layer(x))
    known = pointers(x, output, *layer.parameters())
    assert all(t.numel() <= 64 * 64 or t.data_ptr() in known for t in kept)


def test_nothing_is_kept_without_gradients():
    layer = ht.OrthogonalRNN(3, 8).requires_grad_(False)
    kept, _ = saved(lambda: layer(torch.randn(6, 4, 3)))
    assert not kept


def large_results():
    """An application, its gradients and a matrix, of 256 KiB and more each."""
    u, h = torch.randn(512, 256).requires_grad_(), torch.randn(512, 512).requires_grad_()
    c = ht.apply(u, h)
    c.backward(torch.ones_like(c))
    return [c.detach(), u.grad, h.grad, ht.matrix(u.detach())]


def test_large_results_can_be_resized_as_torchs_can():
    for result in large_results():
        kept = result.clone()
        storage = result.untyped_storage()
        assert storage.nbytes() == result.nbytes
        torch.cat([kept, kept], out=result.resize_(0))
        assert torch.equal(result, torch.cat([kept, kept]))
        storage.resize_(0)
        assert storage.nbytes() == 0


@pytest.mark.parametrize("keep", ["tensor", "view", "storage", "array", "graph"])
def test_memory_that_anything_refers_to_is_not_used_again(keep):
    u, h = torch.randn(512, 8), torch.randn(512, 512).requires_grad_()
    c = ht.apply(u, h)
    expected = c.detach().clone()
    held = {
        "tensor": lambda c: c,
        "view": lambda c: c[3:5],
        "storage": lambda c: c.untyped_storage(),
        "array": lambda c: c.detach().numpy(),
        "graph": lambda c: (c * c).sum(),
    }[keep](c)
    del c
    for _ in range(3):
        ht.apply(u, torch.zeros(512, 512))
    if keep == "graph":
        assert torch.allclose(torch.autograd.grad(held, h)[0], 2 * ht.apply(ht.Reflections(u).H, expected), atol=1e-5)
    elif keep == "view":
        assert torch.equal(held, expected[3:5])
    else:
        values = torch.empty(0).set_(held) if keep == "storage" else torch.as_tensor(held)
        assert torch.equal(values.detach().flatten(), expected.flatten())
