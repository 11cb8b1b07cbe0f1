"""What replaces others' functions: LAPACK's reflectors as torch has them, the first columns of W, HRA adapters."""

import oracle
import sizes
import torch
from problem import Problem
from source import COMPLEX, HALF, REAL
from torch import nn

import householder.torch as ht
from kinds import columns, layers
from kinds.functions import axes, phases, smallest


def lapack(source):
    """``ht.householder_product`` and ``ht.ormqr``, of vectors whose upper entries nobody reads."""
    dtype = source.choose((*REAL, *COMPLEX))
    n, m, rows = sizes.application(source, dtype)
    batch = () if n > 24 or source.flag() else axes(source)[0]
    stored = min(n, m + source.among(0, 2))
    a = columns.normal(source, (*batch, n, stored), dtype)
    if source.flag():
        a[..., torch.ones(n, stored).triu().bool()] = torch.nan
    given = {"a": a, "tau": columns.tau(source, oracle.wide(a[..., :m]).tril(-1), "trapezoidal", dtype)}

    def q(t):
        return oracle.of_columns(t["a"][..., :m].tril(-1), t["tau"], "trapezoidal")

    if source.flag():
        return Problem(
            "ht.householder_product",
            given,
            lambda t: ht.householder_product(t["a"], t["tau"]),
            lambda t: q(t)[..., :stored],
            n + m,
            reflections=(),
        )
    left, transpose = source.flag(), source.flag()
    given["other"] = source.numbers((*batch, *((n, rows) if left else (rows, n))), dtype)

    def multiplied(t):
        w, other = q(t).mH if transpose else q(t), oracle.rounded(t["other"])
        return oracle.rounded(w @ other if left else other @ w)

    return Problem(
        "ht.ormqr",
        given,
        lambda t: ht.ormqr(t["a"], t["tau"], t["other"], left, transpose),
        multiplied,
        n + m,
        reflections=(),
        options={"left": left, "transpose": transpose},
    )


def frame(source):
    """``ht.frame``: the first columns of W, of one matrix or many."""
    dtype = source.choose((*REAL, *COMPLEX, source.choose(HALF)))
    n, m, _ = sizes.application(source, dtype)
    many = () if n > 24 or source.flag() else axes(source)[0]
    tensors = {"u": source.reflections((*many, n, m), dtype), **phases(source, n, dtype)}
    return Problem(
        "ht.frame",
        tensors,
        lambda t: ht.frame(ht.Reflections(t["u"], phases=t.get("phases"))),
        lambda t: oracle.frame(t["u"], t.get("phases"), n, m, smallest(dtype)),
        n + m,
    )


def hra(source):
    """HRA layers of ``peft`` after ``ht.accelerate``: one adapter or two in a row, whose base weight is frozen."""
    from peft import HRAConfig, get_peft_model

    n, m, rows = sizes.application(source, torch.float64)
    n, outs, dtype = min(n, columns.MORE_COLUMNS), source.among(1, 9), source.choose(REAL)
    ranks = [source.among(1, 2 * n) if source.one_in(3) else min(m, n) for _ in range(source.choose((1, 1, 2)))]
    gram_schmidt = source.flag() and max(ranks) <= n / 2
    model = get_peft_model(
        nn.Sequential(nn.Linear(n, outs, bias=source.flag())), _config(HRAConfig, ranks[0], gram_schmidt)
    )
    names = ["default", "second"][: len(ranks)]
    if len(ranks) > 1:
        model.add_adapter("second", _config(HRAConfig, ranks[1], gram_schmidt))
    module = model.base_model.model[0].to(dtype)
    module.set_adapter(names)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(columns.normal(source, tuple(p.shape), dtype))
    ht.accelerate(module)
    lead = source.choose(((), (rows,), (2, 3)))

    def theirs(t):
        weight = t["base_layer.weight"].detach()
        for name in names:
            u = t[f"hra_u.{name}"]
            weight = oracle.rounded(weight @ oracle.of_columns(_orthogonal(u) if gram_schmidt else u, None, "full"))
        y = oracle.rounded(t["x"] @ weight.mT)
        return y + t["base_layer.bias"] if "base_layer.bias" in t else y

    return layers.problem(
        "HRA", module, {"x": source.numbers((*lead, n), dtype)}, lambda call, t: call(t["x"]), theirs,
        n + sum(ranks), transforms=False, options={"ranks": ranks, "gram_schmidt": gram_schmidt},
    )  # fmt: skip


def _config(kind, rank, gram_schmidt):
    return kind(r=rank, apply_GS=gram_schmidt, target_modules=["0"], init_weights=False)


def _orthogonal(u):
    """The columns, each less its parts along those before."""
    found = []
    for column in u.unbind(1):
        for other in found:
            column = oracle.rounded(column - (other @ column) / (other @ other) * other)
        found.append(column)
    return torch.stack(found, 1)
