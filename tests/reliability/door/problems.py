"""Calls of every function of the array door, good and impossible ones, each with what must come of it."""

from collections.abc import Callable
from typing import NamedTuple

import layouts
import numpy as np
import oracle

import householder as hh

DTYPES = tuple(map(np.dtype, ("f4", "f8", "c8", "c16")))
METHODS = ("auto", "reflections", "wy", "dense")
NO_NUMBERS = ("?", "i1", "i8", "u4", "f2", "g", "G", "O", "S3", "U2", "M8[s]", [("a", "f8")])


class Problem(NamedTuple):
    """A call: what it is given, whether a result is right, or how it is to be refused."""

    function: Callable
    arrays: dict
    options: dict
    methods: tuple = ()
    right: Callable | None = None
    refusals: tuple = ()


def problem(rng):
    """A good problem or, one time in eight, one that is to be refused."""
    dtype = DTYPES[rng.integers(4)]
    unitary = dtype.kind == "c"
    n = int(rng.integers(1 + unitary, 70 if rng.integers(32) == 0 else 9))
    m = int(rng.integers(1, n + 1 - unitary))
    made = (_application, _application, _gradient, _gradient, _tape, _matrix, _wy, _factor, _sequence, _sequence)
    good = made[rng.integers(len(made))](rng, n, m, dtype)
    return _spoil(rng, good, n) if rng.integers(8) == 0 and not good.refusals else good


def _spoil(rng, good, n):
    """Give one argument a dtype or a shape that it cannot have."""
    present = [name for name, a in good.arrays.items() if a is not None]
    name = present[rng.integers(len(present))]
    a, refusals = good.arrays[name], (TypeError,)
    kind = rng.integers(3)
    if kind == 0 and len(present) > 1:  # another of the four
        a = np.zeros(a.shape, DTYPES[(DTYPES.index(a.dtype) + rng.integers(1, 4)) % 4])
        refusals = (TypeError, ValueError)  # a real u has no phases, a complex one may be too wide
    elif kind == 1:
        a = np.zeros(a.shape, NO_NUMBERS[rng.integers(len(NO_NUMBERS))])
    else:
        lead, last = a.shape[:-1], a.shape[-1]
        widths = (0, n + 1) if name == "u" else (last - 1, last + 1)
        a = np.ones(((), (*lead, widths[0]), (*lead, widths[1]))[rng.integers(3)], a.dtype)
        refusals = (ValueError,)
    return good._replace(arrays={**good.arrays, name: a}, right=None, refusals=refusals)


def _phases(rng, n, dtype):
    if dtype.kind != "c" or rng.integers(2):
        return {}
    return {"phases": rng.uniform(-4, 4, n).astype(np.empty(0, dtype).real.dtype)}


def _axes(rng):
    return tuple(rng.integers(0, 4, rng.choice(4, p=(0.3, 0.4, 0.2, 0.1))).tolist())


def _product(rng, n, m, dtype):
    """Matrices and vectors whose leading axes broadcast (mostly), and the leading axes of their products."""
    batch, matrices = _axes(rng), ()
    if rng.integers(2):
        matrices = tuple(k if rng.integers(2) else 1 for k in batch[rng.integers(len(batch) + 1) :])
    elif rng.integers(8) == 0:
        matrices = _axes(rng)
    arrays = {
        "u": layouts.reflections(rng, (*matrices, n, m), dtype),
        "h": layouts.numbers(rng, (*batch, n), dtype),
        **_phases(rng, n, dtype),
    }
    try:
        return arrays, np.broadcast_shapes(matrices, batch)
    except ValueError:
        return arrays, None


def _application(rng, n, m, dtype):
    arrays, axes = _product(rng, n, m, dtype)
    asked = Problem(hh.forward, arrays, {"transpose": bool(rng.integers(2))}, METHODS)
    if axes is None:
        return asked._replace(refusals=(ValueError,))
    return asked._replace(right=oracle.application(axes, **arrays, **asked.options))


