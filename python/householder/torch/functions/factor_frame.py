"""Reflections of a given orthogonal matrix or frame (Theorem 1).

A frame ``F (n, k)`` holds the first k columns of ``W = H_1 .. H_m``, and ``E`` those of the identity. ``W - I`` has at
most rank m, and so has ``F - E``. With an orthonormal basis ``L (n, m)`` of its range

    W = I + L (M - I) L',    M L' E = L' F,    M orthogonal,

and every reflection is ``L w`` for a reflection ``w`` of ``M (m, m)``. ``L`` is turned so that it is zero above its
diagonal.
"""

from __future__ import annotations

import contextlib
import warnings

import torch
from torch import Tensor

import householder
from householder import _core
from householder.torch._base import autocast, expressions
from householder.torch.functions import weights
from householder.torch.functions.matrices import nearest


def nearest_reflections(weight: Tensor, m: int, *, warn: bool) -> tuple[Tensor, ...]:
    """Return m reflections, and phases if complex, of the frame, or of the adjoint of one, nearest to a weight.

    If asked to, warn where the weight is orthogonal but m reflections do not reach it.
    """
    tall = weight.mH if weight.shape[0] < weight.shape[1] else weight
    frame = _nearest_frame(tall)
    *parameters, distance = _complex_reflections(frame, m) if weight.is_complex() else reflections(frame, m)
    if warn and distance and frame is tall:
        warnings.warn(
            f"weight {tuple(weight.shape)} is orthogonal, but not made of {m} reflections: "
            f"the nearest such weight replaces it; entries change by up to {distance:.3g}",
            stacklevel=5,
        )
    return tuple(parameters)


def _nearest_frame(tall: Tensor) -> Tensor:
    """Return the frame itself, or Q of the QR decomposition whose R has a positive diagonal."""
    with autocast.off(tall.device):
        gram = tall.mH @ tall
    departure = (gram - torch.eye(len(gram), dtype=gram.dtype, device=gram.device)).abs().max()
    if departure.item() <= _tolerance(tall):
        return tall
    q, r = torch.linalg.qr(tall)
    directions = r.diagonal().sgn()
    frame: Tensor = q * torch.where(directions == 0, 1, directions)
    return frame


def reflections(frame: Tensor, m: int) -> tuple[Tensor, float]:
    """Return m reflections of a real frame, and how far their frame is from it.

    Parameters
    ----------
    frame : Tensor, shape (n, k)
    m : int
        At most k.

    Returns
    -------
    u : Tensor, shape (n, m)
        If m reflections do not reach the frame, those of the nearest frame by the largest singular values of
        ``F - E``.
    distance : float
        The largest entry of the difference from ``frame``, 0 if it is no more than rounding.
    """
    wide = frame.to("cpu", torch.float64)
    with autocast.off(wide.device):
        u = _of_frame(wide, m).to(frame)
        distance = _distance(u, frame)
        if distance <= _negligible(frame):
            return u, 0.0
        if not u[:, -1].any():
            u[-1, -1] = 1  # a column of zeros would not learn
            distance = _distance(u, frame)
    return u, distance


def _complex_reflections(frame: Tensor, m: int) -> tuple[Tensor, Tensor, float]:
    """Return m reflections and the phases of a unitary frame, and how far their frame is from it.

    If they do not reach it, the first m columns are kept, and phases bring the others as near as possible.
    """
    wide = frame.resolve_conj().to("cpu", torch.complex128)
    n, k = wide.shape
    # a frame of single precision is unitary only to its own rounding
    whole = nearest(torch.cat([wide, torch.linalg.qr(wide, mode="complete")[0][:, k:]], 1)).numpy()
    if m < k == n:
        with contextlib.suppress(ValueError):
            u, phases = (torch.from_numpy(part) for part in householder.factor(whole, m))
            return u.to(frame), phases.to(frame.real), 0.0
    u, phases = (torch.from_numpy(part) for part in householder.factor(whole))
    u = u[:, :m].contiguous()
    images = weights.weight(u, None, (n, k))
    phases[:k] = (images.conj() * wide).sum(0).angle()
    distance = (expressions.turn(images, phases[:k]) - wide).abs().max().item()
    return u.to(frame), phases.to(frame.real), 0.0 if distance <= _negligible(frame) else distance


def _negligible(frame: Tensor) -> float:
    """Return by how much entries may change without a warning.

    Rounding of ``F`` hides a vector of ``L`` whose part inside the frame is shorter than the root of eps. Weights of
    such reflections are reproduced to the root of eps, all others to rounding.
    """
    root: float = torch.finfo(torch.float64).eps ** 0.5
    return max(root, _tolerance(frame))


