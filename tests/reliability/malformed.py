"""A million generated calls with at least one impossible argument: each ends in a TypeError or a ValueError.

    python tests/reliability/malformed.py [--calls 1000000] [--seed 0]

A call begins as a good one of random size; then up to three of its arguments are replaced by what no result exists for.
"""

import argparse
import collections
import inspect
import sys
import time

import numpy as np

import householder as hh

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
NO_NUMBERS = ("?", "i8", "u1", "f2", "O", "U3", "M8[s]", [("a", "f8")])
NO_ARRAYS = ("a string", b"bytes", {}, object(), {1.0, 2.0}, lambda: 0, ..., [[1.0], [2.0, 3.0]], "1.0")
NO_FLAGS = (0, 1, "yes", None, 1.0, [], np.ones(2))
NO_NAMES = ("", "fast", "WY", None, 3, b"wy", ("wy",), 1.5)
NO_COUNTS = (0, -1, 10**30, 1.5, "3", None, [3], 2j, np.array([1, 2]))
NO_SLOPES = (-0.1, float("nan"), float("inf"), "0.1", [0.1], 1j, None)


def good_calls(rng):
    """One good call of every function, as ``{function: {argument: value}}``."""
    n = int(rng.integers(2, 9))
    m = int(rng.integers(1, n))
    dtype = DTYPES[rng.integers(4)]
    steps, batch = (int(k) for k in rng.integers(1, 4, 2))

    def randn(*shape):
        return rng.standard_normal(shape).astype(dtype)

    u, h, x = randn(n, m), randn(batch, n), randn(steps, batch, n)
    one = {"transpose": False, "method": "auto"}
    return {
        hh.forward: {"u": u, "h": h, **one},
        hh.forward_tape: {"u": u, "h": h, "transpose": True},
        hh.backward: {"u": u, "h": h, "grad_c": h, **one},
        hh.jvp: {"u": u, "h": h, "tangent_u": u, "tangent_h": h},
        hh.rnn: {"u": u, "x": x, "nonlinearity": "tanh", "negative_slope": 0.1, **one},
        hh.rnn_vjp: {"u": u, "x": x, "h0": None, "nonlinearity": "relu", **one},
        hh.rnn_vjp(u, x)[1]: {"grad_h": x, "grad_last": x[0]},
        hh.matrix: {"u": u},
        hh.wy: {"u": u},
        hh.normalize: {"u": u},
        hh.snap: {"u": u},
        hh.factor: {"q": np.eye(n, dtype=dtype), "m": m},
        hh.haar: {"n": n, "m": m, "dtype": dtype},
        hh.real_form: {"w": randn(n, n).astype(np.complex128)},
        hh.to_lapack: {"u": randn(n, m).real.astype(np.float64)},
        hh.from_lapack: dict(zip(("a", "tau"), hh.to_lapack(rng.standard_normal((n, m))), strict=True)),
    }


def impossible(rng, name, value):
    """Something that cannot stand in the place of an argument's good value."""

    def one_of(choices):
        return choices[rng.integers(len(choices))]

    if name in ("transpose",):
        return one_of(NO_FLAGS)
    if name in ("method", "nonlinearity"):
        return one_of(NO_NAMES)
    if name in ("n", "m"):
        return one_of([count for count in NO_COUNTS if not (name == "m" and count is None)])
    if name == "negative_slope":
        return one_of(NO_SLOPES)
    if name == "dtype":
        return one_of(NO_NUMBERS[:-1])
    if value is None:
        return one_of(NO_ARRAYS)
    kind = rng.integers(5)
    if kind == 0:
        return one_of(NO_ARRAYS)
    if kind == 1:
        return np.zeros(value.shape, one_of(NO_NUMBERS))
    if kind == 2:
        return value[(0,) * value.ndim]  # no axes
    if kind == 3:
        return np.ma.masked_array(value)
    return np.ones((*value.shape[:-2], 3, 4) if name in ("u", "a", "q", "w") else (*value.shape[:-1], 11), value.dtype)


def malformed(rng):
    """A function and arguments that it must refuse."""
    calls = good_calls(rng)
    function = list(calls)[rng.integers(len(calls))]
    arguments = dict(calls[function])
    for name in rng.permutation(list(arguments))[: rng.integers(1, 4)]:
        arguments[str(name)] = impossible(rng, str(name), arguments[str(name)])
    if rng.integers(20) == 0:
        arguments.pop(next(iter(arguments)))
    if rng.integers(20) == 0:
        arguments["colour"] = "blue"
    return function, arguments


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    for function, arguments in good_calls(rng).items():
        function(**arguments)  # the good ones are good
    ends = collections.Counter()
    begun = time.perf_counter()
    for _ in range(options.calls):
        function, arguments = malformed(rng)
        try:
            function(**arguments)
            end = "returned"
        except Exception as error:
            end = type(error).__name__
        ends[end] += 1
        if end not in ("TypeError", "ValueError"):
            shown = {
                name: f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else value
                for name, value in arguments.items()
            }
            print(f"{end}: {function.__name__}{inspect.signature(function)} with {shown}")
    print(f"{options.calls} malformed calls in {time.perf_counter() - begun:.0f} s: {dict(ends)}")
    sys.exit(set(ends) - {"TypeError", "ValueError"} != set())


if __name__ == "__main__":
    main()