def _gradient(rng, n, m, dtype):
    arrays, axes = _product(rng, n, m, dtype)
    arrays["grad_c"] = layouts.numbers(rng, arrays["h"].shape if axes is None else (*axes, n), dtype)
    asked = Problem(hh.backward, arrays, {"transpose": bool(rng.integers(2))}, METHODS)
    if axes is None:
        return asked._replace(refusals=(ValueError,))
    return asked._replace(right=oracle.gradient(axes, **arrays, **asked.options))


def _tape(rng, n, m, dtype):
    arrays = {
        "u": layouts.reflections(rng, (n, m), dtype),
        "h": layouts.numbers(rng, (*_axes(rng), n), dtype),
        **_phases(rng, n, dtype),
    }
    options = {"transpose": bool(rng.integers(2))}
    right = oracle.application(arrays["h"].shape[:-1], **arrays, **options)
    return Problem(hh.forward_tape, arrays, options, right=lambda result: right(result[0]))


def _matrix(rng, n, m, dtype):
    arrays = {"u": layouts.reflections(rng, (*_axes(rng), n, m), dtype), **_phases(rng, n, dtype)}
    return Problem(hh.matrix, arrays, {}, right=oracle.matrix(**arrays))


def _wy(rng, n, m, dtype):
    u = layouts.reflections(rng, (*_axes(rng), n, m), dtype)
    return Problem(hh.wy, {"u": u}, {}, right=oracle.wy)


def _factor(rng, n, m, dtype):
    q = oracle.orthogonal(rng.standard_normal((n, m)).astype(dtype))
    return Problem(hh.factor, {"q": q}, {}, right=lambda result: oracle.factors(q, result))


def _sequence(rng, n, m, dtype):
    """A short recurrence of several sequences, of one, or packed; backward where the nonlinearity is smooth."""
    steps, kind = int(rng.integers(0, 5)), ("several", "one", "packed")[rng.integers(3)]
    sizes = np.full(steps, int(rng.integers(1, 4)) if kind == "several" else 1)
    if kind == "packed":
        sizes = np.sort(rng.integers(1, 4, steps))[::-1]
    batch, rows = int(sizes[0]) if steps else int(kind == "one"), int(sizes.sum())
    shape = (steps, batch) if kind == "several" else (rows,)
    d = int(rng.integers(1, 5))
    some = {"input_weight": (n, d), "bias": (n,), "h0": (n,) if kind == "one" or rng.integers(2) else (batch, n)}
    extra = {name: layouts.numbers(rng, size, dtype) for name, size in some.items() if rng.integers(2)}
    x = layouts.numbers(rng, (*shape, d if "input_weight" in extra else n), dtype)
    arrays = {"u": layouts.reflections(rng, (n, m), dtype), "x": x, **extra, **_phases(rng, n, dtype)}
    backward = bool(rng.integers(2))
    names = ("identity", "tanh") if backward else ("identity", "tanh", "relu", "leaky_relu", "oplu")
    if n % 2 or dtype.kind == "c":
        names = tuple(name for name in names if name != "oplu")
    options = {"nonlinearity": names[rng.integers(len(names))]}
    options |= {"transpose": bool(rng.integers(2)), "reverse": kind != "packed" and bool(rng.integers(2))}
    recurrence = oracle.Recurrence(arrays, options, sizes, batch)
    if kind == "packed":
        options["batch_sizes"] = sizes
    methods = ("auto", "wy", "dense")
    if not backward:
        return Problem(hh.rnn_forward, arrays, options, methods, recurrence.right_states)
    given = {
        "h0": None,
        **arrays,
        "h": recurrence.in_time(recurrence.states.reshape(*shape, n)).astype(dtype),
        "grad_h": layouts.numbers(rng, (*shape, n), dtype),
    }
    return Problem(hh.rnn_backward, given, options, methods, recurrence.right_gradients(given["h"], given["grad_h"]))
