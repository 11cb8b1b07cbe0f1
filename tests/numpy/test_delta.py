"""The delta rule and linear attention from NumPy against their step-by-step recurrence in double precision."""

from itertools import pairwise, product

import numpy as np
import pytest

import householder as hh
from householder import _core, reference

RULES = {
    "delta_rule": (hh.delta_rule, hh.delta_rule_vjp),
    "linear_attention": (hh.linear_attention, hh.linear_attention_vjp),
}
EACH_RULE = pytest.mark.parametrize("rule", RULES)
TOLERANCE = {
    "delta_rule": {"float32": 1e-5, "float64": 1e-13},
    "linear_attention": {"float32": 1e-5, "float64": 1e-14},
}
REAL = pytest.mark.parametrize("dtype", ["float32", "float64"])
WIDTHS = [1, 2, 3, 15, 16, 17, 31, 33, 64, 65, 129, 144]
LENGTHS = [0, 1, 2, 4, 5, 15, 16, 17, 31, 32, 33, 64, 65, 130]


def unit(a):
    return a / np.linalg.norm(a, axis=-1, keepdims=True)


def problem(
    rng,
    dtype,
    *,
    batch=1,
    tokens=40,
    heads=1,
    group=1,
    widths=(5, 7),
    gate="head",
    reflections=1,
    offsets=None,
    strength=1.0,
    initial=True,
    rule="delta_rule",
):
    """Arguments and options of a call; linear attention has no betas."""
    (keys, values), steps, value_heads = widths, tokens * reflections, heads * group
    shape = (batch, tokens, value_heads, keys)
    g = {None: None, "head": -rng.random(shape[:3]), "channel": -rng.random(shape)}[gate]
    states = (batch if offsets is None else len(offsets) - 1, value_heads, keys, values)
    arrays = [
        rng.standard_normal((batch, tokens, heads, keys)),
        unit(rng.standard_normal((batch, steps, heads, keys))),
        rng.standard_normal((batch, steps, value_heads, values)),
        2 * rng.random((batch, steps, value_heads)) if rule == "delta_rule" else None,
        None if g is None else strength * g,
        rng.standard_normal(states) if initial else None,
    ]
    *arrays, s0 = (None if a is None else a.astype(dtype) for a in arrays)
    return arrays, {"initial_state": s0, "num_householder": reflections, "cu_seqlens": offsets}


def step_by_step(arrays, options, grad_o=None, grad_last=None):
    """Results, or gradients, of each sequence and head by the reference."""
    q, k, v, beta, g = (None if a is None else a.astype(float) for a in arrays)
    s0, r, offsets = options["initial_state"], options["num_householder"], options["cu_seqlens"]
    (batch, tokens, heads, keys), (value_heads, values) = q.shape, v.shape[2:]
    spans = [(b, slice(0, tokens)) for b in range(batch)]
    if offsets is not None:
        spans = [(0, slice(a, b)) for a, b in pairwise(offsets)]
    states = (len(spans), value_heads, keys, values)
    s0 = np.zeros(states) if s0 is None else s0.astype(float)
    o, last = np.zeros((batch, tokens, value_heads, values)), np.zeros(states)
    grads = [None if a is None else np.zeros(a.shape) for a in (q, k, v, beta, g, s0)]
    for n, (b, t) in enumerate(spans):
        rows = slice(t.start * r, t.stop * r)
        for head in range(value_heads):
            key = head // (value_heads // heads)
            of_head = None if g is None else g[b, t, head].reshape(t.stop - t.start, *g.shape[3:] or (1,))
            betas = None if beta is None else beta[b, rows, head]
            one = (q[b, t, key], k[b, rows, key], v[b, rows, head], betas, of_head, s0[n, head])
            o[b, t, head], last[n, head] = reference.delta_rule_forward(*one, keys**-0.5)
            if grad_o is not None:
                found = reference.delta_rule_backward(*one, keys**-0.5, grad_o[b, t, head], grad_last[n, head])
                grads[0][b, t, key] += found.q
                grads[1][b, rows, key] += found.k
                grads[2][b, rows, head] = found.v
                if beta is not None:
                    grads[3][b, rows, head] = found.beta
                if g is not None:
                    grads[4][b, t, head] = found.g.reshape(g[b, t, head].shape)
                grads[5][n, head] = found.initial_state
    return (o, last) if grad_o is None else grads


