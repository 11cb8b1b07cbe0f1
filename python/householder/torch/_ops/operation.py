"""What an operation *is*: a class with one method a question. How it is *called* stands in ``operator.py``, once.

A subclass has its arguments and results as ``NamedTuple`` classes, whose fields and types are also the schemas of its
operators in ``torch.ops.householder``. A result is a tensor, several are a tuple.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from householder._mathematics.library import Library


class NothingSaved(NamedTuple):
    """Nothing: the backward pass needs the inputs alone."""

    native: None = None


class BackwardArguments(NamedTuple):
    """The arguments of a backward pass; or a flag or the mapped axis of each."""

    inputs: Any
    saved: Any
    grads: Any
    """Gradients of the results; None stands for zeros."""
    needs_grad: Any
    """Which of the inputs need a gradient, in the form of the inputs."""
    options: Any


class Operation:
    """A differentiable function of tensors, some of which may be None; a subclass answers the questions below."""

    name: ClassVar[str]
    """The name of its operator, which profiles show; ``grad_fn`` shows that of its backward pass."""
    inputs_type: ClassVar[Any]
    """The tensors, ``Tensor`` or ``Tensor | None``."""
    options_type: ClassVar[Any]
    """The arguments that are no tensors: ``bool``, ``float``, ``int`` or ``str``."""
    grads_type: ClassVar[Any]
    """Gradients of the results. With several results, any of them may be None."""
    saved_type: ClassVar[Any] = NothingSaved
    """What a forward pass saves for the backward pass: tensors, and last ``native``, an object of a kernel.

    Operators return the last of the tensors beside the results, because graphs carry tensors alone. The others are
    results.
    """
    differentiable: ClassVar[int]
    """The number of inputs, the first ones, that have gradients."""
    is_linear: ClassVar[bool] = False
    """Whether the operation is linear in its second input, whose gradient alone is then the adjoint, applied."""
    is_loop: ClassVar[bool] = False
    """Whether the expression is a loop over steps, which compilers would unroll."""
    has_cuda: ClassVar[bool] = False
    """Whether CUDA has kernels."""
    has_flops: ClassVar[bool] = False
    """Whether both passes are counted."""

    # The mathematics.

    def expression(self, library: Library, inputs: Any, options: Any) -> tuple[Tensor, ...]:
        """Return the results in differentiable operations of an array library, as a tuple even if there is one."""
        raise NotImplementedError

    def empty_results(self, inputs: Any, options: Any) -> Any:
        """Allocate the results."""
        raise NotImplementedError

    def empty_saved(self, inputs: Any, options: Any, save: bool) -> Tensor:
        """Allocate the tensor that an operator returns beside the results; it is empty if nothing is saved."""
        raise NotImplementedError

    def adjoint(self, options: Any) -> Any:
        """Return the options with which a linear operation is its own adjoint."""
        raise NotImplementedError

    # Kernels. They return NotImplemented where torch's dispatcher has to lay out tensors.

    def cpu_forward(self, inputs: Any, options: Any, save: bool) -> Any:
        """Return the results and what is saved."""
        raise NotImplementedError

    def cpu_backward(self, inputs: Any, saved: Any, grads: Any, needs_grad: Any, options: Any) -> Any:
        """Return the gradients of the differentiable inputs, None where they are not needed."""
        raise NotImplementedError

    def cuda_forward(self, inputs: Any, options: Any, save: bool) -> Any:
        """Return the results and what is saved."""
        raise NotImplementedError(f"{self.name} has no kernels for CUDA")

    def cuda_graph_forward(self, inputs: Any, options: Any, save: bool) -> Any:
        """Return the results and what is saved as tensors alone, as graphs carry it."""
        results, _ = self.cuda_forward(inputs, options, False)
        return results, self.saved_type(self.empty_saved(inputs, options, save))

    def cuda_backward(self, inputs: Any, saved: Any, grads: Any, needs_grad: Any, options: Any) -> Any:
        """Return the gradients of the differentiable inputs, None where they are not needed."""
        raise NotImplementedError(f"{self.name} has no kernels for CUDA")

    def reason_without_kernel(self, inputs: Any, options: Any) -> str:
        """Return why no device but the CPU has a kernel for a call, or ""."""
        return ""

    def require_unchanged(self, inputs: Any, saved: Any, grads: Any, options: Any) -> None:
        """Refuse tensors replaced or converted since the forward pass, because kernels see only addresses.

        The core compares all shapes and dtypes itself, unless an operation says otherwise.
        """

    # Transforms: rules of ``torch.func.vmap``. Results and gradients have the mapped axis first.

    def vmap(self, call: Callable[[Any], Any], info: Any, dims: Any, inputs: Any, options: Any) -> Any:
        """Return the results for mapped inputs by ``call(inputs)``."""
        raise NotImplementedError

    def vmap_backward(
        self, call: Callable[[BackwardArguments], Any], info: Any, dims: BackwardArguments, arguments: BackwardArguments
    ) -> Any:
        """Return the gradients for mapped arguments by ``call(arguments)``."""
        raise NotImplementedError

    # Cost, for ``torch.utils.flop_counter``.

    def flops(self, inputs: Any, options: Any) -> int:
        """Count the operations of a forward pass."""
        raise NotImplementedError

    def backward_flops(self, inputs: Any, options: Any) -> int:
        """Count the operations of a backward pass."""
        raise NotImplementedError
