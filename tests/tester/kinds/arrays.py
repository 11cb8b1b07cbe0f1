"""The NumPy functions: the same numbers laid out in many ways, by every method, and calls that are to be refused."""

import compare
import layouts
import numpy as np
import oracle
import sizes
import torch
from compare import DefectError, Result
from objects import of_arrays
from source import COMPLEX, REAL

import householder as hh
from householder._base.spec import METHODS, SEQUENCE_METHODS
from kinds.functions import axes, nonlinearity, phases, ragged, smallest

LAYOUTS = 4
NO_ARRAYS = ("a string", b"bytes", {}, object(), {1.0, 2.0}, ..., [[1.0], [2.0, 3.0]])
NO_NAMES = ("", "fast", "WY", None, 3, b"wy", ("wy",), 1.5)
IMPOSSIBLE = {
    **dict.fromkeys(("reverse",), (0, 1, "yes", None, 1.0, [], np.ones(2))),
    **dict.fromkeys(("method", "nonlinearity"), NO_NAMES),
    "negative_slope": (-0.1, float("nan"), float("inf"), "0.1", [0.1], 1j, None),
    "num_householder": (0, -1, 10**30, 1.5, "3", None, [3], 2j),
    "scale": ("1", [1.0], 1j, True),
    "cu_seqlens": ("ab", [[0], [1, 2]], [0.5], [-1, 3], 1),
    "batch_sizes": ("ab", [[1], [1, 2]], [0.5], [-1], [1, 2], 1),
}
"""What can stand in the place of no good value."""
NO_NUMBERS = ("g", "G", "O", "S3", "U2", "M8[s]", [("a", "f8")])


def numbers(source, shape, dtype):
    """Numbers as for tensors, now and then one that is not finite."""
    a = source.numbers(shape, dtype)
    if source.one_in(16) and a.numel():
        a = a.clone(memory_format=torch.contiguous_format)
        a.view(-1)[source.among(0, a.numel() - 1)] = source.choose((np.nan, np.inf, -np.inf))
    return a


class Call:
    """A function, its arguments, and what is right."""

    def __init__(self, function, arrays, theirs, operations, options=None, methods=(), weights=None, reach=1.0):
        self.function, self.theirs, self.operations = function, theirs, operations
        self.arrays = {name: t.numpy() if isinstance(t, torch.Tensor) else t for name, t in arrays.items()}
        self.options, self.methods, self.weights, self.reach = options or {}, methods, weights or {}, reach

    def exact(self, wanted=()):
        return {
            name: oracle.wide(torch.from_numpy(a)).requires_grad_(name in wanted) if isinstance(a, np.ndarray) else a
            for name, a in self.arrays.items()
        }

    def results(self, found):
        """What the function returns, or what is expected, by name: None is left out."""
        if hasattr(found, "_asdict"):
            found = found._asdict()
        if not isinstance(found, dict):
            found = found if isinstance(found, tuple) else (found,)
            found = {f"result {i}": a for i, a in enumerate(found)}
        return {name: a for name, a in found.items() if a is not None}

    def run(self, source, record, told):
        shapes = {name: (a.dtype.str, a.shape) for name, a in self.arrays.items() if isinstance(a, np.ndarray)}
        told.append(f"{self.function.__name__} of {shapes}, {self.options}")
        expected = self.results(self.theirs(self.exact()))
        laid = [self.lay(source) for _ in range(LAYOUTS)]
        for method in self.methods or (None,):
            options = self.options if method is None else {**self.options, "method": method}
            first = None
            for arguments, around in laid:
                hh.set_num_threads(source.choose((1, 2, 3)))
                found = self.results(self.function(**arguments, **options))
                bits = {name: (a.dtype.char, a.shape, a.tobytes()) for name, a in found.items()}
                if first is None:
                    first = bits
                    self.compare(record, found, expected)
                elif bits != first:
                    raise DefectError(f"method {method}: depends on how arrays lie or on the number of threads")
                for a in found.values():
                    a.fill(7)
                if any(raw.tobytes() != before for raw, before in around):
                    raise DefectError("an input was changed")

    def lay(self, source):
        laid = {
            k: layouts.array(source.rng, a) if isinstance(a, np.ndarray) else (a, None) for k, a in self.arrays.items()
        }
        around = [(raw, raw.tobytes()) for _, raw in laid.values() if raw is not None]
        return {name: a for name, (a, _) in laid.items()}, around

    def compare(self, record, found, expected):
        if set(found) != set(expected):
            raise DefectError(f"results {set(found)}, expected {set(expected)}")
        eps = max(
            np.finfo(a.dtype).eps for a in self.arrays.values() if isinstance(a, np.ndarray) and a.dtype.kind in "fc"
        )

        def results(arrays):
            tensors = {
                k: a if isinstance(a, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(a))
                for k, a in arrays.items()
            }
            return [Result(name, tensors[name].detach(), self.weights.get(name, 1.0)) for name in sorted(tensors)]

        compare.check(
            record,
            results(found),
            results(expected),
            lambda: results(self.results(self.theirs(self.exact()))),
            eps,
            self.operations,
            self.reach,
        )


