"""Read torch's flags once and tell how a differentiable call is computed."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

import torch
from torch.autograd import forward_ad, profiler
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

if TYPE_CHECKING:
    from collections.abc import Callable

# A private name of torch. Without it, every call takes the general route, and forward mode is refused.
transforms_active: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)


class Route(Enum):
    """How a call is computed."""

    EAGER = auto()
    """By the core at once."""
    PROFILED = auto()
    """So that a profile shows the operator."""
    OBSERVED = auto()
    """By the dispatcher, because a mode or a tracer observes operators."""
    TRANSFORMED = auto()
    """By what a graph or a transform can hold, because the call is being compiled, exported or transformed."""
    EXPRESSION = auto()
    """In torch operations, because tensors may carry tangents."""


NATIVE = Route.EAGER, Route.PROFILED
"""Routes on which the core may compute ordinary tensors."""


def is_forward_mode() -> bool:
    """Return whether tensors may carry tangents."""
    return getattr(forward_ad, "_current_level", -1) >= 0


def is_compiled() -> bool:
    """Return whether a call is being compiled for this process, outside of the transforms of ``torch.func``."""
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting() and not transforms_active()


def route() -> Route:
    """Return how a call is computed; this and the functions above alone read torch's flags."""
    if is_forward_mode():
        return Route.EXPRESSION
    if torch.compiler.is_compiling() or transforms_active():
        return Route.TRANSFORMED
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        if torch.is_grad_enabled():
            raise RuntimeError("torch.jit.trace with gradients is not supported: use torch.compile or torch.export")
        return Route.OBSERVED
    if is_in_torch_dispatch_mode():
        return Route.OBSERVED
    return Route.PROFILED if getattr(profiler, "_is_profiler_enabled", False) else Route.EAGER