def named(arrays, options):
    """The functions of a rule, and all arguments by name."""
    arguments = dict(zip(("q", "k", "v", "beta", "g"), arrays, strict=True)) | options
    if arguments["beta"] is not None:
        return *RULES["delta_rule"], arguments
    return *RULES["linear_attention"], {
        name: value for name, value in arguments.items() if name not in ("beta", "num_householder")
    }


def forward(arrays, options):
    function, _, arguments = named(arrays, options)
    return function(**arguments, output_final_state=True)


def backward(arrays, options, grad_o, grad_last=None):
    _, function, arguments = named(arrays, options)
    return function(**arguments)[1](grad_o, grad_final_state=grad_last)


def error(actual, expected):
    return np.linalg.norm(actual - expected) / max(np.linalg.norm(expected), 1e-30)


def check(rng, arrays, options, tolerance, slack=1):
    """Compare outputs and gradients. Gradients have ``slack`` where ``1 - beta`` may cancel: keys of one number."""
    o, last = forward(arrays, options)
    for name, actual, expected in zip(("o", "last"), (o, last), step_by_step(arrays, options), strict=True):
        assert error(actual, expected) < tolerance, name
    grad_o, grad_last = (rng.standard_normal(a.shape).astype(a.dtype) for a in (o, last))
    grads = backward(arrays, options, grad_o, grad_last)
    expected = step_by_step(arrays, options, grad_o, grad_last)
    for name, actual, wanted in zip(grads._fields, grads, expected, strict=True):
        assert (actual is None) == (wanted is None or (name == "initial_state" and options[name] is None)), name
        if actual is not None:
            assert error(actual, wanted) < slack * tolerance, name


@REAL
@EACH_RULE
@pytest.mark.parametrize("gate", [None, "head", "channel"])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_every_length(dtype, rule, gate, tokens):
    rng = np.random.default_rng(tokens)
    check(rng, *problem(rng, dtype, tokens=tokens, gate=gate, rule=rule), TOLERANCE[rule][dtype])


@REAL
@EACH_RULE
@pytest.mark.parametrize("gate", [None, "head", "channel"])
@pytest.mark.parametrize("keys", WIDTHS)
def test_widths_around_the_edges_of_registers(dtype, rule, gate, keys):
    rng, slack = np.random.default_rng(keys), 10 if rule == "delta_rule" else 1
    for values in (1, 17, keys + 1):
        arguments = problem(rng, dtype, tokens=70, widths=(keys, values), gate=gate, rule=rule)
        check(rng, *arguments, TOLERANCE[rule][dtype], slack)


@REAL
@pytest.mark.parametrize("gate", [None, "head", "channel"])
@pytest.mark.parametrize("reflections", [2, 3, 4, 33])
def test_several_reflections_a_token(dtype, gate, reflections):
    rng = np.random.default_rng(reflections)
    for tokens in (1, 2, 23):
        arguments = problem(rng, dtype, tokens=tokens, heads=2, gate=gate, reflections=reflections)
        check(rng, *arguments, TOLERANCE["delta_rule"][dtype])


@EACH_RULE
@pytest.mark.parametrize("gate", [None, "head", "channel"])
def test_value_heads_share_key_heads(rule, gate):
    rng = np.random.default_rng(0)
    arguments = problem(rng, "float64", batch=2, heads=2, group=3, widths=(9, 130), gate=gate, rule=rule)
    check(rng, *arguments, TOLERANCE[rule]["float64"])


@EACH_RULE
@pytest.mark.parametrize("gate", [None, "head", "channel"])
def test_packed_sequences(rule, gate):
    rng = np.random.default_rng(0)
    offsets = [0, 1, 1, 34, 66, 70, 71, 150]
    arguments = problem(rng, "float64", tokens=150, heads=2, gate=gate, offsets=offsets, rule=rule)
    check(rng, *arguments, TOLERANCE[rule]["float64"])


@REAL
@EACH_RULE
@pytest.mark.parametrize("gate", ["head", "channel"])
@pytest.mark.parametrize("strength", [1e-6, 1.0, 60.0])
def test_strong_decays_lose_no_accuracy(dtype, rule, gate, strength):
    rng = np.random.default_rng(0)
    arguments = problem(rng, dtype, tokens=200, gate=gate, strength=strength, rule=rule)
    check(rng, *arguments, TOLERANCE[rule][dtype])


