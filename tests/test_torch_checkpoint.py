"""Last states of long sequences: the same numbers and gradients, with few states kept."""

import subprocess
import sys
import textwrap

import pytest
import torch

import householder.torch as ht


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


def test_a_hundred_thousand_steps_fit_in_little_memory():
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
    grown = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert int(grown.stdout) < 30  # MiB


def test_one_direction_and_a_positive_distance():
    x = torch.randn(5, 1, 2)
    with pytest.raises(ValueError, match="forward only"):
        ht.last_state(ht.OrthogonalRNN(2, 4, bidirectional=True), x, every=2)
    with pytest.raises(ValueError, match="every is 0"):
        ht.last_state(ht.OrthogonalRNN(2, 4), x, every=0)
