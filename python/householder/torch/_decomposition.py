"""The operators in ATen's terms, for exported programs that run where this package is not installed.

``ExportedProgram.run_decompositions`` uses them; compilation does not. Every operation here has a counterpart in ONNX.
The triangular solves of ``expressions`` have none. Sequences are unrolled, those of the delta rule by chunks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from householder import _validate
from householder.torch import delta_expression, expressions
from householder.torch.ops._sequence import split


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


def rnn(*arguments: Any) -> Any:
    """Run the steps one after the other. Packed sequences are left alone, because no compiler knows their steps."""
    inputs, _, options = split(arguments)
    if inputs.batch_sizes is not None:
        return NotImplemented
    u, x, kind = inputs.u, inputs.x.to(inputs.u.dtype), inputs.x.dtype
    if inputs.is_default(options.shape):
        w = matrix(u)
    else:
        eye = torch.eye(u.shape[-2], dtype=u.dtype, device=u.device)
        w = apply(u, eye, inputs.tau, False, options.method, options.shape).mT
    w = w if inputs.phases is None else expressions.turn(w, inputs.phases)
    w = w.mH if options.transpose else w
    h, last = expressions.recurrence(
        w,
        x,
        *(inputs.h0, inputs.input_weight, inputs.bias, inputs.nonlinearity_bias, None),
        *(options.nonlinearity, options.negative_slope, options.reverse),
    )
    return h.to(kind), last.to(kind), u.new_empty(0)


def delta_rule(*arguments: Any) -> Any:
    """Run the chunks one after the other. Packed sequences are left alone, as in ``rnn``, and so are training steps."""
    tensors, (keep, *options) = arguments[:7], arguments[7:]
    if tensors[-1] is not None or keep:
        return NotImplemented
    given: Any = *tensors, *options
    o, last = delta_expression.delta_rule(*given, solve=_solve)
    return o.contiguous(), last.contiguous(), o.new_empty(0)


def _solve(system: Tensor, right: Tensor) -> Tensor:
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


def decompositions() -> dict[Any, Any]:
    """Give torch's default table of decompositions with the operators of this package in it.

    ``exported.run_decompositions(decompositions())`` leaves only ATen operators. They run where this package is not
    installed, and ``torch.onnx.export`` can write them. A sequence of shape ``(T, B, d)`` becomes T steps, and that of
    a delta rule its chunks. Lengths are therefore fixed at the export. Packed sequences and gradients keep their
    operators.

    Returns
    -------
    dict
        From operators to functions, for ``torch.export.ExportedProgram.run_decompositions``.

    Raises
    ------
    RuntimeError
        Later, where ``torch.export`` left the length of a sequence open.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> exported = torch.export.export(ht.Orthogonal(6), (torch.randn(2, 6),))
    >>> plain = exported.run_decompositions(ht.decompositions())
    >>> any("householder" in str(node.target) for node in plain.graph.nodes)
    False
    """
    table: dict[Any, Any] = torch.export.default_decompositions()
    table.update(_TABLE)
    return table


_TABLE: dict[Any, Any] = {
    torch.ops.householder.apply.default: apply,
    torch.ops.householder.matrix.default: matrix,
    torch.ops.householder.rnn.default: rnn,
    torch.ops.householder.delta_rule.default: delta_rule,
}
