"""Arguments that are integers or numbers: NumPy's are taken as Python's are, and booleans are taken as neither."""

import numpy as np
import pytest

import householder as hh

Q = np.eye(5)
TOKENS = {name: np.full((1, 2, 1, 3), 0.5) for name in ("q", "k", "v")} | {"beta": np.ones((1, 2, 1))}
STEPS = TOKENS | {"q": TOKENS["q"][:, :1]}

INTEGERS = {
    "haar(n)": lambda k: hh.haar(k, rng=0),
    "haar(m)": lambda k: hh.haar(5, k, rng=0),
    "haar(rng)": lambda k: hh.haar(5, rng=k),
    "haar(size)": lambda k: hh.haar(5, rng=0, size=(k, 3)),
    "factor(m)": lambda k: hh.factor(hh.matrix(hh.haar(5, 2, rng=0)), k),
    "plan(n)": lambda k: hh.plan(k, 1).costs,
    "plan(m)": lambda k: hh.plan(9, k).costs,
    "plan(batch)": lambda k: hh.plan(9, 1, k).costs,
    "plan(steps)": lambda k: hh.plan(9, 1, 1, k).costs,
    "real_form(axis)": lambda k: hh.real_form(np.ones((2, 2, 2)) + 0j, axis=k),
    "delta_rule_forward(num_householder)": lambda k: hh.delta_rule(**STEPS, num_householder=k).o,
}
NUMBERS = {
    "rnn_forward(negative_slope)": lambda x: hh.rnn(
        Q[:, :2], -np.ones((3, 1, 5)), nonlinearity="leaky_relu", negative_slope=x
    )[0][0],
    "delta_rule_forward(scale)": lambda x: hh.delta_rule(**TOKENS, scale=x).o,
    "linear_attention(scale)": lambda x: hh.linear_attention(TOKENS["q"], TOKENS["k"], TOKENS["v"], scale=x).o,
}

try:
    import torch

    import householder.torch as ht
except ImportError:
    pass
else:
    T = {name: torch.from_numpy(a) for name, a in TOKENS.items()}
    T_STEPS = T | {"q": T["q"][:, :1]}
    X = torch.ones(6, 1, 3)

    def rnn(**options):
        torch.manual_seed(0)
        return ht.OrthogonalRNN(3, 6, **options)

    INTEGERS |= {
        "ht.haar(n)": lambda k: ht.haar(k, rng=0),
        "ht.haar(m)": lambda k: ht.haar(5, k, rng=0),
        "ht.haar(rng)": lambda k: ht.haar(5, rng=k),
        "ht.haar(size)": lambda k: ht.haar(5, rng=0, size=k),
        "ht.factor(m)": lambda k: ht.factor(ht.matrix(ht.haar(5, 2, rng=0)), k),
        "ht.last_state(every)": lambda k: ht.last_state(rnn(), X, every=k).detach(),
        "ht.delta_rule(num_householder)": lambda k: ht.delta_rule(**T_STEPS, num_householder=k)[0],
        "in_features": lambda k: ht.Orthogonal(k, 3)(torch.ones(2)).shape,
        "out_features": lambda k: ht.Unitary(3, k)(torch.ones(3)).shape,
        "num_reflections": lambda k: ht.SVDLinear(6, 4, num_reflections=k).left.reflections.shape,
        "input_size": lambda k: ht.OrthogonalRNNCell(k, 6).weight_ih.shape,
        "hidden_size": lambda k: ht.UnitaryRNN(3, k)(X)[0].shape,
        "num_layers": lambda k: rnn(num_layers=k)(X)[1].shape,
        "matrix(layer)": lambda k: rnn(num_layers=3).matrix(k).detach(),
    }
    NUMBERS |= {
        "ht.rnn(negative_slope)": lambda x: ht.rnn(torch.ones(4, 2), -torch.ones(3, 4), negative_slope=x)[0],
        "ht.delta_rule(scale)": lambda x: ht.delta_rule(**T, scale=x)[0],
        "dropout": lambda x: rnn(num_layers=2, dropout=x).dropout,
        "negative_slope": lambda x: rnn(negative_slope=x)(-X)[0].detach(),
        "margin": lambda x: ht.SVDLinear(4, margin=x).margin,
        "max_beta": lambda x: ht.DeltaNet(4, 2, max_beta=x).max_beta,
        "expand_v": lambda x: ht.DeltaNet(8, 2, expand_v=x).value_width,
    }


def assert_same(found, expected):
    for result, wanted in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, expected)), strict=True):
        np.testing.assert_equal(*(a.numpy() if hasattr(a, "numpy") else a for a in (result, wanted)))


@pytest.mark.parametrize("call", INTEGERS.values(), ids=INTEGERS)
def test_integers_of_numpy_are_integers_and_booleans_are_not(call):
    expected = call(2)
    for two in (np.int64(2), np.uint8(2), np.array(2)):
        assert_same(call(two), expected)
    for wrong in (True, np.True_, 2.0, np.float64(2), "2"):
        with pytest.raises(TypeError, match=r"expected .*an integer"):
            call(wrong)


@pytest.mark.parametrize("call", NUMBERS.values(), ids=NUMBERS)
def test_numbers_of_numpy_are_numbers_and_booleans_are_not(call):
    expected = call(0.5)
    for half in (np.float32(0.5), np.float64(0.5)):
        assert_same(call(half), expected)
    for wrong in (True, False, np.False_, "0.5"):
        with pytest.raises(TypeError):
            call(wrong)