@REAL
@EACH_RULE
@pytest.mark.parametrize("gate", ["head", "channel"])
@pytest.mark.parametrize("share", [0.125, 1.0])
def test_gates_of_minus_60_that_sum_to_minus_10_000_lose_no_accuracy(dtype, rule, gate, share):
    rng = np.random.default_rng(0)
    arrays, options = problem(rng, dtype, tokens=round(200 / share), gate=gate, strength=1e-3, rule=rule)
    g = arrays[4]
    g[rng.random(g.shape) < share] = -60  # all of them, or a few among weak gates, which they must not disturb
    assert g.sum(axis=1).min() < -1e4
    check(rng, arrays, options, TOLERANCE[rule][dtype])


@EACH_RULE
@pytest.mark.parametrize("gate", ["head", "channel"])
def test_a_gate_of_minus_infinity_forgets(rule, gate):
    rng = np.random.default_rng(0)
    arrays, options = problem(rng, "float64", tokens=40, gate=gate, rule=rule)
    arrays[4][:, 20] = -np.inf
    o = forward(arrays, options).o
    later = [None if a is None else a[:, 20:] for a in arrays]
    np.testing.assert_allclose(o[:, 20:], forward(later, {}).o, atol=1e-14)
    grads = backward(arrays, options, np.ones_like(o))
    assert all(np.isfinite(grad).all() for grad in grads if grad is not None)


def test_a_beta_of_two_reflects():
    rng = np.random.default_rng(0)
    k = unit(rng.standard_normal((1, 1, 1, 6)))
    s, zero = rng.standard_normal((1, 1, 6, 3)), np.zeros((1, 1, 1, 3))
    last = hh.delta_rule(k, k, zero, beta=np.full((1, 1, 1), 2.0), initial_state=s, output_final_state=True).final_state
    np.testing.assert_allclose(last[0, 0], s[0, 0] - 2 * np.outer(k[0, 0, 0], k[0, 0, 0] @ s[0, 0]), atol=1e-14)


@EACH_RULE
@pytest.mark.parametrize("gate", [None, "head", "channel"])
@pytest.mark.parametrize("sizes", [{"heads": 1, "group": 1}, {"heads": 2, "group": 2}, {"heads": 1, "group": 3}])
def test_threads_do_not_change_a_bit(rule, gate, sizes):
    rng = np.random.default_rng(0)
    arrays, options = problem(rng, "float32", tokens=300, widths=(64, 300), gate=gate, rule=rule, **sizes)
    before, found = _core.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 8):
            _core.set_num_threads(threads)
            results = forward(arrays, options)
            grads = backward(arrays, options, *results)
            found.append([a.tobytes() for a in (*results, *grads) if a is not None])
    finally:
        _core.set_num_threads(before)
    assert all(other == found[0] for other in found)


@EACH_RULE
@pytest.mark.parametrize("gate", ["head", "channel"])
@pytest.mark.parametrize("tokens", [3, 40])
def test_a_positive_gate_is_refused(rule, gate, tokens):
    arrays, options = problem(np.random.default_rng(0), "float32", tokens=tokens, gate=gate, rule=rule)
    arrays[4][0, tokens - 1, 0] = 0.5
    with pytest.raises(ValueError, match=r"g: expected logarithms of decays, which are at most 0, got 0\.5"):
        forward(arrays, options)


