"""The operation ``gated_norm``: root mean square norms of rows, times weights and an activation of gates.

Operands are ``x (N, W)`` and gates ``z (N, W)``, which may have half types, and ``weight (W,)`` in the type of the
computation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from householder import _core
from householder.torch._base import expressions
from householder.torch._ops.batching import each, each_backward
from householder.torch._ops.operator import Operator
from householder.torch._ops.rows import RowOperation

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from householder._mathematics.library import Library
    from householder.torch._ops.operation import BackwardArguments, OperatorArgument, Pulled, Results, VmapInfo

T = TypeVar("T")


class GatedNormInputs(NamedTuple, Generic[T]):
    """The tensors; or a flag or the mapped axis of each."""

    x: T
    z: T
    weight: T


class GatedNormOptions(NamedTuple):
    """The number that is added to a mean square, and whether gates pass through SiLU."""

    epsilon: float
    silu: bool


class GatedNormGradients(NamedTuple):
    """The gradient of the result."""

    y: Tensor


class GatedNorm(RowOperation):
    """Norms of rows with gates."""

    name = "gated_norm"
    inputs_type, options_type, grads_type = GatedNormInputs, GatedNormOptions, GatedNormGradients
    differentiable = 3
    core_forward = _core.gated_norm_forward
    core_backward = _core.gated_norm_backward

    def described(self, inputs: GatedNormInputs[Tensor], options: GatedNormOptions) -> tuple[OperatorArgument, ...]:
        return ((list(inputs.x.shape), *options),)

    def expression(self, library: Library, inputs: GatedNormInputs[Tensor], options: GatedNormOptions) -> tuple[Tensor]:
        return (expressions.gated_norm(*inputs, *options, library=library),)

    def reason_without_kernel(self, inputs: GatedNormInputs[Tensor], options: GatedNormOptions) -> str:
        return "gated norms have kernels for the CPU only"

    def vmap(
        self,
        call: Callable[[GatedNormInputs[Tensor]], Tensor],
        info: VmapInfo,
        dims: GatedNormInputs[int | None],
        inputs: GatedNormInputs[Tensor],
        options: GatedNormOptions,
    ) -> Results:
        return each(call, info, dims, inputs)

    def vmap_backward(
        self,
        call: Callable[[BackwardArguments], Pulled],
        info: VmapInfo,
        dims: BackwardArguments,
        arguments: BackwardArguments,
    ) -> Pulled:
        return each_backward(call, info, dims, arguments)


operator = Operator(GatedNorm())
"""``operator(GatedNormInputs(x, z, weight), GatedNormOptions(epsilon, silu))``."""
