"""States after chosen tokens, and states after the accepted tokens of drafts, against the reference."""

import numpy as np
import pytest

import householder as hh
from tests.numpy.test_delta import EACH_RULE, REAL, TOLERANCE, error, named, problem, step_by_step

BORDERS = [0, 1, 4, 5, 31, 32, 33, 63, 64, 65, 96, 97]
"""Of steps taken one by one, of chunks, and of a sequence of 97 tokens."""


def prefix(arrays, options, tokens, sequences):
    """The first tokens of the first sequences."""
    r, offsets, s0 = options["num_householder"], options["cu_seqlens"], options["initial_state"]
    lengths = tokens, tokens * r, tokens * r, tokens * r, tokens
    cut = None if offsets is None else [min(offset, tokens) for offset in offsets[: sequences + 1]]
    first = [None if a is None else a[:, :length] for a, length in zip(arrays, lengths, strict=True)]
    return first, options | {"cu_seqlens": cut, "initial_state": None if s0 is None else s0[:sequences]}


def owner(offsets, position):
    """The sequence whose token comes before a position; the first sequence for position 0."""
    return next((i for i, end in enumerate(offsets[1:]) if position <= end and (offsets[i] < position or not position)))


def states_after(arrays, options, positions):
    """By the reference, each from a prefix of its own."""
    offsets = options["cu_seqlens"]
    if offsets is None:
        batch = len(arrays[0])
        return np.stack([step_by_step(*prefix(arrays, options, t, batch))[1] for t in positions], 1)
    return np.stack([step_by_step(*prefix(arrays, options, t, owner(offsets, t) + 1))[1][-1] for t in positions])


def gradients_of_states(arrays, options, positions, grad_states):
    """By the reference: sums of the gradients of prefixes."""
    offsets = options["cu_seqlens"]
    total = step_by_step(arrays, options, np.zeros(out_shape(arrays)), np.zeros(states_shape(arrays, options)))
    for i, t in enumerate(positions):
        count = len(arrays[0]) if offsets is None else owner(offsets, t) + 1
        first, cut = prefix(arrays, options, t, count)
        grad_last = np.zeros(states_shape(first, cut))
        if offsets is None:
            grad_last[:] = grad_states[:, i]
        else:
            grad_last[-1] = grad_states[i]
        part = step_by_step(first, cut, np.zeros(out_shape(first)), grad_last)
        for whole, grad in zip(total[:-1], part[:-1], strict=True):
            if whole is not None:
                whole[:, : grad.shape[1]] += grad
        total[-1][:count] += part[-1]
    return total


def out_shape(arrays):
    return (*arrays[0].shape[:2], *arrays[2].shape[2:])


def states_shape(arrays, options):
    (batch, *_, keys), (heads, values), offsets = arrays[0].shape, arrays[2].shape[2:], options["cu_seqlens"]
    return batch if offsets is None else len(offsets) - 1, heads, keys, values


def check(rng, arrays, options, positions, tolerance):
    """Compare all results, and the gradients from those of all results."""
    function, function_vjp, arguments = named(arrays, options)
    plain = function(**arguments, output_final_state=True)
    results, vjp = function_vjp(**arguments, output_final_state=True, states_at=positions)
    alone = function(**arguments, states_at=positions)
    assert alone.final_state is None
    assert all(np.array_equal(a, b) for a, b in ((alone.o, results.o), (alone.states, results.states)))
    for a, b in ((results.o, plain.o), (results.final_state, plain.final_state)):
        assert error(a, b) < tolerance
    expected = states_after(arrays, options, positions)
    assert results.states.dtype == arrays[0].dtype
    assert results.states.shape == expected.shape
    for i in range(len(positions)):
        part = i if options["cu_seqlens"] is not None else (slice(None), i)
        assert error(results.states[part], expected[part]) < tolerance, positions[i]
    grads = [rng.standard_normal(a.shape).astype(a.dtype) for a in results]
    found = vjp(grads[0], grad_final_state=grads[1], grad_states=grads[2])
    of_states = gradients_of_states(arrays, options, positions, grads[2])
    others = step_by_step(arrays, options, *grads[:2])
    for name, a, b, c in zip(found._fields, found, of_states, others, strict=True):
        assert a is None or error(a, b + c) < 4 * tolerance, name
    assert (found.initial_state is None) == (options["initial_state"] is None)
    with pytest.raises(ValueError, match="grad_o, grad_final_state and grad_states are all None"):
        vjp()


