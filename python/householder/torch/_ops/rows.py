"""Operations on rows of tokens that save nothing, with one result of the first tensor's shape and dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from householder.torch._base.layout import in_rows
from householder.torch._ops.memory import room_for
from householder.torch._ops.operation import (
    Computed,
    Grads,
    Inputs,
    Operation,
    OperatorArgument,
    Options,
    Pulled,
    Saved,
)

if TYPE_CHECKING:
    from torch import Tensor

    from householder._base.types import AnyFunction


class RowOperation(Operation):
    """An operation whose functions of the core take the tensors, sizes and options, and the result or gradients."""

    core_forward: ClassVar[AnyFunction]
    core_backward: ClassVar[AnyFunction]

    def described(self, inputs: Inputs, options: Options) -> tuple[OperatorArgument, ...]:
        """Return the sizes and options that the functions of the core take."""
        raise NotImplementedError

    def empty_results(self, inputs: Inputs, options: Options) -> Tensor:
        (y,) = room_for(inputs, [True])
        assert y is not None
        return y

    def cpu_forward(self, inputs: Inputs, options: Options, save: bool) -> Computed:
        y = self.empty_results(inputs, options)
        status = self.core_forward(inputs, *self.described(inputs, options), y)
        return status if status is NotImplemented else (y, self.saved_type())

    def cpu_backward(self, inputs: Inputs, saved: Saved, grads: Grads, needs_grad: Inputs, options: Options) -> Pulled:
        gradients = room_for(inputs, needs_grad)
        status = self.core_backward(inputs, *self.described(inputs, options), in_rows(grads.y), gradients)
        return status if status is NotImplemented else gradients
