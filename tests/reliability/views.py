"""Arrays of arbitrary shapes, strides, byte orders and values give what their plain copies give, bit for bit.

    python tests/reliability/views.py [--calls 1000000] [--seed 0]

Matrices are compared with the readable algorithm as well. (The kernels behind the door: ``fuzz/``.)
"""

import argparse
import sys
import time

import numpy as np

import householder as hh
from householder import reference

DTYPES = ("f4", "f8", "c8", "c16")
METHODS = ("auto", "reflections", "wy", "dense")


def values(rng, shape, dtype):
    """Numbers of one temper: ordinary, sparse, tiny, or with NaN and infinities."""
    a = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * rng.standard_normal(shape)
    temper = rng.integers(8)
    if temper == 0:
        a = a * (rng.random(shape) < 0.5)
    elif temper == 1:
        a = a * 1e-30
    elif temper == 2 and a.size:
        a[tuple(rng.integers(k) for k in shape)] = (np.nan, np.inf, -np.inf)[rng.integers(3)]
    return a.astype(dtype)


def disguise(rng, a):
    """The same numbers, lying in memory in another way."""
    for _ in range(rng.integers(3)):
        kind = rng.integers(7)
        if kind == 0:
            a = np.asfortranarray(a)
        elif kind == 1:
            wide = np.empty(tuple(3 * k for k in a.shape), a.dtype)
            wide[tuple(slice(1, None, 3) for _ in a.shape)] = a
            a = wide[tuple(slice(1, None, 3) for _ in a.shape)]
        elif kind == 2 and a.ndim:
            a = np.ascontiguousarray(np.flip(a))
            a = np.flip(a)
        elif kind == 3:
            a = a.astype(a.dtype.newbyteorder(">"))
        elif kind == 4:
            raw = np.empty(a.nbytes + 1, np.uint8)
            unaligned = raw[1:].view(a.dtype).reshape(a.shape)
            unaligned[...] = a
            a = unaligned
        elif kind == 5:
            a = a.copy()
            a.flags.writeable = False
        elif kind == 6 and a.ndim > 1:
            a = np.ascontiguousarray(np.moveaxis(a, 0, -1))
            a = np.moveaxis(a, -1, 0)
    return a


def results(function, arrays, options):
    """What a call gives, as a list of arrays, or the kind of its refusal."""
    try:
        out = function(*arrays, **options)
    except (TypeError, ValueError) as error:
        return type(error)
    return [out] if isinstance(out, np.ndarray) else [a for a in out if a is not None]


def same(a, b):
    if isinstance(a, type) or isinstance(b, type):
        return a is b
    return all(x.dtype == y.dtype and np.array_equal(x, y, equal_nan=True) for x, y in zip(a, b, strict=True))


def plain(u, outcome):
    """Whether the readable algorithm takes it: one matrix, of finite numbers."""
    return not isinstance(outcome, type) and u.ndim == 2 and np.isfinite(u).all()


def problem(rng):
    """A function, its arrays and its options."""
    dtype = np.dtype(DTYPES[rng.integers(4)])
    n = int(rng.integers(1, 12))
    m = int(rng.integers(1, n + 2))  # one too many, now and then
    batch = tuple(int(k) for k in rng.integers(0, 4, rng.integers(3)))
    matrices = tuple(int(k) for k in batch if k) if rng.integers(8) == 0 else ()
    u, h, g = (values(rng, shape, dtype) for shape in ((*matrices, n, m), (*batch, n), (*batch, n)))
    options = {"transpose": bool(rng.integers(2)), "method": METHODS[rng.integers(4)]}
    kind = rng.integers(5)
    if kind == 0:
        return hh.forward, (u, h), options
    if kind == 1:
        return hh.backward, (u, h, g), options
    if kind == 2:
        return hh.matrix, (u,), {}
    x, states = (values(rng, (3, 2, n), dtype) for _ in range(2))
    options = {"transpose": options["transpose"], "nonlinearity": ("tanh", "relu", "identity")[rng.integers(3)]}
    if kind == 3:
        return hh.rnn_forward, (u, x), options
    return hh.rnn_backward, (u, x, None, states, x), options


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    failures = refused = 0
    begun = time.perf_counter()
    np.seterr(all="ignore")
    for call in range(options.calls):
        function, arrays, keywords = problem(rng)
        disguised = tuple(None if a is None else disguise(rng, a) for a in arrays)
        before = [None if a is None else a.copy() for a in disguised]
        expected, got = results(function, arrays, keywords), results(function, disguised, keywords)
        untouched = all(
            a is None or np.array_equal(a, b, equal_nan=True) for a, b in zip(disguised, before, strict=True)
        )
        right = same(expected, got) and untouched
        refused += isinstance(expected, type)
        if right and function is hh.matrix and plain(arrays[0], expected):
            w = reference.matrix(arrays[0].astype(np.result_type(arrays[0].dtype, "f8")))
            right = np.abs(expected[0] - w).max(initial=0) <= 1e-4 * max(1, np.abs(w).max(initial=0))
        if not right:
            failures += 1
            print(f"call {call}: {function.__name__} {[a if a is None else (a.dtype.str, a.shape) for a in arrays]}")
    seconds = time.perf_counter() - begun
    print(f"{options.calls} calls in {seconds:.0f} s: {failures} wrong, {refused} refused for their shapes alike")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
