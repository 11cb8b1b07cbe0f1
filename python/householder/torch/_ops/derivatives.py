"""Derivatives of derivatives, and what the core keeps from a forward pass for the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from householder.torch._base.undocumented import unwrap_if_dead
from householder.torch._ops.route import Route, route

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from householder import _core

# Saved for backward passes. Inference tensors cannot be saved, and the first import may happen in inference mode.
with torch.inference_mode(False):
    _HOLDER = torch.zeros(1, device="cpu")


def attach_cache(kept: _core.Kept | None) -> Tensor:
    """Return a tensor that carries what the core has kept, to be saved with the other tensors for the backward pass.

    What is kept then lives as long as the saved tensors, at most until the last backward pass. Hooks that replace saved
    tensors, as activation checkpointing does, drop it. A tensor is saved even if nothing is kept, because checkpointing
    needs the same number of tensors each time.
    """
    if kept is None:
        return _HOLDER
    holder = _HOLDER.detach()  # takes a third of the time of a new tensor
    holder.kept = kept  # type: ignore[attr-defined]
    return holder


def cached(holder: Tensor) -> _core.Kept | None:
    """Return what ``attach_cache`` was given, if it still exists."""
    return getattr(holder, "kept", None)


def pull_back(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    cotangents: Any,
    wanted: Sequence[bool],
    *,
    below_autograd: bool = False,
) -> tuple[Tensor, ...]:
    """Return the gradients of ``function`` for the wanted inputs. They are differentiable in inputs and cotangents.

    Operators run below autograd, where only the transforms of ``torch.func`` differentiate.
    """
    inputs = [unwrap_if_dead(t) if isinstance(t, torch.Tensor) else t for t in inputs]
    free = [i for i, want in enumerate(wanted) if want]

    def of_free(*values: Tensor) -> Any:
        arguments = list(inputs)
        for i, value in zip(free, values, strict=True):
            arguments[i] = value
        return function(*arguments)

    values, gradients = [inputs[i] for i in free], None
    if below_autograd or route() in (Route.TRANSFORMED, Route.EXPRESSION):
        gradients = torch.func.vjp(of_free, *values)[1](cotangents)
    else:
        gradients = _pull_back_on_tape(of_free, values, cotangents)
    return tuple(gradients)


def _pull_back_on_tape(function: Callable[..., Any], values: Sequence[Tensor], cotangents: Any) -> Any:
    """Compute the gradients by autograd's tape. An operation costs less than in a transform."""
    with torch.enable_grad():
        # views, because one value may have been computed from another
        free = [t.view_as(t) if t.requires_grad else t.detach().requires_grad_() for t in values]
        both = zip(function(*free), cotangents, strict=True)
        pairs = [(result, cotangent) for result, cotangent in both if result.requires_grad]
    if not pairs:
        return [torch.zeros_like(t) for t in values]
    results, cotangents = zip(*pairs, strict=True)
    create_graph = torch.is_grad_enabled()
    return torch.autograd.grad(
        results, free, cotangents, create_graph=create_graph, allow_unused=True, materialize_grads=True
    )


def scatter_optional(values: Sequence[Any], wanted: Sequence[bool]) -> tuple[Any, ...]:
    """Put the gradients of the wanted inputs in their places, None elsewhere."""
    rest = iter(values)
    return tuple(next(rest) if want else None for want in wanted)


def drop_none(gradients: Sequence[Any]) -> tuple[Tensor, ...]:
    """Leave out what is None."""
    return tuple(gradient for gradient in gradients if gradient is not None)
