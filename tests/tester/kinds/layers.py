"""Every layer with all its options, against the same in explicit reflections."""

import oracle
import sizes
import torch
from problem import Problem
from source import COMPLEX, HALF, REAL
from torch import nn
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence

import householder.torch as ht
from householder._base.spec import NONLINEARITIES
from kinds.functions import METHODS, SEQUENCE_METHODS, smallest


def fill(source, module):
    """Give parameters numbers of a case, not of torch's generator."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            last = name.rpartition(".")[2]
            if last == "reflections":
                p.copy_(source.reflections(tuple(p.shape), p.dtype).nan_to_num(0, 0, 0))
            elif last == "original":
                p.copy_(p.detach() * 10.0 ** source.among(-1, 1))
            else:
                p.copy_((0.3 if last == "nonlinearity_bias" else 1) * source.numbers(tuple(p.shape), p.dtype))


def problem(name, module, inputs, ours, theirs, operations, **more):
    """A problem whose tensors are a module's parameters and its inputs; ``ours(call, inputs)`` calls the module."""
    own = {key: p.detach().clone() for key, p in module.named_parameters()}

    def run(t):
        parameters = {key: t[key] for key in own}
        given = {"hx": None, **{key: t[key] for key in inputs}}
        if all(parameters[key] is p for key, p in module.named_parameters()):
            return ours(module, given)
        return ours(lambda *a, **k: functional_call(module, parameters, a, k), given)

    reflections = tuple(key for key in own if key.endswith(("reflections", "original")))
    return Problem(name, {**own, **inputs}, run, theirs, operations, reflections, module, **more)


def dtype_of(source, is_complex):
    return source.choose(COMPLEX) if is_complex else source.choose((*REAL, *REAL, *REAL, source.choose(HALF)))


def packed(sequences):
    """What ``pack_sequence`` makes, which has no gradients of complex numbers."""
    order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
    steps = [[sequences[i][t] for i in order if len(sequences[i]) > t] for t in range(len(sequences[order[0]]))]
    rows = torch.stack([row for step in steps for row in step])
    return PackedSequence(
        rows, torch.tensor([len(step) for step in steps]), torch.tensor(order), torch.tensor(order).argsort()
    )


def unpacked(output, lengths):
    """The sequences in a ``PackedSequence``, in their own order."""
    data, sizes, _, places = output
    starts = (sizes.cumsum(0) - sizes).tolist()
    return [
        torch.stack([data[starts[t] + int(place)] for t in range(length)])
        for place, length in zip(places, lengths, strict=True)
    ]


def recurrent_options(source, is_complex, n):
    options = {
        "nonlinearity": source.choose([name for name, phi in NONLINEARITIES.items() if phi.acts_on(n, is_complex)]),
        "negative_slope": source.choose((0.1, 0.0, 0.7, 1.0)),
        "bias": source.flag(),
        "learn_h0": source.flag(),
        "method": source.choose(SEQUENCE_METHODS),
    }
    if not is_complex:
        options["constraint"] = source.choose(("hard", "soft"))
    return options


def recurrent(source):
    """``OrthogonalRNN`` and ``UnitaryRNN``: depth, directions, orders of axes, packed sequences, ``last_state``."""
    is_complex = source.one_in(3)
    dtype = dtype_of(source, is_complex)
    n, m, d, steps, batch = sizes.sequences(source, dtype)
    layers = source.choose((1, 1, 2, 3)) if n * steps < 200 else 1
    form = source.choose(("batched", "batched", "one", "packed", "last state"))
    options = recurrent_options(source, is_complex, n)
    bidirectional, batch_first = form != "last state" and source.flag(), source.flag()
    counts = [m, *(source.among(1, n - is_complex) for _ in range(layers - 1))] if n < 32 else m
    dropout = 0.0 if layers == 1 or source.flag() else source.choose((0.5, 1.0))
    module = (ht.UnitaryRNN if is_complex else ht.OrthogonalRNN)(
        d, n, layers, num_reflections=counts, bidirectional=bidirectional, batch_first=batch_first,
        dropout=0.0 if form == "last state" else dropout, dtype=dtype, **options,
    )  # fmt: skip
    module.train(dropout != 0.5)  # units are dropped all or none
    fill(source, module)
    how = {
        "num_layers": layers,
        "bidirectional": bidirectional,
        "smallest": smallest(dtype),
        "constraint": "hard",
    } | options
    how["dropped"] = dropout == 1.0 and form != "last state"
    of_x = dtype.to_real() if is_complex and source.flag() else dtype
    states = (len(module.cells), *(() if form == "one" else (batch,)), n)
    inputs = {}
    if form == "packed":
        lengths = [source.among(1, max(steps, 1)) for _ in range(max(batch, 1))]
        inputs = {f"x{i}": source.numbers((length, d), of_x) for i, length in enumerate(lengths)}
        states = (len(module.cells), len(lengths), n)
    else:
        order = (batch, steps, d) if batch_first else (steps, batch, d)
        inputs["x"] = source.numbers((steps, d) if form == "one" else order, of_x)
    if source.flag():
        inputs["hx"] = source.numbers(states, dtype)
    every = source.among(1, 4)

    def ours(call, t):
        if form == "packed":
            output, last = call(packed([t[f"x{i}"] for i in range(len(lengths))]), t["hx"])
            return *unpacked(output, lengths), last
        if form == "last state":
            return ht.last_state(module, t["x"], t["hx"], every=every)
        return call(t["x"], t["hx"])

    def theirs(t):
        hx = t.get("hx")
        if form == "packed":
            pairs = [
                oracle.recurrent_layer(t, how, t[f"x{i}"], None if hx is None else hx[:, i])
                for i in range(len(lengths))
            ]
            return *(x for x, _ in pairs), torch.stack([last for _, last in pairs], 1)
        swapped = batch_first and form != "one"
        x, last = oracle.recurrent_layer(t, how, t["x"].transpose(0, 1) if swapped else t["x"], hx)
        return last if form == "last state" else (x.transpose(0, 1) if swapped else x, last)

    return problem(
        f"{type(module).__name__}, {form}", module, inputs, ours, theirs, (n + m) * (steps + 1) * layers,
        transforms=form in ("batched", "one"), whole=form == "batched",
        options={**how, "batch_first": batch_first, "every": every if form == "last state" else None},
    )  # fmt: skip


