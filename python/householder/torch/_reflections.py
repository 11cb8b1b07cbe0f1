"""The parameter that every layer has: its size, its start and what the forward pass sees of ``u_1``."""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from householder.torch import _check

CONSTRAINTS = ("hard", "soft")


def count(num_reflections: int | None, features: int, largest: int) -> int:
    """Give the number of reflections of a layer: the default is an eighth of the features, at least one."""
    if num_reflections is None:
        return max(1, features // 8)
    if not 1 <= num_reflections <= largest:
        raise ValueError(f"num_reflections is {num_reflections}, expected at least 1 and at most {largest}")
    return num_reflections


def positive(name: str, value: int) -> int:
    """Check a size."""
    if value < 1:
        raise ValueError(f"{name} is {value}, expected at least 1")
    return value


def initialise_(u: Tensor) -> None:
    """Fill with a random trapezoid of unit columns; where ``m == n``, this makes ``u_1`` 1 or -1."""
    with torch.no_grad():
        torch.nn.init.normal_(u)
        u.copy_(u.tril())
        u.div_(torch.linalg.vector_norm(u, dim=-2, keepdim=True))


def initialise_phases_(phases: Tensor) -> None:
    """Fill with random angles."""
    torch.nn.init.uniform_(phases, -pi, pi)


def constrain(u: Tensor, constraint: str) -> Tensor:
    """Replace the latent ``u_1`` of a real ``m == n`` by what the constraint makes of it.

    ``"hard"``: 1 if it is positive, else -1. ``"soft"``: clamped to [-1, 1]. The gradient passes straight through to
    the latent number, which can therefore change its sign, and which may shrink without harm.
    """
    n, m = u.shape[-2:]
    if m < n or u.is_complex():
        return u
    seen = u.detach().clone()
    latent = seen[..., -1, -1]
    seen[..., -1, -1] = latent.clamp(-1, 1) if constraint == "soft" else torch.where(latent > 0, 1.0, -1.0)
    return seen + (u - u.detach())


def check_constraint(constraint: str) -> str:
    """Check the name of a constraint."""
    _check.one_of("constraint", constraint, CONSTRAINTS)
    return constraint
