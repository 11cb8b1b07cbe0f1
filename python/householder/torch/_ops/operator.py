"""How an operation is called: every route to it, once for all.

From an :class:`~householder.torch._ops.operation.Operation` follow two operators of torch's dispatcher, ``name`` and
``name_backward``, with what runs on each device (``dispatcher.py``), and four ``autograd.Function`` classes:

* ``_Eager`` has the least overhead and serves ordinary calls;
* ``_Recomputed`` serves ordinary calls on devices without kernels, where autograd's record would take much memory;
* ``_General`` has a ``setup_context`` and a vmap rule, which derivatives of ``torch.func`` require;
* ``_Derivative`` is the backward pass as a differentiable function, whose own backward is the expression's.

Each operation has subclasses of them, because profiles and graphs show their names.

Note [Four Functions]. Compiled and exported calls, and direct calls of the dispatcher's operators, have the same
gradients by ``torch.library.register_autograd``. There a tensor represents what is saved between the passes; see
``rust/torch/saved.rs``. Eager calls do without, because it adds 15 to 20 us to a training step.

Forward mode takes the expression itself, because that has every derivative. So do devices without kernels: autograd
then records the expression, and nothing is computed twice. Operations that recompute are the exception: they may have
gradients in closed form, which serve wherever nothing differentiates them.
"""

from __future__ import annotations

from types import new_class
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.autograd import Function

from householder.torch._base.expressions import LIBRARY
from householder.torch._base.layout import laid_out
from householder.torch._ops.derivatives import (
    drop_none,
    gradients_in_operations,
    gradients_of_expression,
    pull_back,
    scatter_optional,
)
from householder.torch._ops.devices import are_plain, lacks_kernel, launch
from householder.torch._ops.dispatcher import Kernels
from householder.torch._ops.operation import (
    BackwardArguments,
    Computed,
    Context,
    Grads,
    Inputs,
    OperatorArgument,
    Options,
    Results,
    Saved,
)
from householder.torch._ops.route import COMPILED, EAGER, EXPRESSION, NATIVE, OBSERVED, RECORDED, TRANSFORMED, route
from householder.torch._ops.saved import save
from householder.torch._ops.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from householder._base.types import AnyFunction
    from householder.torch._ops.operation import Operation