def step(source):
    """One step of a cell."""
    is_complex = source.one_in(3)
    dtype = dtype_of(source, is_complex)
    n, m, rows = sizes.application(source, dtype)
    d = source.among(1, 5)
    options = recurrent_options(source, is_complex, n)
    module = (ht.UnitaryRNNCell if is_complex else ht.OrthogonalRNNCell)(
        d, n, num_reflections=m, dtype=dtype, **options
    )
    fill(source, module)
    lead = () if source.one_in(4) else (rows,)
    of_x = dtype.to_real() if is_complex and source.flag() else dtype
    inputs = {"x": source.numbers((*lead, d), of_x)}
    if source.flag():
        inputs["hx"] = source.numbers((*lead, n), dtype)
    how = {"constraint": "hard", "smallest": smallest(dtype)} | options
    return problem(
        type(module).__name__, module, inputs,
        lambda call, t: call(t["x"], t["hx"]),
        lambda t: oracle.cell(t, how, t["x"].unsqueeze(0), t.get("hx"))[1],
        n + m, options=options,
    )  # fmt: skip


def frame(source):
    """``Orthogonal`` and ``Unitary``: forward, inverse, matrix and log-determinant."""
    is_complex = source.one_in(3)
    dtype = dtype_of(source, is_complex)
    n, m, rows = sizes.application(source, dtype)
    k = n if source.flag() else source.among(1, n)
    m = min(m, k)
    ins, outs = source.choose(((n, k), (k, n)))
    more = {} if is_complex else {"constraint": source.choose(("hard", "soft"))}
    options = {"bias": source.flag(), "method": source.choose(METHODS), **more}
    module = (ht.Unitary if is_complex else ht.Orthogonal)(ins, outs, num_reflections=m, dtype=dtype, **options)
    fill(source, module)
    constraint, what = (
        options.get("constraint", "hard"),
        source.choose(("forward", "forward", "inverse", "matrix", "logdet")),
    )
    if what == "logdet" and ins != outs:
        what = "forward"
    if what == "inverse" and constraint == "soft" and m == n:
        with torch.no_grad():
            module.reflections[-1, -1] = source.choose((0.5, -0.8, 1))
    lead = () if source.one_in(6) else (rows,)
    inputs = (
        {"x": source.numbers((*lead, outs if what == "inverse" else ins), dtype)}
        if what in ("forward", "inverse")
        else {}
    )

    def ours(call, t):
        if what == "forward":
            return call(t["x"])
        return module.inverse(t["x"]) if what == "inverse" else module.matrix() if what == "matrix" else module.logdet

    def theirs(t):
        u = oracle.constrained(t["reflections"], constraint)
        bias = t.get("bias")
        if what == "logdet":
            soft = constraint == "soft" and m == n and not is_complex
            return u[-1, -1].abs().log() if soft else torch.zeros((), dtype=torch.float64)
        w = oracle.frame(u, t.get("phases"), outs, ins, smallest(dtype))
        if what == "matrix":
            return w
        if what == "inverse":
            x = t["x"] if bias is None else t["x"] - bias
            soft = constraint == "soft" and ins == outs  # the inverse of an orthogonal matrix is its transpose
            back = torch.linalg.inv(w) if soft else w.mH
            return oracle.rounded((back @ x.unsqueeze(-1)).squeeze(-1))
        c = oracle.rounded((w @ t["x"].unsqueeze(-1)).squeeze(-1))
        return c if bias is None else c + bias

    return problem(
        f"{type(module).__name__}({ins}, {outs}, {m}).{what}", module, inputs, ours, theirs, n + m,
        transforms=what == "forward", whole=what == "forward", options=options,
    )  # fmt: skip


