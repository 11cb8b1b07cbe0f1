"""The mathematics in the array API standard is that of explicit reflections, whichever library computes it."""

from itertools import pairwise

import array_api_compat.numpy
import numpy as np
import pytest
import torch

from householder import reference
from householder._base.spec import NONLINEARITIES as TABLE
from householder._mathematics import delta_gradients, linear_attention, nonlinearities, recurrence, reflections
from householder._mathematics.library import Library
from householder.reference.sequence import ReferenceNonlinearity, rnn_forward
from tests.conftest import NONLINEARITIES, assert_close, each_nonlinearity, randn
from tests.oracles.torch import of_columns
from tests.tester import oracle


def of_numpy():
    return Library(array_api_compat.numpy), np.asarray, np.asarray


def of_the_standard():
    """A namespace that refuses whatever the standard does not promise."""
    xp = pytest.importorskip("array_api_strict")
    return Library(xp), xp.asarray, np.asarray


def of_torch():
    from householder.torch._base import expressions

    return expressions.LIBRARY, torch.from_numpy, lambda t: t.numpy()


def of_exported_programs():
    _, to, back = of_torch()
    from householder.torch._base import expressions

    return expressions.EXPORTED, to, back


@pytest.fixture(params=[of_numpy, of_the_standard, of_torch, of_exported_programs], ids=lambda make: make.__name__[3:])
def call(request):
    """Call a function of the text with NumPy arrays, in one of the libraries; sizes stay NumPy's."""
    lib, to, back = request.param()

    def convert(a):
        return to(np.ascontiguousarray(a)) if isinstance(a, np.ndarray) and a.dtype.kind != "i" else a

    def call(function, *arguments):
        found = function(lib, *map(convert, arguments))
        return tuple(map(back, found)) if isinstance(found, tuple) else back(found)

    return call


def each(function, *stacks):
    return np.stack([function(*arrays) for arrays in zip(*stacks, strict=True)])


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 7), (9, 4), (70, 65)])
def test_products_of_reflections(call, n, m, transpose, double, rng):
    m -= m == n and double.kind == "c"
    u, h = randn(rng, (2, n, m), double), randn(rng, (2, 3, 2, n), double)
    if m > 2:
        u[:, :, 1] = 0  # the identity
    found = call(reflections.apply, u, h, transpose)
    assert_close(found, each(lambda u, h: reference.forward(u, h, None, transpose), u, h), factor=1000)
    assert_close(call(reflections.apply, u, h[:, 0, 0], transpose), found[:, 0, 0])
    assert_close(call(reflections.apply, u[0], h[0], transpose), found[0])
    assert_close(call(reflections.matrix, u), each(reference.matrix, u), factor=1000)


def test_phases(call, rng):
    u, phases = randn(rng, (6, 3), "complex128"), rng.standard_normal(6)
    w = call(reflections.turn, call(reflections.matrix, u), phases)
    assert_close(w, reference.matrix(u, phases))


@pytest.mark.parametrize("shape", ["trapezoidal", "full"])
@pytest.mark.parametrize("given", [False, True])
def test_columns_of_other_forms(call, shape, given, double, rng):
    u, h = randn(rng, (5, 5), double), randn(rng, (3, 5), double)
    tau = randn(rng, 5, double) if given else None
    if shape == "trapezoidal" and not given:
        u = u[:, :4]
    w = of_columns(torch.from_numpy(u), torch.from_numpy(tau) if given else None, shape).numpy()
    assert_close(call(reflections.apply, u, h, False, tau, shape), h @ w.T, factor=1000)
    assert_close(call(reflections.apply, u, h, True, tau, shape), h @ w.conj(), factor=1000)
    assert_close(call(reflections.matrix, u, tau, shape), w, factor=1000)


def bias_of(nonlinearity, n, double, rng):
    phi = TABLE[nonlinearity]
    return rng.standard_normal(phi.moduli(n, double.kind == "c")) if phi.has_bias else None