def gradients(result, cotangents, tensors, names):
    """By plain autograd, zeros where nothing depends on a tensor."""
    total = sum((r * g.conj()).real.sum() for r, g in zip(result, cotangents, strict=True) if g is not None)
    given = [tensors[name] for name in names]
    found = torch.autograd.grad(total, given, allow_unused=True) if total.requires_grad else [None] * len(given)
    return tuple(torch.zeros_like(t) if g is None else g for t, g in zip(given, found, strict=True))


def call(source):
    """A call of one of the functions, to be right or, one in eight, to be refused."""
    made = source.choose(
        (forward, forward, backward, backward, tape, matrix, wy, tangent, sequence, sequence, parameters)
    )(source)
    if source.one_in(8):
        return lambda record, told: refuse(source, made, record, told)
    return lambda record, told: made.run(source, record, told)


def product(source):
    dtype = source.choose((*REAL, *COMPLEX))
    n, m, rows = sizes.application(source, dtype)
    batch, matrices = (() if source.one_in(8) else (rows,), ()) if rows > 6 or n > 24 or source.flag() else axes(source)
    arrays = {
        "u": source.reflections((*matrices, n, m), dtype),
        "h": numbers(source, (*batch, n), dtype),
        **phases(source, n, dtype),
    }
    return arrays, dtype, (*batch, n), n + m


def forward(source):
    arrays, dtype, _, operations = product(source)
    options = {"transpose": source.flag()}
    theirs = lambda t: oracle.apply(**t, **options, smallest=smallest(dtype))  # noqa: E731
    return Call(of_arrays(hh.forward), arrays, theirs, operations, options, METHODS)


def backward(source):
    arrays, dtype, shape, operations = product(source)
    arrays["grad_c"] = numbers(source, shape, dtype)
    options = {"transpose": source.flag()}
    names = [name for name in ("u", "h", "phases") if name in arrays]

    def theirs(t):
        t = {name: a.requires_grad_(name in names) for name, a in t.items()}
        c = oracle.apply(t["u"], t["h"], t.get("phases"), options["transpose"], smallest(dtype))
        found = dict(zip(names, gradients([c], [t["grad_c"]], t, names), strict=True))
        if not (t["h"].isfinite().all() and t["grad_c"].isfinite().all()):
            # Zero times a number that is not finite: nothing is promised for a column without direction.
            absent = (t["u"].detach().tril() == 0).all(-2, keepdim=True)
            found["u"] = torch.where(absent, torch.nan, found["u"])
        return found

    return Call(
        of_arrays(hh.backward), arrays, theirs, operations, options, METHODS, {"u": compare.column_lengths(arrays["u"])}
    )


def tape(source):
    """The stored mode: its result and, from its tape, its gradients."""
    arrays, dtype, shape, operations = product(source)
    arrays["u"] = source.reflections(tuple(arrays["u"].shape[-2:]), dtype)
    options = {"transpose": source.flag()}
    arrays["h"] = source.numbers(shape, dtype)
    arrays["grad_c"] = source.numbers(shape, dtype)
    names = [name for name in ("u", "h", "phases") if name in arrays]

    def forward_and_backward(grad_c, **given):
        c, kept = of_arrays(hh.forward_tape)(**given, **options)
        return c, *of_arrays(hh.backward)(**given, grad_c=grad_c, tape=kept, **options)

    def theirs(t):
        t = {name: a.requires_grad_(name in names) for name, a in t.items()}
        c = oracle.apply(t["u"], t["h"], t.get("phases"), options["transpose"], smallest(dtype))
        return c, *gradients([c], [t["grad_c"]], t, names)

    operations += int(np.prod(shape[:-1]))  # sums over the vectors, one after the other
    return Call(
        forward_and_backward, arrays, theirs, operations, weights={"result 1": compare.column_lengths(arrays["u"])}
    )


def matrix(source):
    arrays, dtype, _, operations = product(source)
    del arrays["h"]
    return Call(
        of_arrays(hh.matrix), arrays, lambda t: oracle.matrix(t["u"], t.get("phases"), smallest(dtype)), operations
    )