@REAL
@EACH_RULE
@pytest.mark.parametrize("gate", [None, "head", "channel"])
def test_states_at_every_border(dtype, rule, gate):
    rng = np.random.default_rng(0)
    arrays, options = problem(rng, dtype, tokens=97, heads=2, group=2, gate=gate, rule=rule)
    check(rng, arrays, options, BORDERS, TOLERANCE[rule][dtype])


@EACH_RULE
@pytest.mark.parametrize("initial", [True, False])
@pytest.mark.parametrize("positions", [[0], [97], [40], range(98)], ids=["start", "end", "within", "all"])
def test_states_of_several_rows(rule, initial, positions):
    rng = np.random.default_rng(0)
    arrays, options = problem(rng, "float64", batch=3, tokens=97, gate="head", initial=initial, rule=rule)
    check(rng, arrays, options, [*positions], TOLERANCE[rule]["float64"])


@pytest.mark.parametrize("reflections", [2, 3])
def test_states_after_several_reflections_a_token(reflections):
    rng = np.random.default_rng(0)
    arguments = problem(rng, "float64", batch=2, tokens=40, reflections=reflections, gate="channel")
    check(rng, *arguments, [0, 1, 11, 16, 17, 40], TOLERANCE["delta_rule"]["float64"])


@EACH_RULE
@pytest.mark.parametrize("initial", [True, False])
@pytest.mark.parametrize("positions", [[0], [1], [34, 70], [97], BORDERS], ids=str)
@pytest.mark.parametrize("offsets", [[0, 1, 34, 34, 70, 97], [0, 0, 0, 97, 97], [0, 97]], ids=str)
def test_a_position_in_packed_tokens_belongs_to_the_sequence_of_the_token_before_it(rule, initial, positions, offsets):
    rng = np.random.default_rng(0)
    arrays, options = problem(rng, "float64", tokens=97, offsets=offsets, initial=initial, rule=rule)
    check(rng, arrays, options, positions, TOLERANCE[rule]["float64"])


def test_states_are_asked_for_in_an_array_of_integers():
    arrays, options = problem(np.random.default_rng(0), "float64", tokens=9)
    function, _, arguments = named(arrays, options)
    expected = function(**arguments, states_at=[2, 9]).states
    assert np.array_equal(function(**arguments, states_at=np.array([2, 9], np.uint8)).states, expected)


NO_SEQUENCES = [5, {2, 9}, {2: 9}, np.array(2), None]
NO_INTEGERS = [[1.0, 2], [True, 2], np.array([False, True]), np.array([[1], [2]]), "ab"]


@pytest.mark.parametrize("wrong", [*NO_SEQUENCES, *NO_INTEGERS], ids=str)
def test_numbers_of_tokens_are_integers_in_an_order(wrong):
    """Sets would lose an order and repetitions, and masks are no numbers."""
    arrays, options = problem(np.random.default_rng(0), "float64", batch=2, tokens=9)
    function, _, arguments = named(arrays, options)
    state, tokens, _ = draft(np.random.default_rng(0), batch=2, tokens=9)
    expected = "expected a sequence of integers" if any(wrong is one for one in NO_SEQUENCES) else "expected an integer"
    with pytest.raises(TypeError, match=f"accepted is .*{expected}"):
        hh.commit(state, **tokens, accepted=wrong)
    if wrong is not None:
        with pytest.raises(TypeError, match=f"states_at is .*{expected}"):
            function(**arguments, states_at=wrong)


def test_there_are_no_states_without_sequences():
    arrays, options = problem(np.random.default_rng(0), "float64", tokens=0, offsets=[0])
    function, _, arguments = named(arrays, options)
    with pytest.raises(ValueError, match=r"states_at is \[0\], but cu_seqlens is \[0\]: there is no sequence"):
        function(**arguments, states_at=[0])