def svd(source):
    """``SVDLinear``: forward, inverse, matrix, log-determinant."""
    dtype = source.choose(REAL)
    n, m, rows = sizes.application(source, dtype)
    n = min(n, 64)
    k = n if source.flag() else source.among(1, n)
    ins, outs = source.choose(((n, k), (k, n)))
    if k < 2:
        ins = outs = k = max(n, 2)
    margin = source.choose((0.0, 0.1, 0.5, 0.9))
    module = ht.SVDLinear(
        ins,
        outs,
        num_reflections=min(m, k),
        margin=margin,
        bias=source.flag(),
        method=source.choose(METHODS),
        dtype=dtype,
    )
    fill(source, module)
    what = source.choose(("forward", "forward", "inverse", "matrix", "logdet" if ins == outs else "forward"))
    inputs = (
        {"x": source.numbers((rows, outs if what == "inverse" else ins), dtype)}
        if what in ("forward", "inverse")
        else {}
    )

    def ours(call, t):
        if what == "forward":
            return call(t["x"])
        return module.inverse(t["x"]) if what == "inverse" else module.matrix() if what == "matrix" else module.logdet

    def theirs(t):
        s = 1 + margin * (2 * oracle.sigmoid(t["spectrum"]) - 1)
        if what == "logdet":
            return oracle.rounded(s).log().sum()
        left, right = (oracle.constrained(t[f"{side}.reflections"], "hard") for side in ("left", "right"))
        p, q = oracle.frame(left, None, outs, k, smallest(dtype)), oracle.frame(right, None, k, ins, smallest(dtype))
        if what == "matrix":
            return oracle.rounded((p * s) @ q)
        if what == "inverse":
            x = t["x"] - t["bias"] if "bias" in t else t["x"]
            return oracle.rounded((x @ p / s) @ q)
        c = oracle.rounded((t["x"] @ q.mT * s) @ p.mT)
        return c + t["bias"] if "bias" in t else c

    return problem(
        f"SVDLinear({ins}, {outs}).{what}", module, inputs, ours, theirs, 2 * (n + m),
        transforms=what == "forward", whole=what == "forward", options={"margin": margin},
    )  # fmt: skip


def adapter(source):
    """``OrthogonalAdapter``: forward, its weight, merged and unmerged."""
    dtype = source.choose((*REAL, *REAL, source.choose(HALF)))
    n, m, rows = sizes.application(source, torch.float64)
    n = max(min(n, 130), 3)
    m = max(2, min(m - m % 2, (n - 1) // 2 * 2))
    outs = source.among(1, 9)
    linear = nn.Linear(n, outs, bias=source.flag(), dtype=dtype)
    module = ht.OrthogonalAdapter(linear, m, method=source.choose(METHODS))
    fill(source, module)
    if source.one_in(6):
        linear.register_forward_hook(lambda *_: None)  # takes the layer's own route
    what = source.choose(("forward", "forward", "weight", "merged"))
    lead = source.choose(((), (rows,), (2, 3)))
    inputs = {} if what == "weight" else {"x": source.numbers((*lead, n), dtype)}

    def ours(call, t):
        if what == "weight":
            return module.weight
        if what == "forward":
            return call(t["x"])
        before = linear.weight.detach().clone()
        module.merge()
        found = call(t["x"])
        merged = linear(t["x"])
        module.unmerge()
        with torch.no_grad():
            linear.weight.copy_(before)  # it is as before to rounding, and more is asked of it
        return found.detach(), merged.detach()

    def theirs(t):
        w = oracle.matrix(t["reflections"], None, smallest(torch.float32))
        weight = oracle.rounded(t["linear.weight"] @ w)
        if what == "weight":
            return weight
        c = oracle.rounded(oracle.rounded(t["x"] @ w.mT) @ t["linear.weight"].mT)
        c = c + t["linear.bias"] if "linear.bias" in t else c
        return (c.detach(),) * 2 if what == "merged" else c

    return problem(
        f"OrthogonalAdapter, {what}", module, inputs, ours, theirs, n + m,
        transforms=what == "forward", whole=what == "forward", options={"m": m},
    )  # fmt: skip


def activation(source):
    """``OPLU`` and ``ModReLU`` as modules."""
    dtype = source.choose((*REAL, *COMPLEX))
    k, rows = source.among(1, 9), source.among(0, 5)
    if dtype.is_complex or source.flag():
        module = ht.ModReLU(k, dtype=dtype.to_real() if dtype.is_complex else dtype)
        fill(source, module)
        inputs = {"x": source.numbers((rows, k if dtype.is_complex else 2 * k), dtype)}
        theirs = lambda t: oracle.phi(t["x"], "modrelu", bias=t["bias"])  # noqa: E731
    else:
        module, inputs = ht.OPLU(), {"x": source.numbers((rows, 2 * k), dtype)}
        theirs = lambda t: oracle.phi(t["x"], "oplu")  # noqa: E731
    return problem(type(module).__name__, module, inputs, lambda call, t: call(t["x"]), theirs, 4)
