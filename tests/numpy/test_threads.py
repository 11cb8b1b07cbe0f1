"""Results do not depend on the number of threads or on concurrent calls."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np
import pytest

import householder as hh
from tests.conftest import METHODS, NONLINEARITIES, SEQUENCE_METHODS, of_arrays, problem


@pytest.fixture(autouse=True)
def restore_threads():
    k = hh.get_num_threads()
    yield
    hh.set_num_threads(k)


def results(n, m, rows, dtype):
    """One of everything, as a list of arrays."""
    p = problem(n, m, rows, dtype)
    for method in METHODS:
        yield of_arrays(hh.forward)(p.u, p.h, method=method, **p.options)
        yield from of_arrays(hh.backward)(p.u, p.h, p.g, method=method, **p.options)
    yield from hh.wy(p.u)
    yield hh.matrix(hh.Reflections(p.u, phases=p.phases))
    many = np.stack([p.u + i for i in range(9)]).astype(p.u.dtype)
    yield from hh.backward(many[:, None], p.h, np.stack([p.g] * 9))
    phi = "relu" if "relu" in NONLINEARITIES[np.dtype(dtype).kind] else "identity"
    for method in SEQUENCE_METHODS:
        sequence = {"input_weight": p.h[: min(rows, 3)].T.copy(), "nonlinearity": phi, "method": method, **p.options}
        x = np.random.default_rng(0).standard_normal((20, rows, min(rows, 3))).astype(p.u.dtype)
        (h, _), vjp = of_arrays(hh.rnn_vjp)(p.u, x, p.h, **sequence)
        yield h
        yield from (a for a in vjp(h) if a is not None)


@pytest.mark.parametrize(("n", "m", "rows"), [(3, 2, 1), (33, 33, 100), (128, 16, 257), (257, 100, 65)])
def test_results_are_bitwise_equal_for_any_number_of_threads(dtype, n, m, rows):
    hh.set_num_threads(1)
    alone = list(results(n, m, rows, dtype))
    for k in (2, 7):
        hh.set_num_threads(k)
        assert hh.get_num_threads() == k
        for together, expected in zip(results(n, m, rows, dtype), alone, strict=True):
            assert np.array_equal(together, expected)


def test_the_reflections_of_a_matrix_are_bitwise_equal_for_any_number_of_threads(dtype):
    n = 640  # each of its parts is worth several threads
    q = np.linalg.qr(np.random.default_rng(0).standard_normal((n, n)))[0].astype(dtype)

    def factors(threads):
        hh.set_num_threads(threads)
        result = hh.factor(q)
        return result if isinstance(result, tuple) else (result,)

    alone = factors(1)
    for threads in (2, 7):
        for together, expected in zip(factors(threads), alone, strict=True):
            assert np.array_equal(together, expected)


def test_concurrent_calls_do_not_disturb_each_other(dtype):
    shapes = [(5, 3, 2), (33, 33, 20), (64, 8, 50), (128, 16, 64)]
    expected = {shape: list(results(*shape, dtype)) for shape in shapes}

    def check(i):
        shape = shapes[i % len(shapes)]
        return all(np.array_equal(a, b) for a, b in zip(results(*shape, dtype), expected[shape], strict=True))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(32)))


def test_the_number_of_threads_may_change_while_others_compute(dtype):
    expected = list(results(64, 8, 50, dtype))

    def check(k):
        hh.set_num_threads(k)
        return all(np.array_equal(a, b) for a, b in zip(results(64, 8, 50, dtype), expected, strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(check, [1, 2, 3, 4] * 4))


def longest_wait_during(call):
    """Share of a call's time in which this thread was kept waiting without a break."""
    with ThreadPoolExecutor(1) as executor:
        running = executor.submit(call)
        begin = last = time.perf_counter()
        longest = 0.0
        while not running.done():
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
    return longest / (last - begin)


def test_the_interpreter_lock_is_released_during_a_call():
    hh.set_num_threads(1)
    u, x = np.ones((64, 24)), np.zeros((20_000, 8, 64))
    waits = [longest_wait_during(lambda: hh.rnn(u, x)[0]) for _ in range(3)]
    assert min(waits) < 0.5  # other programs may pause this one, but not three times


needs_torch = pytest.mark.skipif(
    sys.platform != "linux" or not find_spec("torch"), reason="needs torch, /proc and an OpenMP runtime like GNU's"
)
WITH_TORCH = """
import os, torch
{imports}
torch.set_num_threads(3)
a = torch.randn(600, 600)
a @ a  # torch starts its threads
before = set(os.listdir("/proc/self/task"))
u, x = torch.randn(64, 8), torch.randn(500, 50, 64)
h = {call}
print(len(set(os.listdir("/proc/self/task")) - before))
"""


@needs_torch
def test_there_are_no_threads_but_torchs(run_script):
    assert run_script(WITH_TORCH.format(imports="import householder.torch as ht", call="ht.rnn(u, x)")) == "0\n"


@needs_torch
def test_calls_with_fewer_tasks_than_threads_end_none_of_torchs(run_script):
    call = "ht.rnn(u, x[:, :32]), a @ a"  # two tasks for three threads; the next loop of torch's would start new ones
    assert run_script(WITH_TORCH.format(imports="import householder.torch as ht", call=call)) == "0\n"


@needs_torch
def test_without_torchs_operators_there_are_our_own(run_script):
    call = "hh.set_num_threads(3) or hh.rnn(u.numpy(), x.numpy())[0]"
    assert run_script(WITH_TORCH.format(imports="import householder as hh", call=call)) == "2\n"


@needs_torch
def test_more_threads_than_torch_has_are_our_own(run_script):
    call = "hh.set_num_threads(5) or hh.rnn(u.numpy(), x.numpy())[0]"
    assert run_script(WITH_TORCH.format(imports="import householder as hh, householder.torch", call=call)) == "4\n"


@pytest.mark.skipif(not find_spec("torch"), reason="needs torch")
def test_calls_run_on_torchs_threads_on_every_system():
    from householder.torch._ops import threads

    assert threads.shares_threads
