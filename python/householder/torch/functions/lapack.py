"""torch's functions of LAPACK's reflectors, with fast gradients: ``H_1 .. H_k``, ``H_j = I - tau_j v_j v_j*``.

``v_j`` is stored below the diagonal of column j, as :func:`torch.geqrf` returns it. Its first entry, a one, is implied.
"""

from __future__ import annotations

from torch import Tensor

from householder._base import validate
from householder.torch import _ops
from householder.torch._base import checks
from householder.torch._base.dtypes import HALF_TYPES
from householder.torch._base.layout import contiguous
from householder.torch.functions.apply import product, unit_vectors


def householder_product(input: Tensor, tau: Tensor) -> Tensor:  # noqa: A002 - torch's name
    r"""Form the first n columns of :math:`H_1 \cdots H_k`, as :func:`torch.linalg.householder_product` does.

    Parameters
    ----------
    input : Tensor, shape (..., m, n), m >= n
        Vectors below the diagonal. Entries on and above it, geqrf's R, are ignored and have zero gradient.
    tau : Tensor, shape (..., k), k <= n
        Any numbers; 0 is the identity. Complex numbers follow :func:`torch.geqrf`.

    Returns
    -------
    Tensor, shape (..., m, n)
        Column-major, as torch's.

    Raises
    ------
    TypeError
        Not tensors, or their dtypes or devices differ.
    ValueError
        A shape is not as expected.

    Examples
    --------
    The orthogonal factor of a QR decomposition:

    >>> import torch
    >>> import householder.torch as ht
    >>> x = torch.randn(6, 4, dtype=torch.float64)
    >>> q = ht.householder_product(*torch.geqrf(x))
    >>> torch.allclose(q @ torch.geqrf(x).a[:4].triu(), x)
    True
    """
    if _are_ordinary(input, tau):
        inputs = _ops.apply.ApplyInputs(contiguous(input), unit_vectors(input, input.shape[1], input.dtype), tau)
        result: Tensor | None = _ops.apply.operator.attempt(
            inputs, _ops.apply.ApplyOptions(False, "auto", "trapezoidal")
        )
        if result is not None:
            return result.mT
    k = _reflectors(input, tau)
    m, n = input.shape[-2:]
    if n > m:
        raise ValueError(f"input has shape {tuple(input.shape)}, expected (..., m, n) with m >= n")
    rows = unit_vectors(input, n, input.dtype)
    return (product(_columns(input, k), rows, tau, "trapezoidal") if k else rows + _zero(input, tau)).mT


def ormqr(
    input: Tensor,  # noqa: A002 - torch's name
    tau: Tensor,
    other: Tensor,
    left: bool = True,
    transpose: bool = False,
) -> Tensor:
    r"""Multiply by :math:`Q = H_1 \cdots H_k`, as :func:`torch.ormqr` does, without forming it.

    Parameters
    ----------
    input : Tensor, shape (..., mn, k)
        Vectors below the diagonal, as in :func:`householder.torch.householder_product`; ``mn`` is m if ``left``, else
        n.
    tau : Tensor, shape (..., min(mn, k))
    other : Tensor, shape (..., m, n)
        With the leading axes of ``input``.
    left : bool
        ``Q other``, or else ``other Q``.
    transpose : bool
        Use ``Q*`` in place of ``Q``.

    Returns
    -------
    Tensor, shape (..., m, n)

    Raises
    ------
    TypeError, ValueError
        As in :func:`householder.torch.householder_product`.

    Examples
    --------
    Least squares, with one triangular solution:

    >>> import torch
    >>> import householder.torch as ht
    >>> x, y = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 1, dtype=torch.float64)
    >>> a, tau = torch.geqrf(x)
    >>> rotated = ht.ormqr(a, tau, y, transpose=True)
    >>> solution = torch.linalg.solve_triangular(a[:4].triu(), rotated[:4], upper=True)
    >>> torch.allclose(solution, torch.linalg.lstsq(x, y).solution)
    True
    """
    k = _reflectors(input, tau)
    checks.tensor("other", other)
    checks.operands(input, "input", other=other)
    left, transpose = validate.flag("left", left), validate.flag("transpose", transpose)
    size = input.shape[-2]
    if other.dim() != input.dim() or other.shape[:-2] != input.shape[:-2] or other.shape[-2 if left else -1] != size:
        lead = "".join(f"{size}, " for size in input.shape[:-2])
        expected = f"({lead}{size}, n)" if left else f"({lead}m, {size})"
        raise ValueError(f"other has shape {tuple(other.shape)}, expected {expected} to match input")
    if not k:
        return other + _zero(input, tau)
    u = _columns(input, k)
    if left:
        return product(u, contiguous(other.mT), tau, "trapezoidal", transpose).mT
    # The rows of ``other Q`` are those of ``other`` times the transpose of Q, the adjoint of its conjugate.
    return product(u.conj_physical(), other, tau.conj_physical(), "trapezoidal", not transpose)


def _are_ordinary(input: Tensor, tau: Tensor) -> bool:  # noqa: A002
    """Return whether this is one matrix of LAPACK's types, all of whose columns are reflectors."""
    if not type(input) is type(tau) is Tensor or input.dim() != 2 or input.dtype in HALF_TYPES:
        return False
    rows, columns = input.shape
    return rows >= columns == tau.numel() > 0


def _columns(input: Tensor, k: int) -> Tensor:  # noqa: A002
    """Return the first k columns, row by row: geqrf's are column-major, and both passes would lay them out."""
    return contiguous(input if k == input.shape[-1] else input[..., :k])


def _zero(input: Tensor, tau: Tensor) -> Tensor:  # noqa: A002
    """Return zeros ``(..., 1, 1)`` that depend on the arguments, so that these have zero gradients, as in torch."""
    return input[..., :0].sum((-2, -1), keepdim=True) + tau.unsqueeze(-1).sum((-2, -1), keepdim=True)


def _reflectors(input: Tensor, tau: Tensor) -> int:  # noqa: A002
    """Check the vectors and their ``tau``; return how many there are."""
    compute = checks.operands(input, "input", tau=tau)
    checks.tensor("tau", tau)
    if compute is not input.dtype:
        raise TypeError(f"input has dtype {input.dtype}, expected one that LAPACK has: convert it to {compute}")
    if input.dim() < 2:
        raise ValueError(f"input has shape {tuple(input.shape)}, expected (..., m, n)")
    most = min(input.shape[-2:])
    if tau.dim() != input.dim() - 1 or tau.shape[:-1] != input.shape[:-2] or tau.shape[-1] > most:
        lead = "".join(f"{size}, " for size in input.shape[:-2])
        raise ValueError(f"tau has shape {tuple(tau.shape)}, expected ({lead}k) with k <= {most} to match input")
    return tau.shape[-1]
