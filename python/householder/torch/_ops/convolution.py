"""The operation ``causal_convolution``: each channel along time by itself, with SiLU if asked.

Operands are ``x (B, T, C)``, which may have a half type, and in the type of the computation ``weight (C, taps)`` and
``bias (C,)`` or None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from householder import _core
from householder.torch._base import expressions
from householder.torch._ops.batching import fold, unfold
from householder.torch._ops.operator import Operator
from householder.torch._ops.rows import RowOperation

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from householder._mathematics.library import Library
    from householder.torch._ops.operation import BackwardArguments, Pulled, VmapInfo

T = TypeVar("T")


class ConvolutionInputs(NamedTuple, Generic[T]):
    """The tensors; or a flag or the mapped axis of each."""

    x: T
    weight: T
    bias: T | None


class ConvolutionOptions(NamedTuple):
    """Whether outputs pass through SiLU."""

    silu: bool


class ConvolutionGradients(NamedTuple):
    """The gradient of the result."""

    y: Tensor


_CHANNELS = ConvolutionInputs(x=2, weight=0, bias=0)
"""The axes of channels."""


class CausalConvolution(RowOperation):
    """A short convolution along time."""

    name = "causal_convolution"
    inputs_type, options_type, grads_type = ConvolutionInputs, ConvolutionOptions, ConvolutionGradients
    differentiable = 3
    core_forward = _core.convolution_forward
    core_backward = _core.convolution_backward

    def described(self, inputs: ConvolutionInputs[Tensor], options: ConvolutionOptions) -> tuple[list[int], bool]:
        return [*inputs.x.shape, inputs.weight.shape[1]], options.silu

    def expression(
        self, library: Library, inputs: ConvolutionInputs[Tensor], options: ConvolutionOptions
    ) -> tuple[Tensor]:
        return (expressions.causal_convolution(*inputs, *options, library=library),)

    def reason_without_kernel(self, inputs: ConvolutionInputs[Tensor], options: ConvolutionOptions) -> str:
        return "the causal convolution has kernels for the CPU only"

    def vmap(
        self,
        call: Callable[[ConvolutionInputs[Tensor]], Tensor],
        info: VmapInfo,
        dims: ConvolutionInputs[int | None],
        inputs: ConvolutionInputs[Tensor],
        options: ConvolutionOptions,
    ) -> Tensor:
        y: Tensor
        (y,) = unfold(info, [call(fold(info, inputs, dims, _CHANNELS))], [_CHANNELS.x])
        return y

    def vmap_backward(
        self,
        call: Callable[[BackwardArguments], Pulled],
        info: VmapInfo,
        dims: BackwardArguments,
        arguments: BackwardArguments,
    ) -> Pulled:
        inputs = fold(info, arguments.inputs, dims.inputs, _CHANNELS)
        grads = fold(info, arguments.grads, dims.grads, [_CHANNELS.x])
        return unfold(info, call(arguments._replace(inputs=inputs, grads=grads)), _CHANNELS)


operator = Operator(CausalConvolution())
"""``operator(ConvolutionInputs(x, weight, bias), ConvolutionOptions(silu))``."""
