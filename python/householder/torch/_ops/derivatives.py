"""Derivatives of derivatives, and what the core keeps from a forward pass for the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from householder.torch._base.undocumented import unwrap_if_dead
from householder.torch._ops.route import RECORDED, Route, route

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Handle(Tensor):
    """A tensor among the saved ones that stands for an object.

    The object then lives as long as the saved tensors, at most until the last backward pass. Where hooks copy the
    tensor or write it to a file, what they read back is a plain tensor, because ``torch.load`` reads nothing else. The
    backward pass then computes the object again, with the same bits.
    """

    saved: Any = None

    def detach(self) -> Tensor:
        """Return another one for the same object: activation checkpoints hold what the second forward pass saves."""
        return handle_of(self.saved)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _NOTHING.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: Any) -> Tensor:
        return _NOTHING


# Inference tensors cannot be saved for a backward pass, and the first import may happen in inference mode.
with torch.inference_mode(False):
    _NOTHING = torch.zeros(1, device="cpu")


def handle_of(saved: Any) -> Tensor:
    """Return the tensor that stands for ``saved``, which may be None: checkpoints count tensors, always as many."""
    if saved is None:
        return _NOTHING
    handle = _NOTHING.as_subclass(Handle)  # takes a third of the time of a new tensor
    handle.saved = saved
    return handle


def saved_by(handle: Tensor) -> Any:
    """Return what the tensor stands for, or None if it stands for nothing any more."""
    return getattr(handle, "saved", None)


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
    if below_autograd or route() in (*RECORDED, Route.EXPRESSION):
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
