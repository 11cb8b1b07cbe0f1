"""``ht.apply``, ``ht.matrix`` and ``ht.rnn`` of full columns, and of columns whose ``tau`` is given."""

import numpy as np
import oracle
import sizes
import torch
from objects import of_arrays
from problem import Problem
from source import COMPLEX, REAL

import householder.torch as ht
from kinds import functions
from kinds.functions import METHODS, axes, smallest

MORE_COLUMNS = 70
"""The n up to which there are more columns than rows: the oracle's graph has several n x n matrices a column."""

FEW = 2
"""Columns whose products stay of ordinary size even where ``tau`` is far from a reflection's."""


def apply(source):
    """One application, or W itself."""
    dtype = source.choose((*REAL, *COMPLEX))
    n, m, rows = sizes.application(source, dtype)
    form = source.choose(("full", "full", "trapezoidal"))
    if form == "full" and n <= MORE_COLUMNS and source.flag():
        m = source.among(1, 2 * n)
    batch, matrices = (() if source.one_in(8) else (rows,), ()) if rows > 6 or source.flag() else axes(source)
    u = normal(source, (*matrices, n, m), dtype)
    if source.one_in(8):
        u[..., source.among(0, m - 1)] = 0
    tensors = {"u": u}
    if form == "trapezoidal" or source.flag():
        tensors["tau"] = tau(source, oracle.wide(u), form, dtype)
    tiny = smallest(dtype)
    if source.one_in(4):
        return Problem(
            "ht.matrix of columns",
            tensors,
            lambda t: ht.matrix(ht.Reflections(t["u"], t.get("tau"), columns=form)),
            lambda t: oracle.of_columns(t["u"], t.get("tau"), form, tiny),
            n + m,
            reflections=(),
            options={"columns": form},
        )
    tensors["h"] = source.numbers((*batch, n), dtype)
    options = {"transpose": source.flag(), "method": source.choose(METHODS), "columns": form}

    def theirs(t):
        w = oracle.of_columns(t["u"], t.get("tau"), form, tiny)
        w = w.mH if options["transpose"] else w
        return oracle.rounded((w @ oracle.rounded(t["h"]).unsqueeze(-1)).squeeze(-1))

    is_object = source.flag()

    def ours(t):
        if is_object:
            w = ht.Reflections(t["u"], t.get("tau"), columns=form)
            return ht.apply(w.H if options["transpose"] else w.T.T, t["h"], method=options["method"])
        return of_arrays(ht.apply)(t["u"], t["h"], tau=t.get("tau"), **options)

    return Problem("ht.apply of columns", tensors, ours, theirs, n + m, reflections=(), options=options)


def sequence(source):
    """Sequences of such reflections, whose ``tau`` keeps states of ordinary size."""
    return functions.rnn(source, _of_sequence)


def _of_sequence(source, n, m, dtype):
    form = source.choose(("full", "trapezoidal"))
    if form == "full" and n <= MORE_COLUMNS and source.flag():
        m = source.among(1, 2 * n)
    tensors = {"u": normal(source, (n, m), dtype)}
    if form == "trapezoidal" or source.flag():
        square = oracle.vectors(oracle.wide(tensors["u"]), True, form).abs().square().sum(-2)
        tensors["tau"] = torch.where(torch.from_numpy(source.rng.random(m) < 0.1), 0, 2 / square).to(dtype)
    return tensors, {"columns": form}


def normal(source, shape, dtype):
    a = source.rng.standard_normal(shape)
    if dtype.is_complex:
        a = a + 1j * source.rng.standard_normal(shape)
    return torch.from_numpy(np.array(a)).to(dtype)


def tau(source, u, form, dtype):
    """That of reflections, some of it zero, or any numbers of which products stay of ordinary size."""
    square = oracle.vectors(u, True, form).abs().square().sum(-2)
    own = 2 / torch.where(square == 0, 1.0, square)
    if own.shape[-1] <= FEW and source.one_in(4):
        return (source.among(3, 15) * own).to(dtype)
    found = own.to(dtype) if source.flag() else (own * normal(source, own.shape, u.dtype) / u.shape[-1]).to(dtype)
    return torch.where(torch.from_numpy(source.rng.random(own.shape) < 0.1), 0, found)
