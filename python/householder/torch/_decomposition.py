"""The operators in ATen's terms, for exported programs that run where this package is not installed.

``ExportedProgram.run_decompositions`` uses them; compilation does not. Every operation here has a counterpart in ONNX.
The triangular solves of ``expressions`` have none. Sequences are unrolled, those of the delta rule by chunks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from householder import _validate
from householder.torch import expressions


def apply(u: Tensor, h: Tensor, tau: Tensor | None, transpose: bool, method: str, shape: str) -> Tensor:  # noqa: ARG001
    """Compute ``W h`` by the compact WY form, as ``expressions.apply`` does."""
    if _validate.is_default(tau, shape):
        return _product(u.dim() - 2, h, *_factors(u), transpose)
    v = u
    if shape == "trapezoidal":
        v = u * torch.ones(u.shape[-2:], device=u.device).tril(-1) + torch.eye(*u.shape[-2:], device=u.device)
    v = expressions.unit_columns(v) if tau is None else v
    return _product(u.dim() - 2, h, v, _inverse(v.mH @ v, tau), None, transpose)


def _product(lead: int, h: Tensor, v: Tensor, s: Tensor, last: Tensor | None, transpose: bool) -> Tensor:
    """Compute ``(I - V S V*) D h``, or by the adjoint."""
    rows = h.unsqueeze(-2) if h.dim() == lead + 1 else h.flatten(lead, -2)
    if last is not None and not transpose:
        rows = rows * last
    s = s.conj() if transpose else s.mT
    rows = rows - (rows @ v.conj()) @ s @ v.mT
    if last is not None and transpose:
        rows = rows * last
    return rows.reshape(h.shape)


def matrix(u: Tensor) -> Tensor:
    """Form W."""
    v, s, last = _factors(u)
    w = torch.eye(u.shape[-2], dtype=u.dtype, device=u.device) - v @ s @ v.mH
    return w if last is None else w * last


def rnn(
    u: Tensor,
    x: Tensor,
    h0: Tensor | None,
    input_weight: Tensor | None,
    bias: Tensor | None,
    phases: Tensor | None,
    nonlinearity_bias: Tensor | None,
    tau: Tensor | None,
    nonlinearity: str,
    negative_slope: float,
    transpose: bool,
    reverse: bool,
    shape: str,
    method: str,
) -> tuple[Tensor, Tensor]:
    """Run the steps one after the other."""
    kind, x = x.dtype, x.to(u.dtype)
    if _validate.is_default(tau, shape):
        w = matrix(u)
    else:
        eye = torch.eye(u.shape[-2], dtype=u.dtype, device=u.device)
        w = apply(u, eye, tau, False, method, shape).mT
    w = w if phases is None else expressions.turn(w, phases)
    w = w.mH if transpose else w
    how = nonlinearity, negative_slope, reverse
    h, last = expressions.recurrence(w, x, h0, input_weight, bias, nonlinearity_bias, None, *how)
    return h.to(kind), last.to(kind)


def solve(system: Tensor, right: Tensor) -> Tensor:
    """Solve as ``delta_expression.substitute`` does."""
    return _inverse(system.mT, system.new_ones(system.shape[-1])).mT @ right


def _factors(u: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Give ``V``, ``S`` and the diagonal of ``D`` of ``W = (I - V S V*) D``."""
    n, m = u.shape[-2:]
    last = None
    if m == n and not u.is_complex():
        last = torch.cat([torch.ones_like(u[..., 1:, -1]), u[..., -1:, -1]], -1).unsqueeze(-2)
        u = u[..., :-1]
    u = u * torch.ones(u.shape[-2:], device=u.device).tril()
    v = expressions.unit_columns(u)
    return v, _inverse(v.mH @ v), last


def _inverse(gram: Tensor, tau: Tensor | None = None) -> Tensor:
    """Invert ``striu(gram) + diag(1 / tau)``, blocks along its diagonal first, then blocks of twice their size.

    ``tau`` is 2 by default.
    """
    k = gram.shape[-1]
    place = torch.arange(k, device=gram.device)
    eye = torch.eye(k, dtype=gram.dtype, device=gram.device)
    inverse = 2 * eye if tau is None else tau.unsqueeze(-1) * eye
    size = 1
    while size < k:
        block = place // size
        pair = (block[:, None] < block) & (block[:, None] // 2 == block // 2)
        inverse = inverse - inverse @ torch.where(pair, gram, 0) @ inverse
        size *= 2
    return inverse
