"""The operation ``apply``: ``W h`` (or ``W* h``) for many vectors and many matrices in one native call.

Shapes are canonical here: ``u (*c, n, m)``, ``h (*c, *r, n)`` and ``tau (*c, m)`` or None, one matrix for each index of
``c``. Columns of u are trapezoidal or full.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from householder import _core, plan
from householder._base import validate
from householder._base.spec import reflection_count
from householder.torch._base import expressions
from householder.torch._base.layout import contiguous
from householder.torch._ops import flops
from householder.torch._ops.batching import all_leading
from householder.torch._ops.memory import empty_handle, require_dtype
from householder.torch._ops.operation import Computed, NativeObject, Operation, Pulled, VmapInfo
from householder.torch._ops.operator import Operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from householder._mathematics.library import Library

T = TypeVar("T")


class ApplyInputs(NamedTuple, Generic[T]):
    """The tensors; or a flag or the mapped axis of each."""

    u: T
    h: T
    tau: T | None


class ApplyOptions(NamedTuple):
    """The arguments that are no tensors."""

    transpose: bool
    method: str
    form: str


class ApplyGradients(NamedTuple):
    """Gradients of the results."""

    c: Tensor


class ApplySaved(NamedTuple):
    """Factors or ``W``: in an object of the core, or the form of ``u`` on CUDA."""

    saved: Tensor | None = None
    native: NativeObject = None


class Apply(Operation):
    """``W h``; oracle: :func:`householder.reference.forward`."""

    name = "apply"
    inputs_type, options_type, grads_type, saved_type = ApplyInputs, ApplyOptions, ApplyGradients, ApplySaved
    differentiable = 3
    is_linear = True
    has_cuda = True
    has_flops = True

    def expression(self, library: Library, inputs: ApplyInputs[Tensor], options: ApplyOptions) -> tuple[Tensor]:
        (u, h, tau), (transpose, _, form) = inputs, options
        return (expressions.apply(u, h, transpose, tau, form, library=library),)

    def empty_results(self, inputs: ApplyInputs[Tensor], options: ApplyOptions) -> Tensor:
        return inputs.h.new_empty(inputs.h.shape)

    def empty_saved(self, inputs: ApplyInputs[Tensor], options: ApplyOptions, save: bool) -> Tensor:
        return empty_handle(inputs.h, save)

    def adjoint(self, options: ApplyOptions) -> ApplyOptions:
        return options._replace(transpose=not options.transpose)

    def cpu_forward(self, inputs: ApplyInputs[Tensor], options: ApplyOptions, save: bool) -> Computed:
        (u, h, tau), (transpose, method, form) = inputs, options
        c = torch.empty_like(h)
        native = _core.forward(u, h, c, None, transpose, method, save, form, tau)
        return native if native is NotImplemented else (c, ApplySaved(None, native))

    def cpu_backward(
        self,
        inputs: ApplyInputs[Tensor],
        saved: ApplySaved,
        grads: ApplyGradients,
        needs_grad: ApplyInputs[bool],
        options: ApplyOptions,
    ) -> Pulled:
        (u, h, tau), (transpose, method, form) = inputs, options
        grad_u = torch.empty_like(u) if needs_grad.u else None
        grad_h = torch.empty_like(h) if needs_grad.h else None
        grad_tau = torch.empty_like(tau) if needs_grad.tau and tau is not None else None
        room, grad_c = (grad_u, grad_h, None, grad_tau), contiguous(grads.c)
        status = _core.backward(u, h, grad_c, room, None, transpose, method, saved.native, form, tau)
        return status if status is NotImplemented else (grad_u, grad_h, grad_tau)

    def cuda_forward(self, inputs: ApplyInputs[Tensor], options: ApplyOptions, save: bool) -> Computed:
        from householder._cuda import application

        require_kernel_columns(inputs.tau, options.form)
        matrices, rows = application.canonical(inputs.u, inputs.h)
        c, form = application.forward(matrices, rows, None, options.transpose, options.method)
        return c.reshape(inputs.h.shape).contiguous(), ApplySaved(None, form)

    def cuda_backward(
        self,
        inputs: ApplyInputs[Tensor],
        saved: ApplySaved,
        grads: ApplyGradients,
        needs_grad: ApplyInputs[bool],
        options: ApplyOptions,
    ) -> Pulled:
        from householder._cuda import application

        require_kernel_columns(inputs.tau, options.form)
        u, h, _ = inputs
        matrices, rows, of_rows = application.canonical(u, h, grads.c)
        transpose, method, form = options.transpose, options.method, saved.native
        grad_u, grad_h, _ = application.backward(
            matrices, rows, of_rows, None, transpose, method, needs_h=needs_grad.h, form=form
        )
        return (
            grad_u.reshape(u.shape).contiguous() if needs_grad.u else None,
            grad_h.reshape(h.shape).contiguous() if needs_grad.h else None,
            None,
        )

    def reason_without_kernel(self, inputs: ApplyInputs[Tensor], options: ApplyOptions) -> str:
        return unsupported_columns(inputs.tau, options.form)

    def require_unchanged(
        self, inputs: ApplyInputs[Tensor], saved: ApplySaved, grads: ApplyGradients, options: ApplyOptions
    ) -> None:
        (u, h, tau), (grad_c,) = inputs, grads
        require_dtype(h, u, tau, grad_c)
        if grad_c.shape != h.shape or not u.device == h.device == grad_c.device:
            raise ValueError(
                f"grad_c has shape {tuple(grad_c.shape)} on {grad_c.device}, "
                f"expected {tuple(h.shape)} on {u.device} as h"
            )

    def vmap(
        self,
        call: Callable[[ApplyInputs[Tensor]], Tensor],
        info: VmapInfo,
        dims: ApplyInputs[int | None],
        inputs: ApplyInputs[Tensor],
        options: ApplyOptions,
    ) -> Tensor:
        if dims.u is None and dims.tau is None:  # more rows for the same matrices
            assert dims.h is not None
            rows = inputs.u.dim() - 2
            return call(inputs._replace(h=inputs.h.movedim(dims.h, rows))).movedim(rows, 0)
        return call(all_leading(info, inputs, dims))

    def flops(self, inputs: ApplyInputs[Tensor], options: ApplyOptions) -> int:
        matrices, n, k, rows = self._sizes(inputs, options)
        method = method_of(options.method, inputs.u, rows, None, validate.is_default(inputs.tau, options.form))
        return matrices * flops.application(method, n, k, rows)

    def backward_flops(self, inputs: ApplyInputs[Tensor], options: ApplyOptions) -> int:
        matrices, n, k, rows = self._sizes(inputs, options)
        return matrices * flops.gradient(n, k, rows)

    def _sizes(self, inputs: ApplyInputs[Tensor], options: ApplyOptions) -> tuple[int, int, int, int]:
        """Return the number of matrices, n, the number of reflections, and the rows of each matrix."""
        n, m = inputs.u.shape[-2:]
        matrices = prod(inputs.u.shape[:-2])
        k = reflection_count(n, m, ends_in_sign=validate.is_default(inputs.tau, options.form))
        return matrices, n, k, inputs.h.numel() // (n * matrices) if matrices else 0


def unsupported_columns(tau: Tensor | None, form: str) -> str:
    """Return why kernels for other devices cannot take such columns, or ""."""
    return "" if validate.is_default(tau, form) else "kernels take trapezoidal columns without tau"


def require_kernel_columns(tau: Tensor | None, form: str) -> None:
    """Refuse columns that kernels for CUDA do not take.

    Raises
    ------
    UnusableError
        Columns are full, or have ``tau``.
    """
    from householder._cuda.verdicts import UnusableError

    if reason := unsupported_columns(tau, form):
        raise UnusableError(reason)


def method_of(method: str, u: Tensor, rows: int, steps: int | None, is_default: bool) -> str:
    """Return the method that "auto" takes; that of full columns, or with ``tau``, counts as the compact WY form."""
    if method != "auto" or not rows:
        return method
    n, m = u.shape[-2:]
    return plan(n, m, rows, steps, "complex64" if u.is_complex() else "float32").method if is_default else "wy"


operator = Operator(Apply())
"""``operator(ApplyInputs(u, h, tau), ApplyOptions(transpose, method, form))``."""