class Operator:
    """An operation to be called: ``operator(inputs, options)``."""

    def __init__(self, operation: Operation) -> None:
        self.operation, self.signature = operation, Signature(operation)
        functions = _Eager, _Recomputed, _General, _Derivative
        self._eager, self._recomputed, self._general, self._derivative = map(self._subclass, functions)
        self.kernels = Kernels(operation, self.signature)
        of_gradients = self._derivative.pull_back, self._derivative.setup_context
        self.kernels.define((self._operator_backward, self._set_up), of_gradients)
        self.forward_op, self.backward_op = self.kernels.forward_op, self.kernels.backward_op

    def _subclass(self, function: type[Function]) -> Any:
        """Return a subclass for this operation, under the name that profiles and graphs show."""
        name = f"householder::{self.operation.name}"
        return new_class(name, (function,), exec_body=lambda members: members.update(operator=self))

    def attempt(self, inputs: Inputs, options: Options, forward: AnyFunction | None = None) -> Results:
        """Compute an ordinary call at once; return None if it needs checks, conversion or another route.

        Where no graph is recorded, ``forward`` computes the results and what is saved instead of the operation.
        """
        if not getattr(inputs[0], "is_cpu", False) or route() is not EAGER:
            return None
        try:
            needs_graph = False
            for tensor in inputs:
                if tensor is not None:
                    if not tensor.is_cpu:
                        return None
                    needs_graph = needs_graph or tensor.requires_grad
            if needs_graph and torch.is_grad_enabled():
                return self._eager.apply(*inputs, options)
            computed = self._on_cpu(inputs, options, False) if forward is None else forward(inputs, options)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            return None  # the checks of the arguments explain
        return None if computed is NotImplemented else computed[0]

    def __call__(self, inputs: Inputs, options: Options) -> Results:
        """Compute by the route that the active transforms allow."""
        current = route()
        if current is EXPRESSION:
            return self.expression(inputs, options)
        needs_grad = [tensor is not None and tensor.requires_grad for tensor in inputs]
        needs_graph = torch.is_grad_enabled() and any(needs_grad)
        if lacks_kernel(self.operation, inputs, options, current):
            if needs_graph and self.operation.recomputes and current not in RECORDED:
                return self._recomputed.apply(*inputs, options)
            return self.expression(inputs, options)
        if current is TRANSFORMED:
            return self._general.apply(*self.signature.join_forward(inputs, False, options))
        if current is COMPILED:
            saves = needs_graph and inputs[0].is_cpu and not torch.compiler.is_exporting()
            saves = saves and not (self.operation.is_linear and self.needs_adjoint_alone(needs_grad))
            return self.dispatch(inputs, options, saves)
        if needs_graph:
            if current is OBSERVED:
                return self._general.apply(*self.signature.join_forward(inputs, False, options))
            return self._eager.apply(*inputs, options)
        return self.compute(inputs, options, False)[0] if current is EAGER else self.dispatch(inputs, options)

    def compute(self, inputs: Inputs, options: Options, save: bool) -> Computed:
        """Return the results for tensors of any layout and device, and what is saved."""
        operation, computed = self.operation, NotImplemented
        if inputs[0].is_cpu:
            computed = self._on_cpu(inputs, options, save)
        elif operation.has_cuda and inputs[0].is_cuda and are_plain(*inputs):
            computed = launch(operation.cuda_forward, inputs, options, save)
        if computed is not NotImplemented:
            return computed
        returned = self.forward_op(*self.signature.join_forward(inputs, save, options))
        results, tensor = self.signature.split_results(returned)
        return results, self.saved_from(results, tensor)

    def _on_cpu(self, inputs: Inputs, options: Options, save: bool) -> Computed:
        """Return what the core computes, of rows that are laid out only if it refuses the others."""
        operation = self.operation
        computed = operation.cpu_forward(inputs, options, save)
        if computed is NotImplemented:
            computed = operation.cpu_forward(operation.inputs_type(*laid_out(*inputs)), options, save)
        return computed

    def dispatch(self, inputs: Inputs, options: Options, save: bool = False) -> Results:
        """Return the results by the dispatcher's operator."""
        returned = self.forward_op(*self.signature.join_forward(inputs, save, options))
        return self.signature.split_results(returned)[0]

    def expression(self, inputs: Inputs, options: Options) -> Results:
        """Return the results by torch operations alone."""
        results = self.operation.expression(LIBRARY, inputs, options)
        return results if len(results) > 1 else results[0]

    def gradients(
        self, inputs: Inputs, saved: Saved, grads: Grads, needs_grad: Inputs, options: Options
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients that are needed, themselves differentiable where a graph is being recorded."""
        operation, count = self.operation, self.operation.differentiable
        if operation.is_linear and self.needs_adjoint_alone(needs_grad):
            first, _, *others = inputs
            return (
                None,
                self(operation.inputs_type(first, *grads, *others), operation.adjoint(options)),
                *[None] * (count - 2),
            )
        current, gradients = route(), NotImplemented
        if current is EXPRESSION:
            return gradients_of_expression(operation, inputs, grads, needs_grad, options)
        arguments = BackwardArguments(inputs, saved, grads, needs_grad, options)
        if torch.is_grad_enabled():
            return scatter_optional(
                self._derivative.apply(*self.signature.join_backward(arguments)), needs_grad[:count]
            )
        if current in NATIVE and inputs[0].is_cpu:
            try:
                gradients = operation.cpu_backward(*arguments)
                if gradients is NotImplemented:
                    laid_out_inputs = operation.inputs_type(*laid_out(*inputs))
                    gradients = operation.cpu_backward(laid_out_inputs, saved, grads, needs_grad, options)
            except (AttributeError, TypeError, ValueError, RuntimeError):
                operation.require_unchanged(inputs, saved, grads, options)
                raise
        elif current in NATIVE and operation.has_cuda and inputs[0].is_cuda and are_plain(*inputs, *grads):
            operation.require_unchanged(inputs, saved, grads, options)
            gradients = launch(operation.cuda_backward, *arguments)
        return self.dispatch_backward(arguments) if gradients is NotImplemented else gradients

    def gradients_in_operations(
        self, inputs: Inputs, _saved: Saved, grads: Grads, needs_grad: Inputs, options: Options
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients that are needed by torch operations alone, differentiable as ``gradients`` are."""
        return gradients_in_operations(self.operation, inputs, grads, needs_grad, options)

    def needs_adjoint_alone(self, needs_grad: Sequence[bool]) -> bool:
        """Return whether a linear operation only needs the gradient of its second input: nothing has to be saved."""
        return not needs_grad[0] and not any(needs_grad[2:])

    def dispatch_backward(self, arguments: BackwardArguments) -> tuple[Tensor | None, ...]:
        """Return the gradients by the dispatcher's operator, None where they are not needed."""
        gradients = self.backward_op(*self.signature.join_backward(arguments))
        return gradients if isinstance(gradients, tuple) else (gradients,)

    def saved_from(self, results: Results, tensor: Tensor | None) -> Saved:
        """Return what is saved, from the results and the last tensor of the operator, which may have no numbers."""
        if not self.signature.saves:
            return self.operation.saved_type()
        tensor = tensor if tensor is not None and tensor.numel() else None
        among_results = results[: self.signature.saved - 1] if isinstance(results, tuple) else ()
        return self.operation.saved_type(*among_results, tensor)

    # Autograd of the dispatcher's forward operator.

    def _set_up(self, ctx: Context, inputs: Sequence[OperatorArgument], output: Results) -> None:
        named, saves, options = self.signature.split_forward(inputs)
        results, tensor = self.signature.split_results(output)
        if tensor is not None:
            ctx.mark_non_differentiable(tensor)
        save(ctx, named, self.saved_from(results, tensor if saves else None), options)

    def _operator_backward(self, ctx: Context, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        gradients: tuple[Tensor | None, ...] = self._eager.backward(ctx, *grads[: self.signature.results])
        return gradients


class _Eager(Function):
    """Ordinary calls, ``apply(*inputs, options)``, with the least overhead: see Note [Four Functions]."""

    operator: ClassVar[Operator]
    recomputes: ClassVar[bool] = False

    @classmethod
    def forward(cls, ctx: Context, *arguments: OperatorArgument) -> Results:
        operator, (*tensors, options) = cls.operator, arguments
        operation = operator.operation
        inputs = operation.inputs_type(*tensors)
        saves = not (operation.is_linear and operator.needs_adjoint_alone(ctx.needs_input_grad[:-1]))
        computed = operation.cpu_forward(inputs, options, saves) if inputs[0].is_cpu else NotImplemented
        results, saved = operator.compute(inputs, options, saves) if computed is NotImplemented else computed
        save(ctx, inputs, saved, options)
        return results

    @classmethod
    def backward(cls, ctx: Context, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        operation, count = cls.operator.operation, cls.operator.signature.inputs
        for grad in grads:
            if grad is not None:
                break
        else:
            return (None,) * len(ctx.needs_input_grad)
        *tensors, handle = ctx.saved_tensors
        inputs = operation.inputs_type(*tensors[:count])
        needs_grad = operation.inputs_type(*ctx.needs_input_grad[:count])
        saved = operation.saved_type(*tensors[count:], getattr(handle, "saved", None))
        of_grads = cls.operator.gradients_in_operations if cls.recomputes else cls.operator.gradients
        gradients = of_grads(inputs, saved, operation.grads_type(*grads), needs_grad, ctx.options)
        return *gradients, *(None,) * (len(ctx.needs_input_grad) - len(gradients))


class _Recomputed(_Eager):
    """Ordinary calls on devices without kernels: the expression, and gradients that compute from the inputs alone."""

    recomputes = True

    @classmethod
    def forward(cls, ctx: Context, *arguments: OperatorArgument) -> Results:
        *tensors, options = arguments
        operation = cls.operator.operation
        inputs = operation.inputs_type(*tensors)
        save(ctx, inputs, operation.saved_type(), options)
        return cls.operator.expression(inputs, options)


class _General(_Eager):
    """Calls that ``torch.func`` can transform: ``apply`` takes the arguments of the forward operator."""

    generate_vmap_rule = True

    @classmethod
    def forward(cls, *arguments: OperatorArgument) -> Results:
        inputs, _, options = cls.operator.signature.split_forward(arguments)
        return cls.operator.dispatch(inputs, options)

    @classmethod
    def setup_context(cls, ctx: Context, inputs: Sequence[OperatorArgument], output: Results) -> None:
        arguments, _, options = cls.operator.signature.split_forward(inputs)
        save(ctx, arguments, cls.operator.saved_from(output, None), options)


class _Derivative(Function):
    """The backward pass, differentiable: ``apply(*arguments)`` returns the gradients that are needed."""

    generate_vmap_rule = True
    operator: ClassVar[Operator]

    @classmethod
    def forward(cls, *arguments: OperatorArgument) -> tuple[Tensor, ...]:
        return drop_none(cls.operator.dispatch_backward(cls.operator.signature.split_backward(arguments)))

    @classmethod
    def setup_context(cls, ctx: Context, inputs: Sequence[OperatorArgument], output: Results) -> None:  # noqa: ARG003
        arguments = cls.operator.signature.split_backward(inputs)
        ctx.needs_grad, ctx.options = arguments.needs_grad, arguments.options
        ctx.save_for_backward(*arguments.inputs, *arguments.grads)
        ctx.set_materialize_grads(False)

    @classmethod
    def backward(cls, ctx: Context, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        count = cls.operator.operation.differentiable
        return cls.pull_back(ctx, *scatter_optional(cotangents, ctx.needs_grad[:count]))

    @classmethod
    def pull_back(cls, ctx: Context, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """Differentiate; there is a cotangent for each gradient, needed or not."""
        # A gradient penalty uses few of the first gradients; the others have no cotangent.
        used = [cotangent is not None for cotangent in cotangents]
        if not any(used):
            return (None,) * len(ctx.needs_input_grad)
        operation, signature, saved = cls.operator.operation, cls.operator.signature, ctx.saved_tensors
        count, inputs, grads = operation.differentiable, saved[: signature.inputs], saved[signature.inputs :]

        def first_order(*arguments: OperatorArgument) -> tuple[Tensor, ...]:
            free, of_results = operation.inputs_type(*arguments[:count], *inputs[count:]), arguments[count:]
            return drop_none(gradients_of_expression(operation, free, of_results, used, ctx.options))

        needs_grad = signature.split_backward(ctx.needs_input_grad)
        needed = (*needs_grad.inputs[:count], *needs_grad.grads)
        pulled = pull_back(first_order, (*inputs[:count], *grads), drop_none(cotangents), needed)
        gradients = scatter_optional(pulled, needed)
        others = (None,) * (signature.inputs - count + signature.saved)
        return *gradients[:count], *others, *gradients[count:], *(None,) * (1 + signature.options)
