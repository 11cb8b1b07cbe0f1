"""The operator library ``torch.ops.householder``: what an operation runs for each key of torch's dispatcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from householder import _core
from householder._base import torch_library
from householder.torch._base.expressions import EXPORTED, LIBRARY
from householder.torch._base.layout import ordinary
from householder.torch._base.undocumented import is_forward_mode
from householder.torch._ops.batching import of_any_size
from householder.torch._ops.derivatives import gradients_in_operations
from householder.torch._ops.devices import lacks_kernel, launch
from householder.torch._ops.memory import room_for
from householder.torch._ops.route import EAGER
from householder.torch._ops.threads import follow_torch_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from householder._base.types import AnyFunction
    from householder.torch._ops.operation import (
        BackwardArguments,
        Inputs,
        Operation,
        OperatorArgument,
        Options,
        Pulled,
        Results,
        Saved,
        VmapInfo,
    )
    from householder.torch._ops.signature import Signature

TorchOperator = Any
"""An operator of ``torch.ops``, or its packet of overloads."""

_library: Any = torch.library.Library("householder", "DEF")  # type: ignore[no-untyped-call]

torch_library.register_kernels()
_core.share_tensor_types(Tensor, torch.nn.Parameter)


class Kernels:
    """The kernels of an operation, and its operators. Each kernel takes the flat arguments of its operator."""

    forward_op: TorchOperator
    backward_op: TorchOperator

    def __init__(self, operation: Operation, signature: Signature) -> None:
        self.operation, self.signature = operation, signature

    def define(
        self, forward_autograd: tuple[AnyFunction, AnyFunction], backward_autograd: tuple[AnyFunction, AnyFunction]
    ) -> None:
        """Define both operators. Each argument is a backward function and its setup, which direct calls use."""
        name, (forward, backward) = self.operation.name, self.signature.schemas()
        on_cuda = {"CUDA": self.forward_on_cuda}, {"CUDA": self.backward_on_cuda}
        kernels = [
            {"CPU": self.forward_on_cpu, "CompositeExplicitAutograd": self.forward_elsewhere},
            {"CPU": self.backward_on_cpu, "CompositeExplicitAutograd": self.backward_elsewhere},
        ]
        if self.operation.has_cuda:
            kernels = [{**some, **others} for some, others in zip(kernels, on_cuda, strict=True)]
        self.forward_op = _define(name, forward, kernels[0], self.forward_without_numbers, self.vmap, forward_autograd)
        self.backward_op = _define(
            f"{name}_backward",
            backward,
            kernels[1],
            self.backward_without_numbers,
            self.vmap_backward,
            backward_autograd,
        )

    # The forward operator.

    def forward_on_cpu(self, *arguments: OperatorArgument) -> Results:
        """Compute with the core, where there is no library without Python."""
        inputs, save, options = self.signature.split_forward(arguments)
        can_save = save and self.operation.empty_saved(inputs, options, True).numel() > 0
        follow_torch_threads()
        results, saved = self.operation.cpu_forward(self.operation.inputs_type(*ordinary(*inputs)), options, can_save)
        return self._returned(arguments, results, saved)

    def forward_on_cuda(self, *arguments: OperatorArgument) -> Results:
        """Compute with kernels for CUDA, if they can be used."""
        inputs, save, options = self.signature.split_forward(arguments)
        computed = launch(self.operation.cuda_graph_forward, inputs, options, save)
        if computed is NotImplemented:
            return self.forward_elsewhere(*arguments)
        return self._returned(arguments, *computed)

    def forward_elsewhere(self, *arguments: OperatorArgument) -> Results:
        """Compute in torch operations."""
        inputs, _, options = self.signature.split_forward(arguments)
        lacks_kernel(self.operation, inputs, options, EAGER)
        return self._returned(arguments, self._contiguous(self.operation.expression(LIBRARY, inputs, options)))

    def forward_without_numbers(self, *arguments: OperatorArgument) -> Results:
        """Allocate what the operator returns."""
        inputs, _, options = self.signature.split_forward(arguments)
        return self._returned(arguments, self.operation.empty_results(inputs, options))

    def decompose(self, *arguments: OperatorArgument) -> Results:
        """Compute in ATen's terms; calls with packed sequences and training steps stay one operator."""
        inputs, save, options = self.signature.split_forward(arguments)
        if save or any(t is not None for t in inputs[self.operation.differentiable :]):
            return NotImplemented
        return self._returned(arguments, self._contiguous(self.operation.expression(EXPORTED, inputs, options)))

    def _contiguous(self, results: Sequence[Tensor]) -> Results:
        laid_out = [result.contiguous() for result in results]
        return tuple(laid_out) if len(laid_out) > 1 else laid_out[0]

    def _returned(self, arguments: Sequence[OperatorArgument], results: Results, saved: Saved = None) -> Results:
        """Return what the operator returns: the results, and a tensor of what is saved."""
        if not self.signature.saves:
            return results
        tensor = None if saved is None else saved[self.signature.saved - 1]
        if tensor is None:
            inputs, save, options = self.signature.split_forward(arguments)
            tensor = self.operation.empty_saved(inputs, options, save)
        return (*results, tensor) if isinstance(results, tuple) else (results, tensor)

    def vmap(self, info: VmapInfo, in_dims: Sequence[OperatorArgument], *arguments: OperatorArgument) -> Results:
        """Call the operator for mapped arguments: nothing is saved, because the backward pass has a rule of its own."""
        (inputs, _, options), (dims, _, _) = map(self.signature.split_forward, (arguments, in_dims))
        saved: Tensor | None = None

        def call(inputs: Inputs) -> Results:
            nonlocal saved
            returned = self.forward_op(*self.signature.join_forward(inputs, False, options))
            results, saved = self.signature.split_results(returned)
            return results

        results = self.operation.vmap(call, info, dims, inputs, options)
        if not self.signature.saves:
            return results, 0
        several = results if isinstance(results, tuple) else (results,)
        return (*several, saved), (*[0] * len(several), None)

    # The backward operator.

    def backward_on_cpu(self, *arguments: OperatorArgument) -> Results:
        """Compute with the core, where there is no library without Python."""
        inputs, saved, grads, needs_grad, options = self._unchanged(arguments)
        of = self.operation
        inputs = of.inputs_type(*ordinary(*inputs))
        saved, grads = of.saved_type(*ordinary(*saved)), of.grads_type(*ordinary(*grads))
        follow_torch_threads()
        return self._gradients(of.cpu_backward(inputs, saved, grads, needs_grad, options))

    def backward_on_cuda(self, *arguments: OperatorArgument) -> Results:
        """Compute with kernels for CUDA, if they can be used."""
        gradients = launch(self.operation.cuda_backward, *self._unchanged(arguments))
        return self.backward_elsewhere(*arguments) if gradients is NotImplemented else self._gradients(gradients)

    def backward_elsewhere(self, *arguments: OperatorArgument) -> Results:
        """Compute in torch operations."""
        inputs, _, grads, needs_grad, options = self._unchanged(arguments)
        lacks_kernel(self.operation, inputs, options, EAGER)
        gradients = gradients_in_operations(self.operation, inputs, grads, needs_grad, options, below_autograd=True)
        return self._gradients([None if gradient is None else gradient.contiguous() for gradient in gradients])

    def backward_without_numbers(self, *arguments: OperatorArgument) -> Results:
        """Allocate the gradients."""
        inputs, _, _, needs_grad, _ = self.signature.split_backward(arguments)
        return self._gradients(room_for(inputs[: self.operation.differentiable], needs_grad))

    def _unchanged(self, arguments: Sequence[OperatorArgument]) -> BackwardArguments:
        named = self.signature.split_backward(arguments)
        self.operation.require_unchanged(named.inputs, named.saved, named.grads, named.options)
        return named

    def _gradients(self, gradients: Sequence[Tensor | int | None]) -> Results:
        return tuple(gradients) if self.operation.differentiable > 1 else gradients[0]

    def vmap_backward(
        self, info: VmapInfo, in_dims: Sequence[OperatorArgument], *arguments: OperatorArgument
    ) -> Pulled:
        """Call the operator for mapped arguments."""
        named, dims = map(self.signature.split_backward, (arguments, in_dims))

        def call(arguments: BackwardArguments) -> Results:
            gradients = self.backward_op(*self.signature.join_backward(arguments))
            return gradients if isinstance(gradients, tuple) else (gradients,)

        gradients = self.operation.vmap_backward(call, info, dims, named)
        out_dims = [None if gradient is None else 0 for gradient in gradients]
        return self._gradients(gradients), self._gradients(out_dims)

    # Counts, which a counter asks for with the arguments and the results of an operator.

    def flop_formulas(self) -> dict[TorchOperator, Callable[..., int]]:
        """Return the formula of each operator that is counted."""
        if not self.operation.has_flops:
            return {}
        packets = self.forward_op.overloadpacket, self.backward_op.overloadpacket
        return dict(zip(packets, (self.forward_flops, self.backward_flops), strict=True))

    def forward_flops(self, *arguments: OperatorArgument, out_val: Results) -> int:
        """Count the operations of the forward operator."""
        inputs, _, options = self.signature.split_forward(arguments)
        return self.operation.flops(inputs, options)

    def backward_flops(self, *arguments: OperatorArgument, out_val: Results) -> int:
        """Count the operations of the backward operator."""
        named = self.signature.split_backward(arguments)
        return self.operation.backward_flops(named.inputs, named.options)


