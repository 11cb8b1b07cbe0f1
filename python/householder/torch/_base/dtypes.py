"""The types of numbers in torch."""

from __future__ import annotations

import torch

from householder._base.spec import COMPLEX, CORE, DTYPES, HALF, REAL

_TYPE: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}

CORE_NAME = {_TYPE[name]: name for name in CORE}
REAL_TYPES = tuple(_TYPE[name] for name in REAL)
COMPLEX_TYPES = tuple(_TYPE[name] for name in COMPLEX)
HALF_TYPES = tuple(_TYPE[name] for name in HALF)
COMPUTE_TYPE = {_TYPE[name]: _TYPE[dtype.compute] for name, dtype in DTYPES.items()}
DOUBLE = {_TYPE[name]: _TYPE[DTYPES[name].double] for name in CORE}


def compute_type(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for itself and float32 for all else, as sequences of tokens are computed."""
    return dtype if dtype is torch.float64 else torch.float32


def fitting(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert a tensor to the type to compute in if it or ``dtype`` is float64.

    Other types stay as they are, because operations mix float32 and half types.
    """
    return t.to(compute_type(dtype)) if torch.float64 in (t.dtype, dtype) else t
