"""Reflections of given and of random matrices, by the NumPy functions of ``householder``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

import householder
from householder._base import validate
from householder._base.docstrings import completed_by
from householder._base.linear_map import frame_columns
from householder._matrices.nearest import polar_factor
from householder.torch._base import autocast, checks
from householder.torch._base.dtypes import CORE_NAME
from householder.torch._base.expressions import turn
from householder.torch.functions import weights

if TYPE_CHECKING:
    from torch.types import Device

    from householder._base.types import ArrayLike


@completed_by(householder.factor, "Tensor")
def factor(q: Tensor, m: int | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """Find reflections whose product is a given orthogonal or unitary matrix: ``matrix(factor(q)) == q``.

    Parameters
    ----------
    q : Tensor, shape (..., n, n)
        Orthogonal, or unitary with ``n >= 2``; float32, float64, complex64 or complex128. :func:`nearest` finds the
        nearest such matrix. The CPU computes the result, and no gradient flows through it.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> q = torch.linalg.qr(torch.randn(3, 5, 5, dtype=torch.float64)).Q
    >>> torch.allclose(ht.matrix(ht.factor(q)), q)
    True
    """
    checks.computable("q", q)
    return _tensors(householder.factor(q.detach().cpu().resolve_conj().resolve_neg().numpy(), m), q.device)


@overload
def haar(
    n: int,
    m: int,
    rng: int | torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: Device = None,
    *,
    size: int | tuple[int, ...] = (),
) -> Tensor: ...
@overload
def haar(
    n: int,
    m: int | None = None,
    rng: int | torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: Device = None,
    *,
    size: int | tuple[int, ...] = (),
) -> Any: ...
@completed_by(householder.haar, "Tensor")
def haar(
    n: int,
    m: int | None = None,
    rng: int | torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: Device = None,
    *,
    size: int | tuple[int, ...] = (),
) -> Tensor | tuple[Tensor, Tensor]:
    """Draw the reflections of random matrices, uniform (Haar measure) on O(n) or U(n).

    Parameters
    ----------
    rng : None, int or torch.Generator
        Source or seed, by default torch's own generator. An integer gives the same matrices as in NumPy.
    dtype : torch.dtype, optional
        float32, float64, complex64 or complex128; torch's default dtype if not given.
    device
        Of the result: the CPU by default, whatever torch's default device is.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> w = ht.matrix(ht.haar(5, dtype=torch.float64, size=3))
    >>> torch.allclose(w.mT @ w, torch.eye(5, dtype=torch.float64))
    True
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(dtype, torch.dtype) or dtype not in CORE_NAME:
        raise TypeError(f"dtype is {dtype!r}, expected one of {', '.join(map(str, CORE_NAME))}")
    if rng is None or isinstance(rng, torch.Generator):
        where = "cpu" if rng is None else rng.device
        rng = int(torch.randint(2**63 - 1, (), generator=rng, device=where))
    rng = validate.seed(rng, "torch.Generator")
    return _tensors(householder.haar(n, m, rng, CORE_NAME[dtype], size=size), device)


def _tensors(arrays: ArrayLike, device: Device) -> Tensor | tuple[Tensor, Tensor]:
    """Return reflections, or reflections and phases, as tensors."""
    if isinstance(arrays, tuple):
        u, phases = (torch.from_numpy(part).to(device) for part in arrays)
        return u, phases
    return torch.from_numpy(arrays).to(device)


@completed_by(householder.nearest, "Tensor")
def nearest(a: Tensor) -> Tensor:
    """Return the orthogonal or unitary matrix, or the frame, nearest to ``a``: the factor Q of ``a = Q P``.

    Q has the least distance in the Frobenius norm (the polar decomposition, by singular values).

    Parameters
    ----------
    a : Tensor, shape (..., n, k)
        Any matrices; float32, float64, complex64 or complex128. No gradient flows through the result.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> ht.nearest(torch.tensor([[2.0, 0.0], [0.0, -0.1]])).round()
    tensor([[ 1.,  0.],
            [ 0., -1.]])
    """
    checks.computable("a", a)
    with autocast.off(a.device):
        product: Tensor = polar_factor(torch, a.detach())
    return product


@completed_by(householder.frame, "Tensor")
def frame(u: Tensor) -> Tensor:
    r"""Form the first m columns of ``W``, orthonormal, in O(n m) memory.

    Returns
    -------
    Tensor, shape (..., n, m)
        ``matrix(u)[..., :m]``, differentiable. If ``m == n``, its last column is multiplied by ``u_1``;
        ``torch.linalg.householder_product`` multiplies by -1.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> f = ht.frame(torch.randn(100, 3, dtype=torch.float64))
    >>> torch.allclose(f.mT @ f, torch.eye(3, dtype=torch.float64))
    True
    """
    u, phases = frame_columns(u)
    compute = checks.operands(u)
    n, m = validate.reflections(u)
    if phases is not None:
        checks.matrix_phases(phases, u, n)
    columns = weights.weight(u.to(compute), None, (n, m))
    if phases is not None:
        columns = turn(columns, phases[..., None, :m])
    return columns.to(u.dtype)
