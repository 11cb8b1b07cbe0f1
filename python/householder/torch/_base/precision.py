"""Double precision for intermediate results, where the device has it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from householder.torch._base.dtypes import DOUBLE
from householder.torch._base.undocumented import is_observed

if TYPE_CHECKING:
    from torch import Tensor


def wide_of(tensor: Tensor) -> torch.dtype:
    """Return the double precision of a dtype, or the dtype itself where the tensor's device has none."""
    dtype = tensor.dtype
    wide = DOUBLE.get(dtype, dtype)
    return wide if wide is dtype or has_double(tensor.device) else dtype


def has_double(device: torch.device) -> bool:
    """Return whether a device computes in float64."""
    kind = device.type
    if kind in ("cpu", "cuda", "meta"):
        return True
    if kind == "mps":
        return False
    return torch.compiler.is_compiling() or is_observed() or _try(kind)


@cache
def _try(kind: str) -> bool:
    """Return whether a sum in float64 works: some devices report only when they compute that they have none."""
    try:
        (torch.ones(2, dtype=torch.float64, device=kind) + 1).sum().item()
    except (RuntimeError, TypeError):
        return False
    return True
