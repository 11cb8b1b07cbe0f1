"""Operations on rows of tokens that save nothing, with one result of the first tensor's shape and dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from householder.torch._base.layout import in_rows
from householder.torch._ops.memory import room_for
from householder.torch._ops.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class RowOperation(Operation):
    """An operation whose functions of the core take the tensors, sizes and options, and the result or gradients."""

    core_forward: ClassVar[Callable[..., Any]]
    core_backward: ClassVar[Callable[..., Any]]

    def described(self, inputs: Any, options: Any) -> tuple[Any, ...]:
        """Return the sizes and options that the functions of the core take."""
        raise NotImplementedError

    def empty_results(self, inputs: Any, options: Any) -> Tensor:
        (y,) = room_for(inputs, [True])
        assert y is not None
        return y

    def cpu_forward(self, inputs: Any, options: Any, save: bool) -> Any:
        y = self.empty_results(inputs, options)
        status = self.core_forward(inputs, *self.described(inputs, options), y)
        return status if status is NotImplemented else (y, self.saved_type())

    def cpu_backward(self, inputs: Any, saved: Any, grads: Any, needs_grad: Any, options: Any) -> Any:
        gradients = room_for(inputs, needs_grad)
        status = self.core_backward(inputs, *self.described(inputs, options), in_rows(grads.y), gradients)
        return status if status is NotImplemented else gradients