def wy(source):
    """Unit columns V, and ``I - V S V*`` with ``T S = I``: all columns but ``u_1``."""
    arrays, dtype, _, operations = product(source)
    u = arrays["u"]
    n, m = u.shape[-2:]
    k = min(m, n - 1) if not dtype.is_complex else m

    def function(u):
        v, t, s = hh.wy(u)
        product = np.eye(n) - v @ s @ np.conj(v).swapaxes(-1, -2)
        return product.astype(v.dtype), (t @ s).astype(v.dtype), np.tril(t)

    def theirs(t):
        w = oracle.matrix(t["u"][..., :k], None, smallest(dtype))
        eye = torch.eye(k, dtype=w.dtype).expand(*u.shape[:-2], k, k)
        return w, eye, eye / 2

    return Call(function, {"u": u}, theirs, 16 * operations)


def tangent(source):
    """Forward mode."""
    arrays, dtype, _, operations = product(source)
    arrays["h"] = source.numbers(tuple(arrays["h"].shape), dtype)
    names = [name for name in ("u", "h", "phases") if name in arrays]
    lengths = compare.column_lengths(arrays["u"]).to(dtype)
    for name in names:
        direction = source.numbers(tuple(arrays[name].shape), arrays[name].dtype)
        arrays[f"tangent_{name}"] = direction * lengths if name == "u" else direction
    options = {"transpose": source.flag()}

    def theirs(t):
        def function(*values):
            given = dict(zip(names, values, strict=True))
            return oracle.apply(given["u"], given["h"], given.get("phases"), options["transpose"], smallest(dtype))

        values = tuple(t[name].detach() for name in names)
        return torch.autograd.functional.jvp(function, values, tuple(t[f"tangent_{name}"] for name in names))[1]

    return Call(of_arrays(hh.jvp), arrays, theirs, 4 * operations, options)


def sequence(source):
    """States of a recurrence, or its gradients."""
    dtype = source.choose((*REAL, *COMPLEX))
    n, m, d, steps, batch = sizes.sequences(source, dtype)
    form = source.choose(("several", "one", "packed"))
    arrays, extra = {"u": source.reflections((n, m), dtype)}, {}
    if form == "packed":
        extra["batch_sizes"] = ragged(source, steps, batch)
        batch = int(extra["batch_sizes"][0])
        shape = (int(extra["batch_sizes"].sum()),)
    else:
        shape = (steps, batch) if form == "several" else (steps,)
    has_weight = source.flag()
    arrays["x"] = source.numbers((*shape, d if has_weight else n), dtype)
    arrays["h0"] = None
    if source.flag():
        arrays["h0"] = source.numbers((n,) if form == "one" or source.flag() else (batch, n), dtype)
    if has_weight:
        arrays["input_weight"] = source.numbers((n, d), dtype)
    if source.flag():
        arrays["bias"] = source.numbers((n,), dtype)
    name, of_phi = nonlinearity(source, n, dtype)
    arrays |= {**of_phi, **phases(source, n, dtype)}
    options = {
        "nonlinearity": name,
        "negative_slope": source.choose((0.1, 0.0, 0.5, 1.0)),
        "transpose": source.flag(),
        "reverse": form != "packed" and source.flag(),
    }
    names = [
        name
        for name in ("u", "x", "h0", "input_weight", "bias", "phases", "nonlinearity_bias")
        if arrays.get(name) is not None
    ]
    sized = {"batch_sizes": extra["batch_sizes"].tolist()} if extra else {}
    backward = source.flag()
    grads = {"grad_h": (*shape, n), "grad_last": (n,) if form == "one" else (batch, n)}
    kept = source.some(tuple(grads)) or ("grad_h",)
    grads = {key: source.numbers(size, dtype) if key in kept else None for key, size in grads.items()}

    def run(t):
        given = {key: t[key] for key in t if key not in grads}
        return oracle.rnn(**given, **extra, **options, smallest=smallest(dtype))

    def theirs(t):
        if not backward:
            return run(t)[0]
        t = {key: a.requires_grad_(key in names) if isinstance(a, torch.Tensor) else a for key, a in t.items()}
        return dict(zip(names, gradients(run(t), (t["grad_h"], t["grad_last"]), t, names), strict=True))

    def function(u, x, h0, grad_h=None, grad_last=None, **given):
        if backward:
            return of_arrays(hh.rnn_vjp)(u, x, h0, **given)[1](grad_h, grad_last=grad_last)
        return of_arrays(hh.rnn)(u, x, h0, **given)[0]

    function.__name__ = "rnn_vjp" if backward else "rnn"
    weights = {"u": compare.column_lengths(arrays["u"])} if backward else {}
    given = arrays | (grads if backward else {})
    return Call(function, given, theirs, (n + m) * (steps + 1), {**options, **sized}, SEQUENCE_METHODS, weights)


