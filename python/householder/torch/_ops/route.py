"""Read torch's flags once and tell how a differentiable call is computed."""

from __future__ import annotations

from enum import Enum, auto

import torch

from householder.torch._base.undocumented import (
    are_transforms_active,
    is_differentiated,
    is_forward_mode,
    is_observed,
    is_profiled,
)


class Route(Enum):
    """How a call is computed."""

    EAGER = auto()
    """By the core at once."""
    PROFILED = auto()
    """So that a profile shows the operator."""
    OBSERVED = auto()
    """By the dispatcher, because a mode or a tracer observes operators."""
    COMPILED = auto()
    """By the dispatcher's operators with their own gradients, because the call is being compiled or exported."""
    TRANSFORMED = auto()
    """Through ``autograd.Function`` classes that the transforms of ``torch.func`` differentiate."""
    EXPRESSION = auto()
    """In torch operations, because tensors may carry tangents."""


NATIVE = Route.EAGER, Route.PROFILED
"""Routes on which the core may compute ordinary tensors."""
RECORDED = Route.COMPILED, Route.TRANSFORMED
"""Routes on which graphs or transforms record what is called."""


def route() -> Route:
    """Return how a call is computed; nothing else reads torch's flags."""
    if is_forward_mode():
        return Route.EXPRESSION
    if torch.compiler.is_compiling():
        return Route.TRANSFORMED if is_differentiated() else Route.COMPILED
    if are_transforms_active():
        return Route.TRANSFORMED
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        if torch.is_grad_enabled():
            raise RuntimeError("torch.jit.trace with gradients is not supported: use torch.compile or torch.export")
        return Route.OBSERVED
    if is_observed():
        return Route.OBSERVED
    return Route.PROFILED if is_profiled() else Route.EAGER
