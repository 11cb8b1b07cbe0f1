"""Autocast, which the meta device does not have."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from householder.torch._base import undocumented

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


@undocumented.constant
def _exists_on(kind: str) -> bool:
    """Return whether a type of device has autocast; the compiler of torch 2.11 cannot trace the question."""
    return kind != "meta" and torch.amp.is_autocast_available(kind)


def is_on(device: torch.device) -> bool:
    """Return whether autocast chooses the dtypes of operations on this device."""
    return _exists_on(device.type) and torch.is_autocast_enabled(device.type)


def off(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which operations on this device compute in the dtypes of their operands."""
    return torch.autocast(device.type, enabled=False) if is_on(device) else nullcontext()


def as_now(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function whose contexts restore the present autocast state, for work that a backward pass repeats."""
    kind = device.type
    if not _exists_on(kind):
        return nullcontext
    dtype, enabled, cached = torch.get_autocast_dtype(kind), is_on(device), torch.is_autocast_cache_enabled()
    return partial(torch.autocast, kind, dtype=dtype, enabled=enabled, cache_enabled=cached)
