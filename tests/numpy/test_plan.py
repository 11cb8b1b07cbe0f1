"""The planner: its choice is (nearly) the fastest method, and says why."""

import time

import numpy as np
import pytest

import householder as hh
from tests.conftest import randn


def test_the_cheapest_method_is_chosen():
    for shape in [(64, 4), (64, 64), (512, 64), (512, 510)]:
        for batch, steps in [(1, None), (100, None), (100_000, None), (1, 10), (50, 784)]:
            plan = hh.plan(*shape, batch, steps)
            assert plan.costs[plan.method] == min(plan.costs.values())
            assert plan.reason


def test_an_unknown_dtype_is_refused():
    with pytest.raises(TypeError, match="dtype is float16, expected one of float32"):
        hh.plan(4, 2, dtype="float16")


def test_sequences_are_never_run_reflection_by_reflection():
    assert "reflections" not in hh.plan(128, 1, batch=1, steps=1).costs


@pytest.mark.parametrize("arguments", [(0, 1), (4, 5), (4, 0), (4, 2, 0), (4, 2, 1, 0), (4, 4, 1, None, "complex64")])
def test_impossible_shapes_are_refused(arguments):
    with pytest.raises(ValueError, match="expected"):
        hh.plan(*arguments)


def application(n, m, batch, dtype="float32"):
    rng = np.random.default_rng(0)
    u, h, g = (randn(rng, shape, dtype) for shape in [(n, m), (batch, n), (batch, n)])

    def run(method):
        hh.forward(u, h, method=method)
        hh.backward(u, h, g, method=method)

    return run


def sequence(n, m, batch, steps):
    rng = np.random.default_rng(0)
    u = rng.standard_normal((n, m), np.float32)
    x, g = (rng.standard_normal((steps, batch, n), np.float32) for _ in range(2))

    def run(method):
        _, vjp = hh.rnn_vjp(u, x, method=method)
        vjp(g)

    return run


def complex_application(n, m, batch):
    return application(n, m, batch, "complex64")


@pytest.fixture
def one_thread():
    before = hh.get_num_threads()
    hh.set_num_threads(1)
    yield
    hh.set_num_threads(before)


def times(run, methods):
    """Best of interleaved runs in processor time: other work on the machine counts least."""
    best = dict.fromkeys(methods, np.inf)
    for method in methods:
        run(method)
    for _ in range(5):
        for method in methods:
            begin = time.process_time()
            for _ in range(3):
                run(method)
            best[method] = min(best[method], time.process_time() - begin)
    return best


GRID = [
    *((application, n, m, b) for n in (64, 256) for m in (4, n // 4, n) for b in (1, 16, 256)),
    *((application, 512, m, 2048) for m in (256, 512)),
    *((complex_application, n, m, b) for n in (64, 256) for m in (4, n // 4, n - 1) for b in (1, 16, 256)),
    *((sequence, n, m, b, t) for n in (128, 256) for m in (n // 8, n // 2, n) for b, t in [(1, 200), (32, 20)]),
]


def regret(problem, n, m, *sizes):
    """How much longer the chosen method takes than the best one."""
    plan = hh.plan(n, m, *sizes, dtype="complex64" if problem is complex_application else "float32")
    measured = times(problem(n, m, *sizes), list(plan.costs))
    return measured[plan.method] / min(measured.values())


@pytest.mark.long
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("shape", GRID, ids=lambda shape: "-".join(map(str, (shape[0].__name__, *shape[1:]))))
def test_the_choice_is_within_15_percent_of_the_best_method(shape):
    # Measured again where another process may have been in the way.
    assert any(regret(*shape) <= 1.15 for _ in range(4))