def _distance(u: Tensor, frame: Tensor) -> float:
    return (weights.weight(u, None, (len(frame), frame.shape[1])) - frame).abs().max().item()


def _of_frame(frame: Tensor, m: int) -> Tensor:
    n, k = frame.shape
    if n > 2 * k:
        # Below its first k rows the frame is Q R: reflections of [F_1; R] are those of F = diag(I, Q) [F_1; R].
        q, r = torch.linalg.qr(frame[k:])
        inner = _of_frame(torch.cat([frame[:k], r]), m)
        return torch.cat([inner[:k], q @ inner[k:]])
    if m == k:
        complement = torch.linalg.qr(frame, mode="complete")[0][:, k:]
        return _of_columns(torch.cat([frame, complement], 1), k)
    difference = frame - torch.eye(n, k, dtype=frame.dtype)
    basis = _consistent(_range(difference, m), difference)
    basis = (basis @ torch.linalg.qr(basis[:m].mT).Q).tril()
    # Singular vectors of L' E, the longest first, go to those of L' F: small ones then err where they do not count.
    left, _, right = torch.linalg.svd(basis[:k].mT, full_matrices=False)
    images = torch.linalg.qr(basis.mT @ frame @ right.mT)
    signs = torch.where(images.R.diagonal() < 0, -1.0, 1.0)
    w = _of_columns(images.Q * signs @ left.mT, m)
    u: Tensor = basis @ w
    if w[-1, -1] < 0:
        u[:, -1] = basis[:, -1]  # the sign of a coordinate is a reflection
    elif k < n:
        u[:, -1] = torch.eye(n)[-1]  # M takes m - 1 reflections, the last one acts outside the frame
    else:
        u[:, -1] = 0  # M takes m - 1 reflections
    return u


def _of_columns(matrix: Tensor, m: int) -> Tensor:
    """Return m reflections whose product shares the first m columns of an orthogonal matrix."""
    n = len(matrix)
    u = matrix.new_empty(n, m)
    _core.factor(matrix.detach().contiguous(), u, None, by_columns=True)
    return u


def _range(difference: Tensor, m: int) -> Tensor:
    """Return an orthonormal basis of m dimensions that hold the range of ``F - E``, or its largest singular values."""
    k = difference.shape[1]
    generator = torch.Generator().manual_seed(0)
    sketch = difference @ torch.randn(k, min(k, m + 8), generator=generator, dtype=difference.dtype)
    # One power iteration finds the largest singular values, the sketch itself keeps the smallest.
    powers = difference @ (difference.mT @ torch.linalg.qr(sketch).Q)
    q = torch.linalg.qr(torch.cat([powers, sketch], 1)).Q
    left: Tensor = torch.linalg.svd(q.mT @ difference).U
    basis: Tensor = q @ left[:, :m]
    return basis


def _consistent(basis: Tensor, difference: Tensor) -> Tensor:
    """Turn L, where rounding leaves it open, so that ``M`` with ``(M - I) L' E = X = L' (F - E)`` is orthogonal.

    That is ``B' X + X' B + X' X = 0`` with ``B = L' E``. ``L`` turns by ``(I - L L') E Z``, which changes ``B`` by
    ``(I - B' B) Z`` and little else: ``Z`` is large only where X is small.
    """
    k, most = difference.shape[1], 0.1  # larger singular values of X err by rounding alone
    for _ in range(2):
        b, x = basis[:k].mT, basis.mT @ difference
        left, sizes, right = torch.linalg.svd(x, full_matrices=False)
        product = b.mT @ x
        residual = (product + product.mT + x.mT @ x) @ right.mT
        change = right.mT @ (right @ residual) / 2 - residual
        outside = torch.eye(k, dtype=b.dtype) - b.mT @ b
        inverses = torch.where(sizes < most, 1 / sizes.clamp_min(1e-12), 0)
        z = torch.linalg.pinv(outside, hermitian=True, rtol=1e-2) @ (change * inverses) @ left.mT
        turn = torch.cat([z, z.new_zeros(len(basis) - k, z.shape[1])]) - basis @ (b @ z)
        basis, _ = torch.linalg.qr(basis + turn)
    return basis


def _tolerance(frame: Tensor) -> float:
    return 10 * len(frame) * torch.finfo(frame.dtype).eps
