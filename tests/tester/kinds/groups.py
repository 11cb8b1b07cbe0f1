"""Matrices from reflections and back: ``factor``, weights under ``ht.orthogonal``, and the statistics of ``haar``."""

import compare
import numpy as np
import oracle
import torch
from compare import DefectError, Result
from source import COMPLEX, REAL
from torch import nn
from torch.nn.utils import parametrize

import householder as hh
import householder.torch as ht
from kinds.functions import smallest


def dense_product(source, n, m, dtype):
    """A product of m reflections along vectors without zeros, in double precision."""
    re, im = torch.from_numpy(source.rng.standard_normal((2, n, m)))
    return oracle.of_columns(torch.complex(re, im) if dtype.is_complex else re, None, "full")


def same(record, name, found, expected, eps, operations):
    compare.check(
        record, [Result(name, found)], [Result(name, expected)], lambda: [Result(name, expected)], eps, operations
    )


def factor(source):
    """The reflections of a product are found again; all unitary matrices have theirs."""

    def check(record, told):
        dtype = source.choose((*REAL, *COMPLEX))
        n = source.among(1 + dtype.is_complex, 40) if source.one_in(4) else source.among(1 + dtype.is_complex, 12)
        m = source.among(1, n - 1) if n > 1 else 1
        few = not dtype.is_complex and n > 1
        told.append(f"factor of {m} reflections, n = {n}, {dtype}")
        q = dense_product(source, n, m, dtype)
        found = hh.factor(q.to(dtype).numpy(), *((m,) if few else ()))
        u, phases = found if dtype.is_complex else (found, None)
        w = oracle.matrix(
            oracle.wide(torch.from_numpy(u)), None if phases is None else oracle.wide(torch.from_numpy(phases))
        )
        same(record, "the product", w.to(dtype), q, torch.finfo(dtype).eps, 20 * n)

    return check


def parametrized(source):
    """A weight that its reflections reach stays: at registration, assigned back, and once more."""

    def check(record, told):
        dtype = source.choose(REAL)
        rows, columns = (source.among(1, 40) for _ in range(2))
        k = min(rows, columns)
        m = source.among(1, k)
        told.append(f"orthogonal of ({rows}, {columns}), {m} reflections, {dtype}")
        layer = nn.Linear(columns, rows, bias=False, dtype=dtype)
        ht.orthogonal(layer, num_reflections=m)
        reflections = layer.parametrizations.weight.original
        with torch.no_grad():
            reflections.copy_(source.reflections(tuple(reflections.shape), torch.float64).nan_to_num(0, 0, 0))
        first = layer.weight.detach().clone()
        layer.weight = first
        assigned = layer.weight.detach().clone()
        parametrize.remove_parametrizations(layer, "weight")
        ht.orthogonal(layer, num_reflections=m)
        frame = first if rows >= columns else first.mT
        # Reflections that move the frame by as little as s are known to eps / s, and at worst to the root of eps.
        least = torch.linalg.svdvals(frame - torch.eye(*frame.shape, dtype=dtype))[m - 1]
        error = 1e-5 if dtype is torch.float32 else max(1e-12, 2.2e-16 / max(float(least), 1.5e-8))
        for name, weight in (("assigned", assigned), ("parametrized again", layer.weight.detach())):
            record.results += 1
            if not (weight - first).abs().max() <= error:
                raise DefectError(f"the weight {name} is off by {(weight - first).abs().max():.3g}")

    return check


def haar(source):
    """Unit columns, an orthogonal matrix, and moments of the uniform distribution, judged over the whole run."""

    def check(record, told):
        dtype = source.choose((torch.float64, torch.complex128, torch.float32))
        n = source.among(2, 8)
        told.append(f"haar({n}), {dtype}")
        numpy_dtype = str(dtype).removeprefix("torch.")
        drawn = hh.haar(n, rng=source.among(0, 2**60), dtype=numpy_dtype)
        u, phases = drawn if dtype.is_complex else (drawn, None)
        if u.shape[1] > 1:
            same(
                record, "lengths", torch.from_numpy(np.linalg.norm(u, axis=0)),
                torch.ones(u.shape[1], dtype=torch.float64), torch.finfo(dtype).eps, n,
            )  # fmt: skip
        w = oracle.matrix(
            oracle.wide(torch.from_numpy(u)),
            None if phases is None else oracle.wide(torch.from_numpy(phases)),
            smallest(dtype),
        )
        same(record, "W* W", (w.mH @ w).to(dtype), torch.eye(n, dtype=w.dtype), torch.finfo(dtype).eps, n)
        i, j = source.among(0, n - 1), source.among(0, n - 1)
        fourth = 2 / (n * (n + 1)) if dtype.is_complex else 3 / (n * (n + 2))
        group = "U" if dtype.is_complex else "O"
        for name, expected, value in (
            (f"{group}({n}), tr W", 0.0, w.trace().real),
            (f"{group}({n}), |tr W|^2", 1.0, w.trace().abs() ** 2),
            (f"{group}({n}), |w_ij|^4", fourth, w[i, j].abs() ** 4),
        ):
            count, total, squares = record.moments.get((name, expected), (0, 0.0, 0.0))
            x = float(value)
            record.moments[name, expected] = (count + 1, total + x, squares + x * x)

    return check