@each_nonlinearity("double", ["float64", "complex128"])
def test_nonlinearities(call, nonlinearity, double, rng):
    a = randn(rng, (40, 6), double)
    a[0] = 0
    bias = bias_of(nonlinearity, 6, double, rng)
    found = call(nonlinearities.activate, a, nonlinearity, 0.1, bias)
    assert_close(found, ReferenceNonlinearity(nonlinearity, 0.1, bias).forward(a))


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES["f"])
def test_what_is_not_finite_passes_through_nonlinearities(call, nonlinearity):
    a = np.array([[np.nan, np.inf, -np.inf, np.nan]])
    phi = TABLE[nonlinearity]
    bias = -0.1 * np.ones(phi.moduli(4, False)) if phi.has_bias else None
    found = call(nonlinearities.activate, a, nonlinearity, 0.1, bias)
    assert np.isnan(found[0, 0])
    if nonlinearity not in ("modrelu", "oplu"):
        assert found[0, 2] == {"relu": 0, "tanh": -1}.get(nonlinearity, -np.inf)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@each_nonlinearity("double", ["float64", "complex128"])
def test_recurrences(call, nonlinearity, double, transpose, packed, rng):
    n, d, sizes = 6, 4, np.array([3, 3, 2, 1] if packed else [3, 3, 3, 3])
    u, v, b = randn(rng, (n, 3), double), randn(rng, (n, d), double), randn(rng, n, double)
    x, h0 = randn(rng, (sizes.sum(), d), double), randn(rng, (3, n), double)
    phases = rng.standard_normal(n) if double.kind == "c" else None
    bias = bias_of(nonlinearity, n, double, rng)
    options = {"input_weight": v, "bias": b, "phases": phases, "transpose": transpose}
    expected = rnn_forward(u, x, h0, sizes, ReferenceNonlinearity(nonlinearity, 0.1, bias), **options)
    steps = x if packed else x.reshape(4, 3, d)
    others, options = (h0, v, b, phases, bias, None), (nonlinearity, 0.1, transpose)
    packing = sizes if packed else None
    h, last = call(recurrence.rnn, u, steps, *others, packing, *options, False, "trapezoidal")
    assert_close(h.reshape(-1, n), expected, factor=1000)
    ends = [8, 7, 5] if packed else [9, 10, 11]
    assert_close(last, expected[ends], factor=1000)
    if not packed:
        back, first = call(recurrence.rnn, u, steps[::-1], *others, None, *options, True, "trapezoidal")
        assert_close(back[::-1], h)
        assert_close(first, last)


def test_recurrences_of_many_matrices_and_of_no_steps(call, rng):
    u, x, v, b = (rng.standard_normal(shape) for shape in ((2, 5, 3), (2, 4, 3, 6), (2, 5, 6), (2, 5)))
    options = None, None, None, None, "tanh", 0.1, False, False, "trapezoidal"
    h, last = call(recurrence.rnn, u, x, None, v, b, *options)
    for i in range(2):
        one, end = call(recurrence.rnn, u[i], x[i], None, v[i], b[i], *options)
        assert_close(h[i], one)
        assert_close(last[i], end)
    h, last = call(recurrence.rnn, u, x[:, :0], last, v, b, *options)
    assert h.shape == (2, 0, 3, 5)
    assert last.shape == (2, 3, 5)


@pytest.mark.parametrize("gate", [None, "head", "channel"])
@pytest.mark.parametrize("erases", [True, False])
@pytest.mark.parametrize(("tokens", "r"), [(0, 1), (1, 1), (3, 2), (64, 1), (70, 2), (133, 1)])
def test_the_delta_rule_and_linear_attention(call, gate, erases, tokens, r, rng):
    q, k = rng.standard_normal((2, tokens, 1, 4)), rng.standard_normal((2, tokens * r, 1, 4))
    v, beta = rng.standard_normal((2, tokens * r, 2, 3)), rng.uniform(0, 1, (2, tokens * r, 2))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    shape = {None: None, "head": (2, tokens, 2), "channel": (2, tokens, 2, 4)}[gate]
    g = None if shape is None else -rng.exponential(1.0, shape)
    state = rng.standard_normal((2, 2, 4, 3))
    beta = beta if erases else None
    o, last = call(linear_attention.delta_rule, q, k, v, beta, g, state, None, 0.5, r, False)
    for i, head in np.ndindex(2, 2):
        gates = None if g is None else g[i, :, head].reshape(tokens, 4 if gate == "channel" else 1)
        betas = beta[i, :, head] if erases else None
        one = q[i, :, 0], k[i, :, 0], v[i, :, head], betas, gates, state[i, head], 0.5
        expected, end = reference.delta_rule_forward(*one)
        assert_close(o[i, :, head], expected, factor=1000)
        assert_close(last[i, head], end, factor=1000)


