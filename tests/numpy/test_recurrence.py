"""Steps one at a time: the states of the same sequence."""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

import householder as hh
from tests.conftest import assert_close, each_nonlinearity, of_arrays, randn
from tests.numpy.test_sequence import Case


def steps(case, **more):
    """The states that a recurrence finds, one step after the other."""
    recurrence = of_arrays(hh.Recurrence)(
        case.u, nonlinearity=case.options["nonlinearity"], transpose=case.options["transpose"], **case.arrays, **more
    )
    h = np.zeros(case.states, case.u.dtype) if case.h0 is None else case.h0
    found = []
    for x in case.x:
        h = recurrence.step(h, x)
        found.append(h)
    return np.stack(found)


@each_nonlinearity("dtype")
@pytest.mark.parametrize("transpose", [False, True])
def test_steps_are_those_of_the_sequence(dtype, nonlinearity, transpose):
    case = Case(dtype, n=10, m=4, nonlinearity=nonlinearity, transpose=transpose, width=3, bias=True)
    assert_close(steps(case), case.expected(case.forward(lambda f, *a, **k: f(*a, **k)))[0], dtype)


@pytest.mark.parametrize(("n", "m"), [(2, 1), (4, 4), (16, 3), (33, 32), (64, 8), (130, 129), (257, 17)])
@pytest.mark.parametrize("method", ["auto", "wy", "dense"])
def test_any_size_and_method(dtype, n, m, method):
    case = Case(dtype, n=n, m=m, batch=2, steps=3)
    assert_close(steps(case, method=method), case.expected(steps(case))[0], dtype)


@pytest.mark.parametrize("form", [{}, {"columns": "full"}, {"tau": True}, {"tau": True, "columns": "full"}])
def test_columns_and_tau(dtype, form):
    rng = np.random.default_rng(0)
    u, x, h = randn(rng, (7, 3), dtype), randn(rng, (4, 2, 7), dtype), randn(rng, (2, 7), dtype)
    options = {**form, "tau": randn(rng, 3, dtype)} if "tau" in form else form
    w = hh.Reflections(u, **options)
    recurrence, expected = hh.Recurrence(w), hh.rnn(w, x, h)[0]
    for row, state in zip(x, expected, strict=True):
        h = recurrence.step(h, row)
        assert_close(h, state, dtype)


def test_one_sequence_has_no_axis_of_its_own():
    case = Case(np.dtype("float64"), batched=False, batch=1)
    assert_close(steps(case), case.expected(steps(case))[0])


def test_arrays_of_any_layout_and_lists():
    rng = np.random.default_rng(0)
    u, x, h = rng.standard_normal((6, 2)), rng.standard_normal((5, 6)), rng.standard_normal((5, 6))
    recurrence = hh.Recurrence(u)
    expected = recurrence.step(h, x)
    wide = np.zeros((5, 12))
    wide[:, ::2] = x
    assert np.array_equal(recurrence.step(np.asfortranarray(h), wide[:, ::2]), expected)
    assert np.array_equal(recurrence.step(h.tolist(), x), expected)


def test_it_owns_its_parameters():
    rng = np.random.default_rng(0)
    u, bias, x, h = rng.standard_normal((6, 2)), rng.standard_normal(6), np.ones(6), np.ones(6)
    recurrence = hh.Recurrence(u, bias=bias)
    expected = hh.rnn(u, x[None], h, bias=bias)[1]
    u[:], bias[:] = 0, 0
    assert_close(recurrence.step(h, x), expected)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((np.ones(6, "f4"), np.ones(6)), TypeError, "float64"),
        ((np.ones(6), np.ones(5)), ValueError, "x.*6.*5"),
        ((np.ones(5), np.ones(6)), ValueError, "h.*6.*5"),
        ((np.ones((2, 6)), np.ones((3, 6))), ValueError, "x.*2.*3"),
        ((np.ones((2, 6)), np.ones(6)), ValueError, "x"),
        ((np.ones((1, 2, 6)), np.ones((1, 2, 6))), ValueError, "x"),
    ],
)
def test_states_and_inputs_that_do_not_fit(arguments, error, words):
    with pytest.raises(error, match=words):
        hh.Recurrence(np.ones((6, 2))).step(*arguments)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"nonlinearity": "sine"}, ValueError, "nonlinearity is 'sine'"),
        ({"input_weight": np.ones((5, 2))}, ValueError, "input_weight.*5, 2.*6, 2"),
        ({"bias": np.ones(5)}, ValueError, "bias.*5.*6"),
        ({"method": "reflections"}, ValueError, "method is 'reflections'"),
        ({"bias": np.ones(6, "f4")}, TypeError, "bias.*float32"),
    ],
)
def test_parameters_that_do_not_fit(options, error, words):
    with pytest.raises(error, match=words):
        hh.Recurrence(np.ones((6, 2)), **options)


def test_numbers_without_an_axis_are_no_states():
    with pytest.raises(ValueError, match="shape"):
        hh.Recurrence(np.ones((1, 1))).step(np.float64(1), np.float64(1))


def test_threads_take_the_first_step_together():
    rng = np.random.default_rng(0)
    u, x, h = rng.standard_normal((300, 40)), rng.standard_normal(300), rng.standard_normal(300)
    recurrence, start = hh.Recurrence(u), Barrier(8)

    def step(_):
        start.wait()
        return recurrence.step(h, x)

    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(step, range(8))
    assert all(np.array_equal(first, other) for other in others)
    assert_close(first, hh.rnn(u, x[None], h)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_goes_on(run_script):
    run_script("""
        import os
        import numpy as np, householder as hh
        recurrence, h, x = hh.Recurrence(np.eye(6)[:, :2] + 1), np.ones(6), np.ones(6)
        before = recurrence.step(h, x)
        child = os.fork()
        after = recurrence.step(h, x)
        assert np.array_equal(before, after)
        if not child:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """)


def test_no_sequences_and_empty_batches():
    recurrence = hh.Recurrence(np.ones((6, 2)))
    assert recurrence.step(np.ones((0, 6)), np.ones((0, 6))).shape == (0, 6)
