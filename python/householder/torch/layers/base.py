"""The parameters that every layer has: sizes, dtypes, initial values, and the constraint on ``u_1``."""

from __future__ import annotations

from math import pi
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from householder import _core
from householder._base import validate
from householder.torch._base import tracing
from householder.torch._base.dtypes import COMPLEX_TYPES, HALF_TYPES, REAL_TYPES
from householder.torch._base.layout import allocated
from householder.torch._ops.route import EAGER, route

if TYPE_CHECKING:
    from collections.abc import Callable

    from householder._base.types import Argument

CONSTRAINTS = ("hard", "soft")


class Layer(tracing.Opaque):
    """A module whose real parameters stay real and whose complex ones stay complex, in every conversion.

    ``double()``, ``to(torch.complex64)`` and the like choose the precision of all of them. Half types give a
    complex layer complex64 and float32: no unitary layer computes in less.
    """

    is_complex: ClassVar[bool] = False

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def convert(tensor: Tensor) -> Tensor:
            parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
            moved = fn(parts)
            precision = moved.dtype.to_real()
            if self.is_complex and precision != torch.float64:
                precision = torch.float32
            if precision != moved.dtype:
                moved = parts.to(moved.device, precision)  # not from the half type, which has lost digits
            return torch.view_as_complex(moved) if tensor.is_complex() else moved

        super()._apply(convert, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *others: Argument) -> None:
        real = (prefix + name for name, tensor in self.named_parameters(recurse=False) if not tensor.is_complex())
        refused = [key for key in real if key in state_dict and state_dict[key].is_complex()]
        *_, messages = others
        messages += [f"{key} is real, but has dtype {state_dict[key].dtype} in the state dict" for key in refused]
        if not refused:
            super()._load_from_state_dict(state_dict, prefix, *others)

    if TYPE_CHECKING:

        def __call__(self, input: Tensor) -> Tensor: ...  # noqa: A002, D102

    def _promoted(self, x: Tensor) -> Tensor:
        """Make inputs of a complex layer complex; another check refuses inputs of higher precision."""
        if not self.is_complex or not isinstance(x, Tensor):
            return x
        layer: Any = self
        kind: torch.dtype = layer.reflections.dtype
        loses_digits = kind is torch.complex64 and x.dtype in (torch.float64, torch.complex128)
        return x if loses_digits else x.to(kind)


def count(num_reflections: Argument, features: int, largest: int) -> int:
    """Return the number of reflections of a layer.

    The default is an eighth of the features, and at least 32, because 32 cost little and small layers learn better with
    them.
    """
    if num_reflections is None:
        return min(largest, max(32, features // 8))
    return validate.integer("num_reflections", num_reflections, 1, largest)


def real_type(dtype: torch.dtype | None, *, is_complex: bool = False) -> torch.dtype:
    """Return the dtype of the real parameters of a layer."""
    if dtype is None:
        dtype = torch.get_default_dtype()
    known = (*COMPLEX_TYPES, *REAL_TYPES) if is_complex else (*REAL_TYPES, *HALF_TYPES)
    if dtype not in known:
        raise TypeError(f"dtype is {dtype!r}, expected one of {', '.join(map(str, known))}")
    return dtype.to_real()


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
    """Replace the latent ``u_1`` of a real ``m == n`` by its constrained value.

    ``"hard"``: 1 if it is positive, else -1. ``"soft"``: clamped to [-1, 1]. The gradient passes straight through to
    the latent number, so training can change its sign. The latent number may shrink without harm.
    """
    n, m = u.shape[-2:]
    if m < n or u.is_complex():
        return u
    constrained = allocated(u).clone(memory_format=torch.contiguous_format)  # its gradient passes straight through
    # Each operation of torch on a single number takes longer than this whole call.
    is_eager = u.is_cpu and u.dtype in REAL_TYPES and route() is EAGER
    if is_eager and _core.constrain(constrained.detach(), constraint == "soft") is not NotImplemented:
        return constrained
    latent = constrained.detach().select(-1, -1).select(-1, -1)
    latent.copy_(latent.clamp(-1, 1) if constraint == "soft" else torch.where(latent > 0, 1.0, -1.0))
    return constrained