@pytest.mark.parametrize("name", ["grad_o", "grad_final_state", "grad_states"])
def test_gradients_have_the_shapes_of_results(name):
    arrays, options = problem(np.random.default_rng(0), "float64", tokens=9)
    _, function, arguments = named(arrays, options)
    _, vjp = function(**arguments, states_at=[2, 9])
    with pytest.raises(ValueError, match=rf"{name} has shape \(3,\)"):
        vjp(**{name: np.ones(3)})


def draft(rng, dtype="float64", **sizes):
    """A state, and operands and options of its drafted tokens."""
    (_, k, v, beta, g), options = problem(rng, dtype, **sizes)
    return options["initial_state"], {"k": k, "v": v, "beta": beta, "g": g}, options["num_householder"]


def after(state, tokens, accepted, reflections):
    """By the reference."""
    states = np.zeros(state.shape)
    for i, count in enumerate(accepted):
        rows = {
            name: None if a is None else a[i : i + 1, : count * (1 if name == "g" else reflections)]
            for name, a in tokens.items()
        }
        options = {"initial_state": state[i : i + 1], "num_householder": reflections, "cu_seqlens": None}
        states[i] = step_by_step([rows["k"][:, :count], *rows.values()], options)[1][0]
    return states


@REAL
@EACH_RULE
@pytest.mark.parametrize("gate", [None, "head", "channel"])
@pytest.mark.parametrize("accepted", [[0, 3, 8], [8, 8, 8], [4, 4, 4], [0, 0, 0], [1, 5, 4]], ids=str)
def test_accepted_tokens_are_committed(dtype, rule, gate, accepted):
    rng = np.random.default_rng(0)
    state, tokens, r = draft(rng, dtype, batch=3, tokens=8, heads=2, group=2, gate=gate, rule=rule)
    before = state.copy()
    found = hh.commit(state, **tokens, accepted=accepted)
    assert found.dtype == dtype
    assert error(found, after(state, tokens, accepted, r)) < TOLERANCE[rule][dtype]
    assert np.array_equal(state, before)


@pytest.mark.parametrize("tokens", [1, 4, 5, 31, 33, 70])
@pytest.mark.parametrize("reflections", [1, 2, 3])
def test_drafts_of_every_length_are_committed(tokens, reflections):
    state, operands, r = draft(np.random.default_rng(0), batch=2, tokens=tokens, reflections=reflections)
    accepted = [tokens, tokens // 2]
    found = hh.commit(state, **operands, accepted=accepted, num_householder=r)
    assert error(found, after(state, operands, accepted, r)) < TOLERANCE["delta_rule"]["float64"]


@EACH_RULE
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rejected_tokens_have_no_effect(rule, bad):
    state, tokens, _ = draft(np.random.default_rng(0), batch=3, tokens=6, rule=rule)
    accepted = [2, 0, 6]
    expected = hh.commit(state, **tokens, accepted=accepted)
    for a in tokens.values():
        if a is not None:
            a[0, 2:] = a[1] = bad
    assert np.array_equal(hh.commit(state, **tokens, accepted=accepted), expected)


def test_verified_drafts_are_the_tokens_one_by_one():
    """Outputs of a draft first, then the states after what is accepted, are those of single steps."""
    rng = np.random.default_rng(0)
    (q, k, v, beta, g), options = problem(rng, "float64", tokens=8)
    state = options["initial_state"]
    o = hh.delta_rule(q, k, v, beta=beta, g=g, initial_state=state).o
    found = hh.commit(state, k, v, beta=beta, g=g, accepted=[5])
    for t in range(5):
        q1, k1, v1, beta1, g1 = (a[:, t : t + 1] for a in (q, k, v, beta, g))
        one, state = hh.delta_rule(q1, k1, v1, beta=beta1, g=g1, initial_state=state, output_final_state=True)
        assert error(one[:, 0], o[:, t]) < 1e-14
    assert error(found, state) < 1e-14


def test_keys_of_drafts_can_be_normalised():
    state, tokens, _ = draft(np.random.default_rng(0), batch=2, tokens=6)
    k = tokens.pop("k")
    unit = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
    found = hh.commit(state, 1.0 * k, **tokens, accepted=[2, 6], use_qk_l2norm_in_kernel=True)
    assert error(found, hh.commit(state, unit, **tokens, accepted=[2, 6])) < 1e-14