def _define(
    name: str,
    schema: str,
    kernels: dict[str, AnyFunction],
    without_numbers: AnyFunction,
    vmap: AnyFunction,
    autograd: tuple[AnyFunction, AnyFunction],
) -> TorchOperator:
    """Define an operator, with a kernel for each key, unless the library without Python has one."""
    _library.define(schema, tags=[torch.Tag.pt2_compliant_tag])
    for key, kernel in kernels.items():
        if key != "CPU" or not torch_library.is_loaded():
            _library.impl(name, kernel, key)
    torch.library.register_fake(f"householder::{name}", without_numbers, lib=_library)
    torch.library.register_vmap(f"householder::{name}", of_any_size(vmap), lib=_library)
    backward, setup_context = autograd
    checked: Any = _Checked()
    torch.library.register_autograd(f"householder::{name}", backward, setup_context=setup_context, lib=checked)
    return getattr(torch.ops.householder, name).default


class _Checked:
    """The library. Its kernels refuse forward mode, which loses tangents, and raise the exceptions of Python."""

    def impl(self, name: str, kernel: AnyFunction, key: str, **options: Options) -> None:
        def checked(*arguments: OperatorArgument) -> Any:
            if is_forward_mode():
                raise RuntimeError(
                    f"torch.ops.householder.{name} has no forward mode: call the functions of householder.torch"
                )
            try:
                return kernel(*arguments)
            except RuntimeError as error:  # where Python raises what a signal's handler has raised
                raise torch_library.original(error) from None

        _library.impl(name, checked, key, **options)