def parameters(source):
    """Functions of the parameters alone: W stays, or becomes what they promise."""
    dtype = source.choose((*REAL, *COMPLEX))
    n, m, _ = sizes.tiny(source, dtype)
    u = source.reflections((n, m), dtype)
    if source.flag() and not dtype.is_complex:
        u = u.nan_to_num(0, 0, 0)
        if m == n:
            u[-1, -1] = source.choose((1, -1))
        if not bool((u.diagonal() == 0).any()):
            return Call(through_lapack, {"u": u}, lambda t: oracle.matrix(t["u"], None, smallest(dtype)), 8 * (n + m))
    if dtype.is_complex and source.flag():
        w = source.numbers((n, n), dtype)

        def form(t):
            a, b = t["w"].real, t["w"].imag
            return torch.cat([torch.cat([a, -b], 1), torch.cat([b, a], 1)])

        return Call(hh.real_form, {"w": w}, form, 1)

    def theirs(t):
        w = oracle.matrix(t["u"], None, smallest(dtype))
        ones = (compare.column_lengths(torch.tensor(np.asarray(t["u"].tril()))) >= smallest(dtype)).double()
        ones = torch.where((t["u"].tril() != 0).any(0, keepdim=True), ones, 0.0)
        if m == n and not dtype.is_complex:
            ones[..., -1] = t["u"][-1, -1].abs()
        return w, ones[0]

    def function(u):
        unit = hh.normalize(u)
        return hh.matrix(unit), np.linalg.norm(unit, axis=0)

    return Call(function, {"u": u}, theirs, n + m)


def through_lapack(u):
    return hh.matrix(hh.from_lapack(*hh.to_lapack(u)))


def refuse(source, made, record, told):
    """Give an argument a mask, dtype or shape that it cannot have, or others what can stand in the place of none."""
    given = made.arrays | made.options | ({"method": "auto"} if made.methods else {})
    wrong, refusals = {}, (TypeError, ValueError)
    if source.flag():
        names = [name for name, a in given.items() if name in IMPOSSIBLE or isinstance(a, np.ndarray)]
        for name in source.rng.permutation(names)[: source.among(1, 3)]:
            wrong[str(name)] = source.choose(IMPOSSIBLE.get(name, NO_ARRAYS))
    elif source.one_in(3):
        wrong, refusals = masked(source, given), (TypeError,)
    else:
        wrong, refusals = misfit(source, made)
    if not wrong:
        return
    shown = {name: a.dtype.str + str(a.shape) if isinstance(a, np.ndarray) else a for name, a in wrong.items()}
    told.append(f"{made.function.__name__} with {shown}, {made.options}")
    try:
        made.function(**given | wrong)
    except refusals:
        record.results += 1
        return
    raise DefectError("was not refused")


def masked(source, given):
    """An array, or a list of integers, whose entries may be masked, as a masked array or in a list."""
    names = [name for name, a in given.items() if isinstance(a, np.ndarray) or name in ("batch_sizes", "cu_seqlens")]
    name = source.choose(sorted(name for name in names if given[name] is not None))
    a = np.ma.masked_array(given[name], mask=source.flag())
    return {name: list(a) if a.ndim > 1 and len(a) and source.flag() else a}


def misfit(source, made):
    """An array of another dtype or shape, and the errors that may follow."""
    arrays = {name: a for name, a in made.arrays.items() if isinstance(a, np.ndarray)}
    name = source.choose(sorted(arrays))
    a, refusals, kind = arrays[name], (TypeError,), source.among(0, 2)
    if kind == 0 and len(arrays) > 1:
        others = [dtype for dtype in ("f4", "f8", "c8", "c16") if np.dtype(dtype) != a.dtype]
        a, refusals = np.zeros(a.shape, source.choose(others)), (TypeError, ValueError)  # a real u has no phases
    elif kind == 1:
        a = np.zeros(a.shape, source.choose(NO_NUMBERS))
    else:
        lead, last = a.shape[:-1], a.shape[-1]
        widths = (0, a.shape[-2] + 1 if a.ndim > 1 else last + 1) if name in ("u", "w") else (last - 1, last + 1)
        a, refusals = np.ones(source.choose(((), (*lead, widths[0]), (*lead, widths[1]))), a.dtype), (ValueError,)
        if a.ndim and name == "h0" and a.shape == made.arrays["u"].shape[:1]:
            return {}, ()
    return {name: a}, refusals