@EACH_RULE
@pytest.mark.parametrize("tokens", [1, 300])
@pytest.mark.parametrize("packed", [False, True])
def test_results_with_gradients_are_those_without(rule, tokens, packed):
    arrays, options = problem(np.random.default_rng(0), "float64", tokens=tokens, rule=rule)
    if packed:
        arrays = [None if a is None else a[:1] for a in arrays]
        options |= {"cu_seqlens": [0, tokens // 3, tokens], "initial_state": None}
    _, function, arguments = named(arrays, options)
    results, vjp = function(**arguments, output_final_state=True)
    assert function(**arguments)[0].final_state is None
    for found, expected in zip(results, forward(arrays, options), strict=True):
        assert np.array_equal(found, expected)
    first, second = (vjp(f * results.o, grad_final_state=f * results.final_state) for f in (1, 2))
    for found, expected in zip(second, first, strict=True):
        assert found is expected is None or np.array_equal(found, 2 * expected)
    with pytest.raises(ValueError, match="grad_o and grad_final_state are both None"):
        vjp()


@EACH_RULE
def test_queries_and_keys_can_be_normalised(rule):
    arrays, options = problem(np.random.default_rng(0), "float64", tokens=70, rule=rule)
    q, k, *others = arrays
    unit = [a / np.sqrt((a * a).sum(-1, keepdims=True) + 1e-6) for a in (q, k)]
    normalised = options | {"use_qk_l2norm_in_kernel": True}
    for found, expected in zip(forward(arrays, normalised), forward([*unit, *others], options), strict=True):
        assert error(found, expected) < 1e-13
    rng = np.random.default_rng(1)
    grad, direction, move = rng.standard_normal(others[0].shape), rng.standard_normal(k.shape), 1e-6
    ahead, behind = (forward([q, k + sign * move * direction, *others], normalised).o for sign in (1, -1))
    slope = np.vdot(grad, ahead - behind) / (2 * move)
    assert np.isclose(np.vdot(backward(arrays, normalised, grad)[1], direction), slope, rtol=1e-6)


def test_beta_and_g_of_gradients_are_named():
    arrays, _ = problem(np.random.default_rng(0), "float64", tokens=10)
    with pytest.raises(TypeError, match="positional"):
        hh.delta_rule_vjp(*arrays)


def test_linear_attention_is_attention_without_a_softmax():
    """Decays of a pair of tokens are products of the decays between them."""
    rng = np.random.default_rng(0)
    (q, k, v, _, g), _ = problem(rng, "float64", tokens=70, gate="head", rule="linear_attention")
    since = np.cumsum(g[0, :, 0])
    weights = np.tril(q[0, :, 0] @ k[0, :, 0].T * np.exp(np.minimum(since[:, None] - since, 0)))
    assert error(hh.linear_attention(q, k, v, g=g, scale=1.0).o[0, :, 0], weights @ v[0, :, 0]) < 1e-14


@EACH_RULE
@pytest.mark.parametrize("gate", [None, "head", "channel"])
@pytest.mark.parametrize("offsets", [None, [0, 30, 70], [*range(0, 70, 4), 70]], ids=["whole", "packed", "steps"])
def test_what_is_not_finite_changes_no_earlier_token(rule, gate, offsets):
    """Nor another sequence. Gradients of queries, which depend on no later token, do not change either.

    A few tokens are computed step by step, and more of them in chunks.
    """
    rng = np.random.default_rng(0)
    arrays, options = problem(rng, "float64", tokens=70, gate=gate, offsets=offsets, rule=rule)
    grad = rng.standard_normal(arrays[2].shape)

    def found(arrays):
        return forward(arrays, options).o, backward(arrays, options, grad).q

    expected, ends = found(arrays), [0, 70] if offsets is None else offsets
    for token, operand, bad in product((30, 33, 69), range(5), (np.nan, np.inf, -np.inf)):
        if arrays[operand] is None or (operand == 4 and bad == np.inf):
            continue
        changed = [None if a is None else a.copy() for a in arrays]
        changed[operand][0, token].flat[0] = bad
        end = min(end for end in ends if end > token)
        for before, after in zip(expected, found(changed), strict=True):
            assert np.array_equal(before[:, :token], after[:, :token]), (token, operand, bad)
            assert np.array_equal(before[:, end:], after[:, end:]), (token, operand, bad)


@EACH_RULE
@pytest.mark.parametrize("gate", [None, "head", "channel"])
def test_a_sequence_is_its_steps(rule, gate):
    arrays, options = problem(np.random.default_rng(0), "float64", tokens=40, gate=gate, rule=rule)
    expected, outputs, state = forward(arrays, options), [], options["initial_state"]
    for t in range(40):
        rows = [None if a is None else a[:, t : t + 1] for a in arrays]
        o, state = forward(rows, options | {"initial_state": state})
        outputs.append(o)
    assert error(np.concatenate(outputs, 1), expected.o) < TOLERANCE[rule]["float64"]
    assert error(state, expected.final_state) < TOLERANCE[rule]["float64"]


def test_there_is_no_interval_of_states_without_width():
    with pytest.raises(ValueError, match="sizes: expected positive ones"):
        _core.delta_interval(0, 0)
