"""Applications and matrices of reflections: checks, types and layouts; ``_ops`` computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

import householder
from householder._base import spec, validate
from householder._base.batch import arrange
from householder._base.docstrings import completed_by
from householder._base.linear_map import DEFAULT, Columns, LinearMap, columns_of
from householder.torch import _ops
from householder.torch._base import checks
from householder.torch._base.expressions import turn

if TYPE_CHECKING:
    from householder._base.types import ArrayLike


@completed_by(householder.apply, "Tensor")
def apply(u: ArrayLike, h: Tensor, *, method: str = "auto") -> Tensor:
    r"""Compute ``c = W h`` for vectors in the last axis of ``h``, without forming ``W``.

    :math:`W = H_n(u_n) \cdots H_{n-m+1}(u_{n-m+1})`, :math:`H(v) = I - 2 v v^* / |v|^2`. Column ``j`` of ``u``
    reflects the entries from ``j`` on. Entries of ``u`` above the diagonal are ignored and have zero gradient. The
    scale of a column has no effect, and a zero column is the identity. For real ``m == n``, the last column is the
    number ``u_1``, which multiplies the last entry of ``h``. :class:`Reflections` describe other columns, phases and
    the adjoint.

    Parameters
    ----------
    u : Tensor, shape (..., n, m), 1 <= m <= n (m < n if complex), or Reflections
        Reflections; float32, float64, complex64, complex128, or a half type (computed in float32).
    h : Tensor, shape (..., n)
        Vectors, of the dtype of ``u`` or, with a float32 ``u``, of a half type. Leading axes broadcast:
        ``(..., n, m), (..., n) -> (..., n)``.

    Returns
    -------
    Tensor, shape (..., n)
        In the dtype of ``h``.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> u = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    >>> h = torch.tensor([3.0, 4.0, 12.0], dtype=torch.float64)
    >>> c = ht.apply(u, h)
    >>> c.round()
    tensor([12., -3., -4.], dtype=torch.float64)
    >>> ht.apply(ht.Reflections(u).H, c).round()
    tensor([ 3.,  4., 12.], dtype=torch.float64)
    """
    is_object = isinstance(u, (LinearMap, Columns))
    u, tau, phases, form, is_adjoint = columns_of(u) if is_object else (u, *DEFAULT)
    if phases is None and getattr(u, "ndim", 0) == 2:
        result: Tensor | None = _ops.apply.operator.attempt(
            _ops.apply.ApplyInputs(u, h, tau), _ops.apply.ApplyOptions(is_adjoint, method, form)
        )
        if result is not None:
            return result
    validate.one_of("method", method, spec.METHODS)
    compute = checks.operands(u, h=h, tau=tau)
    if h is None:
        checks.tensor("h", h)
    n, _ = checks.columns(u, form, tau, phases, h)
    validate.vectors("h", h, n, u)
    kind = h.dtype
    if u.dtype is not compute or kind is not compute:
        u, h = checks.cast(u, compute), checks.cast(h, compute)
        tau = None if tau is None else checks.cast(tau, compute)
    if phases is not None and not is_adjoint:
        h = turn(h, phases)
    c: Tensor
    if u.dim() != 2 and u.shape[:-2] != h.shape[:-1]:
        c = _apply_broadcast(u, h, tau, form, is_adjoint, method)
    else:
        c = product(u, h, tau, form, is_adjoint, method)
    if phases is not None and is_adjoint:
        c = turn(c, -phases)
    return c if kind is compute else c.to(kind)


def product(
    u: Tensor, h: Tensor, tau: Tensor | None, form: str, transpose: bool = False, method: str = "auto"
) -> Tensor:
    """Compute ``W h`` for ``u (*c, n, m)``, ``h (*c, *r, n)`` and ``tau (*c, m)``, which were checked."""
    options = _ops.apply.ApplyOptions(transpose, method, form)
    c: Tensor = _ops.apply.operator(_ops.apply.ApplyInputs(u, h, tau), options)
    return c


def _apply_broadcast(u: Tensor, h: Tensor, tau: Tensor | None, form: str, transpose: bool, method: str) -> Tensor:
    """Bring the axes along which ``u`` varies to the front; along the others, vectors share a matrix."""
    batch = arrange(tuple(u.shape), tuple(h.shape))
    u = u.reshape(*(batch.shape[axis] for axis in batch.order[: batch.separate]), *u.shape[-2:])
    tau = None if tau is None else tau.reshape(u.shape[:-2] + u.shape[-1:])
    h = h.expand(*batch.shape, h.shape[-1]).permute(*batch.order, -1)
    return product(u, h, tau, form, transpose, method).permute(*batch.back, -1)


@completed_by(householder.matrix, "Tensor")
def matrix(u: ArrayLike) -> Tensor:
    r"""Form :math:`W = H_n(u_n) \cdots H_{n-m+1}(u_{n-m+1})`.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> ht.matrix(torch.tensor([[1.0], [1.0]], dtype=torch.float64)).round(decimals=9)
    tensor([[ 0., -1.],
            [-1.,  0.]], dtype=torch.float64)
    """
    is_object = isinstance(u, (LinearMap, Columns))
    u, tau, phases, form, is_adjoint = columns_of(u) if is_object else (u, *DEFAULT)
    is_default = validate.is_default(tau, form)
    if is_default and phases is None and not is_adjoint:
        result: Tensor | None = _ops.matrix.operator.attempt(_ops.matrix.MatrixInputs(u), _ops.matrix.MatrixOptions())
        if result is not None:
            return result
    compute = checks.operands(u, tau=tau)
    n, _ = checks.columns(u, form, tau, phases)
    if is_default:
        w = _ops.matrix.operator(_ops.matrix.MatrixInputs(checks.cast(u, compute)), _ops.matrix.MatrixOptions())
    else:
        tau = None if tau is None else checks.cast(tau, compute)
        w = product(checks.cast(u, compute), unit_vectors(u, n, compute), tau, form).mT
    if phases is not None:
        w = turn(w, phases.unsqueeze(-2))
    w = checks.cast(w, u.dtype)
    return w.mT.conj().resolve_conj() if is_adjoint else w  # a plain tensor, and torch maps these two


def unit_vectors(u: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return the first ``count`` unit vectors for each matrix of ``u (..., n, m)``, one a row."""
    n = u.shape[-2]
    rows = torch.eye(count, n, dtype=dtype, device=u.device)
    return rows if u.dim() == 2 else rows.expand(*u.shape[:-2], count, n)
