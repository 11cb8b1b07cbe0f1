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
    kind = device.type
    return kind != "meta" and torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def off(device: torch.device) -> AbstractContextManager[Any]:
    """Give what lets operations on this device compute in the types they are given."""
    return torch.autocast(device.type, enabled=False) if is_on(device) else nullcontext()


def as_now(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Give what restores autocast as it is now, for work that is repeated in a backward pass."""
    kind = device.type
    if kind == "meta" or not torch.amp.is_autocast_available(kind):
        return nullcontext
    dtype, enabled, cached = torch.get_autocast_dtype(kind), is_on(device), torch.is_autocast_cache_enabled()
    return partial(torch.autocast, kind, dtype=dtype, enabled=enabled, cache_enabled=cached)
