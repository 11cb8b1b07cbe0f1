"""The operation ``matrix``: ``W`` itself for ``u (*c, n, m)``."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from householder import _core
from householder.torch._base import expressions
from householder.torch._base.layout import contiguous
from householder.torch._ops import flops
from householder.torch._ops.batching import all_leading
from householder.torch._ops.memory import empty_handle, require_dtype
from householder.torch._ops.operation import Computed, Operation, Pulled, VmapInfo
from householder.torch._ops.operator import Operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from householder._mathematics.library import Library

T = TypeVar("T")


class MatrixInputs(NamedTuple, Generic[T]):
    """The tensor; or a flag or its mapped axis."""

    u: T


class MatrixOptions(NamedTuple):
    """No arguments but the tensor."""


class MatrixGradients(NamedTuple):
    """The gradient of the result."""

    w: Tensor


class MatrixSaved(NamedTuple):
    """Factors of ``W``, in an object of the core."""

    saved: Tensor | None = None
    native: _core.Saved | None = None


class Matrix(Operation):
    """``W``; oracle: :func:`householder.reference.matrix`."""

    name = "matrix"
    inputs_type, options_type, grads_type, saved_type = MatrixInputs, MatrixOptions, MatrixGradients, MatrixSaved
    differentiable = 1
    has_cuda = True
    has_flops = True

    def expression(self, library: Library, inputs: MatrixInputs[Tensor], options: MatrixOptions) -> tuple[Tensor]:
        return (expressions.matrix(inputs.u, library=library),)

    def empty_results(self, inputs: MatrixInputs[Tensor], options: MatrixOptions) -> Tensor:
        return inputs.u.new_empty(*inputs.u.shape[:-1], inputs.u.shape[-2])

    def empty_saved(self, inputs: MatrixInputs[Tensor], options: MatrixOptions, save: bool) -> Tensor:
        return empty_handle(inputs.u, save)

    def cpu_forward(self, inputs: MatrixInputs[Tensor], options: MatrixOptions, save: bool) -> Computed:
        (u,) = inputs
        w = u.new_empty(*u.shape[:-1], u.shape[-2])
        native = _core.matrix(u, w, None, save)
        return native if native is NotImplemented else (w, MatrixSaved(None, native))

    def cpu_backward(
        self,
        inputs: MatrixInputs[Tensor],
        saved: MatrixSaved,
        grads: MatrixGradients,
        needs_grad: MatrixInputs[bool],
        options: MatrixOptions,
    ) -> Pulled:
        if not needs_grad.u:
            return (None,)
        grad_u = torch.empty_like(inputs.u)
        status = _core.matrix_backward(inputs.u, contiguous(grads.w), grad_u, saved.native)
        return status if status is NotImplemented else (grad_u,)

    def cuda_forward(self, inputs: MatrixInputs[Tensor], options: MatrixOptions, save: bool) -> Computed:
        from householder._cuda import algebra

        return algebra.matrix(algebra.form(inputs.u)).contiguous(), MatrixSaved()

    def cuda_backward(
        self,
        inputs: MatrixInputs[Tensor],
        saved: MatrixSaved,
        grads: MatrixGradients,
        needs_grad: MatrixInputs[bool],
        options: MatrixOptions,
    ) -> Pulled:
        """Return the gradient of ``W`` applied to the identity."""
        from householder._cuda import application

        (u,) = inputs
        n = u.shape[-2]
        eye = torch.eye(n, dtype=u.dtype, device=u.device).expand(*u.shape[:-2], n, n)
        matrices, rows, of_rows = application.canonical(u, eye, grads.w.mT)
        grad_u, _, _ = application.backward(matrices, rows, of_rows, None, False, "auto", needs_h=False, form=None)
        return (grad_u.reshape(u.shape).contiguous() if needs_grad.u else None,)

    def require_unchanged(
        self, inputs: MatrixInputs[Tensor], saved: MatrixSaved, grads: MatrixGradients, options: MatrixOptions
    ) -> None:
        require_dtype(inputs.u, grads.w)

    def vmap(
        self,
        call: Callable[[MatrixInputs[Tensor]], Tensor],
        info: VmapInfo,
        dims: MatrixInputs[int | None],
        inputs: MatrixInputs[Tensor],
        options: MatrixOptions,
    ) -> Tensor:
        return call(all_leading(info, inputs, dims))

    def flops(self, inputs: MatrixInputs[Tensor], options: MatrixOptions) -> int:
        matrices, n, k = self._sizes(inputs.u)
        return matrices * flops.forming(n, k)

    def backward_flops(self, inputs: MatrixInputs[Tensor], options: MatrixOptions) -> int:
        matrices, n, k = self._sizes(inputs.u)
        return matrices * flops.gradient(n, k, n)

    def _sizes(self, u: Tensor) -> tuple[int, int, int]:
        """Return the number of matrices, n, and the number of reflections."""
        n, m = u.shape[-2:]
        return prod(map(int, u.shape[:-2])), n, m - (m == n)


operator = Operator(Matrix())
"""``operator(MatrixInputs(u), MatrixOptions())``."""
