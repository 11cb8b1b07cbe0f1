"""``ht.apply``, ``ht.matrix`` and ``ht.rnn``."""

import oracle
import sizes
import torch
from objects import of_arrays
from problem import Problem
from source import COMPLEX, HALF, REAL

import householder.torch as ht
from householder._base import spec

METHODS = ("auto", *spec.METHODS)  # twice as often as the others
SEQUENCE_METHODS = ("auto", *spec.SEQUENCE_METHODS)


def dtypes(source):
    """The dtype of u and that of vectors, which may be a half type."""
    kind = source.among(0, 15)
    if kind == 0:
        return (source.choose(HALF),) * 2
    if kind == 1:
        return torch.float32, source.choose(HALF)
    return (source.choose((*REAL, *COMPLEX)),) * 2


def smallest(dtype):
    return torch.finfo(torch.float32 if dtype in HALF else dtype).tiny


def phases(source, n, dtype):
    if not dtype.is_complex or source.one_in(3):
        return {}
    return {"phases": source.numbers((n,), dtype.to_real())}


def axes(source):
    """Leading axes of vectors, and those of matrices that broadcast with them."""
    if source.one_in(6):  # so many that they are solved side by side, or just not
        count = source.near((8, 16, 32))
        return ((count,), (count,)) if source.flag() else ((count, source.among(1, 3)), (count, 1))
    batch = tuple(source.among(0, 3) if source.one_in(4) else source.among(1, 3) for _ in range(source.among(1, 3)))
    matrices = tuple(k if source.flag() else 1 for k in batch[source.among(0, len(batch)) :])
    return batch, matrices


def apply(source):
    """One application, of one matrix or of many that broadcast."""
    dtype, vectors = dtypes(source)
    n, m, rows = sizes.application(source, dtype)
    batch, matrices = (() if source.one_in(8) else (rows,), ()) if rows > 6 or source.flag() else axes(source)
    tensors = {
        "u": source.reflections((*matrices, n, m), dtype),
        "h": source.numbers((*batch, n), vectors),
        **phases(source, n, dtype),
    }
    options = {"transpose": source.flag(), "method": source.choose(METHODS)}
    tiny = smallest(dtype)

    def theirs(t):
        return oracle.apply(t["u"], t["h"], t.get("phases"), options["transpose"], tiny)

    def ours(t):
        return of_arrays(ht.apply)(t["u"], t["h"], phases=t.get("phases"), **options)

    return Problem("ht.apply", tensors, ours, theirs, n + m, options=options)


def matrix(source):
    """W itself, one or many."""
    dtype = source.choose((*REAL, *COMPLEX, source.choose(HALF)))
    n, m, _ = sizes.application(source, dtype)
    many = () if n > 24 or source.flag() else axes(source)[0]
    tensors = {"u": source.reflections((*many, n, m), dtype), **phases(source, n, dtype)}
    tiny = smallest(dtype)
    return Problem(
        "ht.matrix",
        tensors,
        lambda t: ht.matrix(ht.Reflections(t["u"], phases=t.get("phases"))),
        lambda t: oracle.matrix(t["u"], t.get("phases"), tiny),
        n + m,
    )


def nonlinearity(source, n, dtype):
    """A nonlinearity that such states have, and its bias."""
    phi = source.choose([phi for phi in spec.NONLINEARITIES.values() if phi.acts_on(n, dtype.is_complex)])
    if not phi.has_bias:
        return phi.name, {}
    real = dtype.to_real() if dtype.is_complex else dtype
    return phi.name, {"nonlinearity_bias": 0.3 * source.numbers((phi.moduli(n, dtype.is_complex),), real)}


def ragged(source, steps, batch):
    """Sequences at each step, never increasing."""
    found = sorted((source.among(1, max(batch, 1)) for _ in range(max(steps, 1) - 1)), reverse=True)
    return torch.tensor([max(batch, 1), *found])


def trapezoidal(source, n, m, dtype):
    """Reflections as layers have them."""
    return {"u": source.reflections((n, m), dtype)}, {}


def rnn(source, reflections=trapezoidal):
    """Sequences: batched, one, or packed; of reflections that are tensors and options."""
    dtype, of_x = dtypes(source)
    n, m, d, steps, batch = sizes.sequences(source, dtype)
    form = source.choose(("batched", "batched", "one", "packed"))
    tensors, options = reflections(source, n, m, dtype)
    if form == "packed":
        tensors["batch_sizes"] = ragged(source, steps, batch)
        batch = int(tensors["batch_sizes"][0])
        shape = (int(tensors["batch_sizes"].sum()),)
    else:
        shape = (steps, batch) if form == "batched" else (steps,)
        options["reverse"] = source.flag()
    has_weight = source.flag()
    tensors["x"] = source.numbers((*shape, d if has_weight else n), of_x)
    if has_weight:
        tensors["input_weight"] = source.numbers((n, d), dtype)
    if source.flag():
        tensors["bias"] = source.numbers((n,), dtype)
    if source.flag():
        tensors["h0"] = source.numbers((n,) if form == "one" or source.flag() else (batch, n), of_x)
    name, extra = nonlinearity(source, n, dtype)
    tensors |= extra if "tau" in tensors else {**extra, **phases(source, n, dtype)}
    options |= {
        "nonlinearity": name,
        "negative_slope": source.choose((0.1, 0.0, 0.5, 1.0, 1.5 if steps < 7 else 0.9)),
        "transpose": source.flag(),
        "method": source.choose(SEQUENCE_METHODS),
    }
    exact = {k: v for k, v in options.items() if k != "method"} | {"smallest": smallest(dtype)}
    return Problem(
        "ht.rnn",
        tensors,
        lambda t: of_arrays(ht.rnn)(**t, **options),
        lambda t: oracle.rnn(**t, **exact),
        (n + m) * (steps + 1),
        ("u",) if reflections is trapezoidal else (),
        options=options,
    )
