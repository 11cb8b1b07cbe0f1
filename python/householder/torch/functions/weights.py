"""Multiplication by a square product of reflections, or by the frame of its first columns.

With n the greater and k the smaller of two sizes, the frame F is ``(n, k)``, the first k columns of ``W (n, n)``. A
weight ``(n, k)`` is F itself and a weight ``(k, n)`` is ``F*``, so that m <= k reflections reach every frame.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from householder._base.linear_map import Columns
from householder._matrices.frame import first_columns
from householder.torch._base import checks
from householder.torch.functions.apply import apply, matrix


def multiply(
    u: Tensor,
    phases: Tensor | None,
    vectors: Tensor,
    sizes: tuple[int, int],
    *,
    adjoint: bool = False,
    method: str = "auto",
) -> Tensor:
    """Multiply by the weight of shape ``sizes``, or by its adjoint, in O(n m) for each vector."""
    out_size, in_size = reversed(sizes) if adjoint else sizes
    name = "output" if adjoint else "input"
    checks.vectors(name, vectors, u, in_size)
    if out_size > in_size:
        vectors = nn.functional.pad(vectors, (0, out_size - in_size))
    is_adjoint = in_size > out_size or (in_size == out_size and adjoint)
    product = apply(Columns(u, phases=phases, is_adjoint=is_adjoint), vectors, method=method)
    return product[..., :out_size] if out_size < in_size else product


def weight(u: Tensor, phases: Tensor | None, sizes: tuple[int, int]) -> Tensor:
    """Form the weight of shape ``sizes``: a narrow frame from its columns alone, in O(n k) memory."""
    rows, columns = sizes
    f: Tensor = first_columns(Columns(u, phases=phases), min(sizes), torch, apply, matrix, device=u.device)
    return f.mT.conj_physical() if columns > rows else f
