"""Autocast, which tensors without memory do not have."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


def is_on(device: torch.device) -> bool:
    """Tell whether operations on this device choose their types themselves."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def off(device: torch.device) -> AbstractContextManager[Any]:
    """Give what lets operations on this device compute in the types they are given."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def as_now(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Give what restores autocast as it is now, for work that is repeated in a backward pass."""
    kind = device.type
    if kind == "meta":
        return nullcontext
    dtype, enabled, cached = torch.get_autocast_dtype(kind), is_on(device), torch.is_autocast_cache_enabled()
    return partial(torch.autocast, kind, dtype=dtype, enabled=enabled, cache_enabled=cached)