@pytest.mark.parametrize("gate", [None, "head", "channel"])
@pytest.mark.parametrize(("erases", "skips"), [(True, False), (False, False), (True, True), (False, True)])
@pytest.mark.parametrize(("tokens", "r"), [(1, 1), (3, 2), (64, 1), (70, 2), (133, 1)])
def test_gradients_of_the_delta_rule_and_linear_attention(call, gate, erases, skips, tokens, r, rng):
    r = r if erases and not skips else 1
    shape = {None: None, "head": (2, tokens, 2), "channel": (2, tokens, 2, 4)}[gate]
    operands = [
        rng.standard_normal((2, tokens, 1, 4)),
        rng.standard_normal((2, tokens * r, 1, 4)),
        rng.standard_normal((2, tokens * r, 2, 3)),
        rng.uniform(0, 1, (2, tokens * r, 2)) if erases else None,
        None if shape is None else -rng.exponential(1.0, shape),
        rng.standard_normal((2, 2, 4, 3)),
    ]
    skip = rng.standard_normal(2) if skips else None
    grads = rng.standard_normal((2, tokens, 2, 3)), rng.standard_normal((2, 2, 4, 3))

    def gradients(*arguments):
        return tuple(grad for grad in delta_gradients.delta_rule(*arguments) if grad is not None)

    found = call(gradients, *operands, None, 0.5, r, True, skip, *grads)
    leaves = [None if a is None else torch.from_numpy(a).requires_grad_() for a in (*operands, skip)]
    q, k, v, beta, g, state, factor = leaves
    written, betas = (v if beta is None else beta[..., None] * v, None) if skips else (v, beta)
    o, last = oracle.delta_rule(q, k, written, betas, g, state, scale=0.5, reflections=r, normalize=True)
    o = o + factor[:, None] * v if skips else o
    expected = torch.autograd.grad((o, last), [t for t in leaves if t is not None], [*map(torch.from_numpy, grads)])
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other.numpy(), factor=1000)


def test_packed_sequences_of_the_delta_rule_are_sequences(call, rng):
    q, k, v = (rng.standard_normal((1, 10, 1, 3)) for _ in range(3))
    beta, ends = rng.uniform(0, 1, (1, 10, 1)), np.array([0, 4, 4, 10])
    o, states = call(linear_attention.delta_rule, q, k / 4, v, beta, None, None, ends, 1.0, 1, False)
    for i, (begin, end) in enumerate(pairwise(ends)):
        parts = (a[:, begin:end] for a in (q, k / 4, v, beta))
        one, state = call(linear_attention.delta_rule, *parts, None, None, None, 1.0, 1, False)
        assert_close(o[:, begin:end], one)
        assert_close(states[i : i + 1], state)


@pytest.mark.parametrize(
    "phi",
    [
        lambda name: nonlinearities.activate(of_numpy()[0], np.ones(4), name, 0.1, None),
        lambda name: ReferenceNonlinearity(name).forward(np.ones(4)),
        lambda name: ReferenceNonlinearity(name).backward(np.ones(4), np.ones(4)),
        lambda name: oracle.phi(torch.ones(4), name),
    ],
    ids=["expression", "reference", "gradient of the reference", "oracle of the random tester"],
)
def test_a_name_without_mathematics_is_no_other_function(phi, monkeypatch):
    monkeypatch.setitem(TABLE, "unknown", TABLE["identity"]._replace(name="unknown"))
    with pytest.raises(NotImplementedError, match=r"nonlinearity: no .* 'unknown'"):
        phi("unknown")
