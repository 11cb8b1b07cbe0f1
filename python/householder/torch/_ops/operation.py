"""What an operation *is*: a class with one method a question. How it is *called* stands in ``operator.py``, once.

A subclass has its arguments and results as ``NamedTuple`` classes, whose fields and types are also the schemas of its
operators in ``torch.ops.householder``. A result is a tensor, several are a tuple.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from householder.torch._ops.batching import all_leading

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from householder._mathematics.library import Library


Inputs = Any
"""The ``inputs_type`` of the operation at hand: tensors, or a flag or an axis of each."""
Options = Any
"""Its ``options_type``."""
Saved = Any
"""Its ``saved_type``."""
Grads = Any
"""Its ``grads_type``."""
Kind = Any
"""One of these ``NamedTuple`` classes."""
Results = Any
"""A tensor, or several in a tuple."""
Computed = Any
"""Results and what is saved, or ``NotImplemented``."""
Pulled = Any
"""The gradients of the differentiable inputs, a tuple, or ``NotImplemented``."""
OperatorArgument = Any
"""An argument of a dispatcher's operator: a tensor, a number, a name, flags or None."""
NativeObject = Any
"""An object of a kernel, which carries what it saved."""
OptionalTensor = Any
"""A tensor, or None for None."""
Context = Any
"""The context of an autograd function, with what is saved and the options."""


class VmapInfo(Protocol):
    """What ``torch.func.vmap`` tells a rule."""

    @property
    def batch_size(self) -> int:
        """The size of the mapped axis."""

    def _replace(self, *, batch_size: int) -> VmapInfo:
        """Tell another size."""


class NothingSaved(NamedTuple):
    """Nothing: the backward pass needs the inputs alone."""

    native: None = None


class BackwardArguments(NamedTuple):
    """The arguments of a backward pass; or a flag or the mapped axis of each."""

    inputs: Inputs
    saved: Saved
    grads: Grads
    """Gradients of the results; None stands for zeros."""
    needs_grad: Inputs
    """Which of the inputs need a gradient, in the form of the inputs."""
    options: Options


class Operation:
    """A differentiable function of tensors, some of which may be None; a subclass answers the questions below."""

    name: ClassVar[str]
    """The name of its operator, which profiles show; ``grad_fn`` shows that of its backward pass."""
    inputs_type: ClassVar[Kind]
    """The tensors, ``Tensor`` or ``Tensor | None``."""
    options_type: ClassVar[Kind]
    """The arguments that are no tensors: ``bool``, ``float``, ``int`` or ``str``."""
    grads_type: ClassVar[Kind]
    """Gradients of the results. With several results, any of them may be None."""
    saved_type: ClassVar[Kind] = NothingSaved
    """What a forward pass saves for the backward pass: tensors, and last ``native``, an object of a kernel.

    Operators return the last of the tensors as one more result, because graphs carry tensors alone. The others are
    results already.
    """
    differentiable: ClassVar[int]
    """The number of inputs, the first ones, that have gradients."""
    is_linear: ClassVar[bool] = False
    """Whether it is linear in its second input. If only that needs a gradient, the adjoint alone computes it."""
    is_loop: ClassVar[bool] = False
    """Whether the expression is a loop over steps, which compilers would unroll."""
    recomputes: ClassVar[bool] = False
    """Whether calls on devices without kernels hold the inputs alone between the passes, and no record of autograd."""
    has_cuda: ClassVar[bool] = False
    """Whether CUDA has kernels."""
    has_flops: ClassVar[bool] = False
    """Whether both passes are counted."""

    # The mathematics.

    def expression(self, library: Library, inputs: Inputs, options: Options) -> tuple[Tensor, ...]:
        """Return the results in differentiable operations of an array library, as a tuple even if there is one."""
        raise NotImplementedError

    def closed_gradients(self, library: Library, inputs: Inputs, grads: Grads, options: Options) -> Pulled:
        """Return the gradients of the differentiable inputs in operations of an array library, None for None.

        Nothing differentiates them. Return ``NotImplemented`` if they are those of the expression.
        """
        return NotImplemented

    def empty_results(self, inputs: Inputs, options: Options) -> Results:
        """Allocate the results."""
        raise NotImplementedError

    def empty_saved(self, inputs: Inputs, options: Options, save: bool) -> Tensor:
        """Allocate the tensor that an operator returns beside the results; it is empty if nothing is saved."""
        raise NotImplementedError

    def adjoint(self, options: Options) -> Options:
        """Return the options with which a linear operation is its own adjoint."""
        raise NotImplementedError

    # Kernels. They return NotImplemented where torch's dispatcher has to lay out tensors.

    def cpu_forward(self, inputs: Inputs, options: Options, save: bool) -> Computed:
        """Return the results and what is saved."""
        raise NotImplementedError

    def cpu_backward(self, inputs: Inputs, saved: Saved, grads: Grads, needs_grad: Inputs, options: Options) -> Pulled:
        """Return the gradients of the differentiable inputs, None where they are not needed."""
        raise NotImplementedError

    def cuda_forward(self, inputs: Inputs, options: Options, save: bool) -> Computed:
        """Return the results and what is saved."""
        raise NotImplementedError(f"{self.name} has no kernels for CUDA")

    def cuda_graph_forward(self, inputs: Inputs, options: Options, save: bool) -> Computed:
        """Return the results and what is saved as tensors alone, as graphs carry it."""
        results, _ = self.cuda_forward(inputs, options, False)
        return results, self.saved_type(self.empty_saved(inputs, options, save))

    def cuda_backward(self, inputs: Inputs, saved: Saved, grads: Grads, needs_grad: Inputs, options: Options) -> Pulled:
        """Return the gradients of the differentiable inputs, None where they are not needed."""
        raise NotImplementedError(f"{self.name} has no kernels for CUDA")

    def reason_without_kernel(self, inputs: Inputs, options: Options) -> str:
        """Return why no device but the CPU has a kernel for a call, or ""."""
        return ""

    def require_unchanged(self, inputs: Inputs, saved: Saved, grads: Grads, options: Options) -> None:
        """Refuse tensors replaced or converted since the forward pass, because kernels see only addresses.

        The core compares all shapes and dtypes itself, unless an operation says otherwise.
        """

    # Transforms: rules of ``torch.func.vmap``. Results and gradients have the mapped axis first.

    def vmap(
        self, call: Callable[[Inputs], Results], info: VmapInfo, dims: Inputs, inputs: Inputs, options: Options
    ) -> Results:
        """Return the results for mapped inputs by ``call(inputs)``."""
        raise NotImplementedError

    def vmap_backward(
        self,
        call: Callable[[BackwardArguments], Pulled],
        info: VmapInfo,
        dims: BackwardArguments,
        arguments: BackwardArguments,
    ) -> Pulled:
        """Return the gradients for mapped arguments by ``call(arguments)``."""
        inputs = all_leading(info, arguments.inputs, dims.inputs)
        grads = all_leading(info, arguments.grads, dims.grads)
        return call(arguments._replace(inputs=inputs, saved=self.saved_type(), grads=grads))

    # Cost, for ``torch.utils.flop_counter``.

    def flops(self, inputs: Inputs, options: Options) -> int:
        """Count the operations of a forward pass."""
        raise NotImplementedError

    def backward_flops(self, inputs: Inputs, options: Options) -> int:
        """Count the operations of a backward pass."""
        raise NotImplementedError
