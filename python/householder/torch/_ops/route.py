"""Read torch's flags once and tell how a differentiable call is computed."""

from __future__ import annotations

from enum import Enum, auto

import torch

from householder.torch._base.undocumented import (
    are_transforms_active,
    forward_level,
    is_differentiated,
    is_observed,
    is_profiled,
)
from householder.torch._ops import threads


class Route(Enum):
    """How a call is computed."""

    EAGER = auto()
    """Call the core at once."""
    PROFILED = auto()
    """Call ``autograd.Function`` classes and operators whose names a profile shows."""
    OBSERVED = auto()
    """Call the dispatcher, because a mode or a tracer observes operators."""
    COMPILED = auto()
    """Call the dispatcher's operators with their own gradients, because the call is being compiled or exported."""
    TRANSFORMED = auto()
    """Call ``autograd.Function`` classes that the transforms of ``torch.func`` differentiate."""
    EXPRESSION = auto()
    """Compute in torch operations: tensors may carry tangents, or a gradient of ``torch.func`` is being compiled.

    The compiler's form of an ``autograd.Function`` has no vmap rule and silently loses second derivatives.
    """


EAGER, PROFILED, OBSERVED, COMPILED, TRANSFORMED, EXPRESSION = Route

NATIVE = EAGER, PROFILED
"""Routes on which the core may compute ordinary tensors."""
RECORDED = COMPILED, TRANSFORMED
"""Routes on which graphs or transforms record the calls."""


def route() -> Route:
    """Return how a call is computed; nothing else reads torch's flags.

    If the core may compute it, the core has as many threads as torch from then on.
    """
    if forward_level() >= 0:
        return EXPRESSION
    if torch.compiler.is_compiling():
        return EXPRESSION if is_differentiated() else COMPILED
    if are_transforms_active():
        return TRANSFORMED
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        if torch.is_grad_enabled():
            raise RuntimeError("torch.jit.trace with gradients is not supported: use torch.compile or torch.export")
        return OBSERVED
    if is_observed():
        return OBSERVED
    if torch.get_num_threads() != threads.followed:
        threads.follow_torch_threads()
    return PROFILED if is_profiled() else EAGER
