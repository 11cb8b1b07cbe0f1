"""``householder.jax`` compared with the NumPy functions and with ``jax.numpy``, and the cost of a call.

    python -m benches.pages.versus_jax [--threads 1] [--rounds 20]

Rows are timed in turn. Forward and backward are one compiled program. JAX allocates each result anew: programs that
return large arrays take longer than NumPy's functions by as much as the operating system takes to give memory.
"""

import jax
import numpy as np

import householder as hh
import householder.jax as hj
from benches.measure import heading, interleaved, options, row
from householder.jax import _expressions


def array(*shape):
    return np.random.default_rng(list(shape)).standard_normal(shape).astype("float32")


def both(function):
    """Results of a function of two arrays, and gradients of half their square."""

    @jax.jit
    def compute(a, b):
        result, pull = jax.vjp(function, a, b)
        return result, pull(result)

    return compute


def ready(function, *arguments):
    arguments = [jax.device_put(a) for a in arguments]
    return lambda: jax.block_until_ready(function(*arguments))


def application(n, m, rows):
    u, h = array(n, m), array(rows, n)

    def numpy():
        c = hh.forward(u, h)
        return c, hh.backward(u, h, c)

    return {
        "householder.jax": ready(both(hj.apply), u, h),
        "NumPy": numpy,
        "jax.numpy": ready(both(lambda u, h: _expressions.apply(u[None], h[None], False)[0]), u, h),
    }


def sequence(n, m, batch, steps):
    u, x = array(n, m) / n, array(steps, batch, n)

    def numpy():
        (h, _), vjp = hh.rnn_vjp(u, x, nonlinearity="tanh")
        return h, vjp(h)

    def by_expression(u, x):
        options = *[None] * 7, "tanh", 0.1, False, False, "trapezoidal"
        return _expressions.rnn(u[None], x[None], *options)[0][0]

    return {
        "householder.jax": ready(both(lambda u, x: hj.rnn(u, x, nonlinearity="tanh")[0]), u, x),
        "NumPy": numpy,
        "jax.numpy": ready(both(by_expression), u, x),
    }


def overhead():
    """Calls that compute next to nothing."""
    u, h = array(8, 2), array(4, 8)
    return {
        "householder.jax": ready(jax.jit(hj.apply), u, h),
        "householder.jax, not compiled": ready(hj.apply, u, h),
        "NumPy": lambda: hh.forward(u, h),
        "an addition of JAX": ready(jax.jit(lambda h: h + 1), h),
    }


def main():
    chosen = options(__doc__, threads=1, rounds=20)
    heading(chosen.threads, "", "by", "median, us", "times ours", "min, us", "times ours")
    cases = {
        "W h, 8 x 2, 4 vectors": overhead(),
        "W h and gradients, 128 x 16, 50 vectors": application(128, 16, 50),
        "W h and gradients, 512 x 64, 512 vectors": application(512, 64, 512),
        "recurrence and gradients, n = 128, m = 16, batch 50, 100 steps": sequence(128, 16, 50, 100),
    }
    for case, calls in cases.items():
        times = interleaved(calls, chosen.rounds)
        ours = times["householder.jax"]
        for by, (median, least) in times.items():
            row(case, by, median * 1e6, median / ours.median, least * 1e6, least / ours.minimum)


if __name__ == "__main__":
    main()
