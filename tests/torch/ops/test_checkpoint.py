"""Last states of long sequences: the same numbers and gradients, with few states kept."""

import sys

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils.parametrizations import weight_norm

import householder.torch as ht


class Last(nn.Module):
    """The last states of a layer, by checkpoints or without."""

    def __init__(self, rnn, every=None):
        super().__init__()
        self.rnn, self.every = rnn, every

    def forward(self, x):
        return self.rnn(x)[1] if self.every is None else ht.last_state(self.rnn, x, every=self.every)


def plain():
    return ht.OrthogonalRNN(3, 8, 3, num_reflections=3, learn_h0=True, dtype=torch.float64)


def tied():
    rnn = plain()
    rnn.cells[2].weight_ih = rnn.cells[1].weight_ih
    return rnn


def parametrized():
    rnn = plain()
    weight_norm(rnn.cells[0], "weight_ih")
    return rnn


@pytest.mark.parametrize("layer", [ht.OrthogonalRNN, ht.UnitaryRNN])
@pytest.mark.parametrize("every", [1, 7, 40, 1000])
@pytest.mark.parametrize("batch_first", [False, True])
def test_checkpoints_change_nothing(layer, every, batch_first):
    torch.manual_seed(0)
    rnn = layer(3, 8, num_layers=2, num_reflections=3, batch_first=batch_first, dtype=torch.float64)
    x = torch.randn(*((2, 40, 3) if batch_first else (40, 2, 3)), dtype=torch.float64, requires_grad=True)
    h0 = torch.randn(2, 2, 8, dtype=rnn(x)[1].dtype, requires_grad=True)
    inputs = [x, h0, *rnn.parameters()]
    last = ht.last_state(rnn, x, h0, every=every)
    expected = rnn(x, h0)[1]
    torch.testing.assert_close(last, expected)
    weights = torch.randn_like(expected)
    for actual, wanted in zip(
        torch.autograd.grad((last * weights).real.sum(), inputs),
        torch.autograd.grad((expected * weights).real.sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(actual, wanted)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_the_second_pass_is_under_autocast_as_the_first(half):
    rnn, x = ht.OrthogonalRNN(3, 8).to(half), torch.randn(40, 2, 3)
    with torch.autocast("cpu", half):
        last, expected = ht.last_state(rnn, x, every=7), rnn(x)[1]
    wanted = list(rnn.parameters())
    found = torch.autograd.grad(last.sum(), wanted)
    for actual, right in zip(found, torch.autograd.grad(expected.sum(), wanted), strict=True):
        torch.testing.assert_close(actual, right, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("make", [plain, tied, parametrized])
def test_gradients_are_those_of_the_parameters_it_was_called_with(make):
    torch.manual_seed(0)
    rnn = make()
    x = torch.randn(20, 2, 3, dtype=torch.float64, requires_grad=True)
    others = {f"rnn.{name}": torch.randn_like(p, requires_grad=True) for name, p in rnn.named_parameters()}
    gradients = [
        torch.autograd.grad(functional_call(Last(rnn, every), others, (x,)).square().sum(), [x, *others.values()])
        for every in (5, None)
    ]
    torch.testing.assert_close(*gradients)


def test_tied_parameters_may_be_called_with_untied_ones():
    torch.manual_seed(0)
    rnn = tied()
    x = torch.randn(20, 2, 3, dtype=torch.float64)
    others = {
        f"rnn.{k}": torch.randn_like(p, requires_grad=True) for k, p in rnn.named_parameters(remove_duplicate=False)
    }
    gradients = []
    for every in (5, None):
        last = functional_call(Last(rnn, every), others, (x,), tie_weights=False)
        gradients.append(torch.autograd.grad(last.square().sum(), list(others.values())))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("shared", [False, True])
def test_the_layer_keeps_its_parameters(shared):
    torch.manual_seed(0)
    rnn = tied()
    if shared:
        rnn.cells[2] = rnn.cells[1]
    x = torch.randn(20, 2, 3, dtype=torch.float64)
    parameters = dict(rnn.named_parameters())
    expected = torch.autograd.grad(rnn(x)[1].square().sum(), list(parameters.values()))
    ht.last_state(rnn, x, every=5).square().sum().backward()
    torch.testing.assert_close([p.grad for p in parameters.values()], list(expected))
    assert all(p is parameters[name] for name, p in rnn.named_parameters())


def test_hooks_of_parameters_see_their_gradient_once():
    torch.manual_seed(0)
    rnn = plain()
    x = torch.randn(20, 2, 3, dtype=torch.float64)
    expected = torch.autograd.grad(rnn(x)[1].square().sum(), rnn.cells[0].reflections)[0]
    seen = []
    rnn.cells[0].reflections.register_hook(seen.append)
    ht.last_state(rnn, x, every=5).square().sum().backward()
    torch.testing.assert_close(seen, [expected])


def test_dropout_is_refused_in_the_backward_pass_too():
    rnn = ht.OrthogonalRNN(3, 8, 2, dropout=0.5).eval()
    last = ht.last_state(rnn, torch.randn(20, 2, 3), every=5)
    rnn.train()
    with pytest.raises(ValueError, match="without dropout"):
        last.sum().backward()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak of memory is not there, or in other units")
def test_a_hundred_thousand_steps_fit_in_little_memory(run_script):
    # All states would take 100,000 x 4 x 64 floats: 102 MB.
    script = """
        import resource, torch
        import householder.torch as ht
        torch.set_num_threads(1)
        rnn = ht.OrthogonalRNN(1, 64, num_reflections=8)
        x = torch.randn(100_000, 4, 1)
        ht.last_state(rnn, x[:1000], every=300).sum().backward()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        ht.last_state(rnn, x, every=300).sum().backward()
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    assert int(run_script(script)) < 30  # MiB


def test_one_direction_and_a_positive_distance():
    x = torch.randn(5, 1, 2)
    with pytest.raises(ValueError, match="forward only"):
        ht.last_state(ht.OrthogonalRNN(2, 4, bidirectional=True), x, every=2)
    with pytest.raises(ValueError, match="every is 0"):
        ht.last_state(ht.OrthogonalRNN(2, 4), x, every=0)
    with pytest.raises(TypeError, match=r"rnn is an LSTM, expected an OrthogonalRNN or a UnitaryRNN"):
        ht.last_state(nn.LSTM(3, 8), torch.ones(5, 2, 3), every=2)
    with pytest.raises(TypeError, match=r"every is 2\.0, expected an integer"):
        ht.last_state(ht.OrthogonalRNN(2, 4), x, every=2.0)
    with pytest.raises(TypeError, match=r"input is a .*PackedSequence"):
        ht.last_state(ht.OrthogonalRNN(2, 4), nn.utils.rnn.pack_sequence([x[:, 0]]), every=2)
