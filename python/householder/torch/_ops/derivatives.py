"""Derivatives of expressions, to any order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from householder.torch._base.expressions import LIBRARY
from householder.torch._base.undocumented import unwrap_if_dead
from householder.torch._ops.devices import are_plain
from householder.torch._ops.route import EXPRESSION, RECORDED, route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from householder._base.types import AnyFunction
    from householder.torch._ops.operation import Grads, Inputs, Operation, OperatorArgument, Options, Results


def gradients_in_operations(
    operation: Operation,
    inputs: Inputs,
    grads: Grads,
    needs_grad: Sequence[bool],
    options: Options,
    *,
    below_autograd: bool = False,
) -> tuple[Tensor | None, ...]:
    """Return the gradients that are needed in torch operations: in closed form where nothing differentiates them."""
    are_last = below_autograd or not (torch.is_grad_enabled() or route() in (*RECORDED, EXPRESSION))
    if are_last and are_plain(*inputs, *grads):
        gradients = operation.closed_gradients(LIBRARY, inputs, grads, options)
        if gradients is not NotImplemented:
            needed = needs_grad[: operation.differentiable]
            return tuple(grad if is_needed else None for grad, is_needed in zip(gradients, needed, strict=True))
    return gradients_of_expression(operation, inputs, grads, needs_grad, options, below_autograd=below_autograd)


def gradients_of_expression(
    operation: Operation,
    inputs: Inputs,
    grads: Sequence[Tensor | None],
    needs_grad: Sequence[bool],
    options: Options,
    *,
    below_autograd: bool = False,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the differentiable inputs in torch operations, None where they are not needed."""
    count = operation.differentiable

    def results(*free: OperatorArgument) -> tuple[Tensor, ...]:
        of_all = operation.expression(LIBRARY, operation.inputs_type(*free, *inputs[count:]), options)
        return tuple(result for result, grad in zip(of_all, grads, strict=True) if grad is not None)

    needed = needs_grad[:count]
    gradients = pull_back(results, inputs[:count], drop_none(grads), needed, below_autograd=below_autograd)
    return scatter_optional(gradients, needed)


def pull_back(
    function: AnyFunction,
    inputs: Sequence[OperatorArgument],
    cotangents: Sequence[Tensor],
    needed: Sequence[bool],
    *,
    below_autograd: bool = False,
) -> tuple[Tensor, ...]:
    """Return the gradients of ``function`` for the inputs that need one, differentiable in inputs and cotangents.

    Operators run below autograd, where only the transforms of ``torch.func`` differentiate.
    """
    inputs = [unwrap_if_dead(t) if isinstance(t, torch.Tensor) else t for t in inputs]
    free = [i for i, is_needed in enumerate(needed) if is_needed]

    def of_free(*values: Tensor) -> Results:
        arguments = list(inputs)
        for i, value in zip(free, values, strict=True):
            arguments[i] = value
        return function(*arguments)

    values, gradients = [inputs[i] for i in free], None
    if below_autograd or route() in (*RECORDED, EXPRESSION):
        gradients = torch.func.vjp(of_free, *values)[1](cotangents)
    else:
        gradients = _pull_back_on_tape(of_free, values, cotangents)
    return tuple(gradients)


def _pull_back_on_tape(
    function: AnyFunction, values: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> Sequence[Tensor]:
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


def scatter_optional(values: Sequence[Tensor | None], needed: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """Put the gradients that are needed in their places, None elsewhere."""
    rest = iter(values)
    return tuple(next(rest) if is_needed else None for is_needed in needed)


def drop_none(gradients: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Leave out what is None."""
    return tuple(gradient for gradient in gradients if gradient is not None)
