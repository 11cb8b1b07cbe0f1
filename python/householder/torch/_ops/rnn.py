"""The operation ``rnn``: whole sequences ``h_t = phi(W h_{t-1} + V x_t + b)`` in one native call.

Shapes are canonical here: ``u (n, m)``, ``x (T, B, d)`` with ``h0 (B, n)`` or None, or, with ``batch_sizes``, packed
rows ``x (rows, d)`` with ``h0 (B, n)``. Results are all states, ``(T, B, n)`` or ``(rows, n)``, and a copy of each
sequence's last one, ``(B, n)``: a loss on the last states alone then never makes a gradient as large as the sequence.
For many matrices at once, as under ``vmap``, every tensor but ``batch_sizes`` has the same leading axes.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from householder import _core
from householder._base import validate
from householder._base.spec import NONLINEARITIES, reflection_count
from householder._base.types import Sequence
from householder.torch._base import expressions
from householder.torch._base.dtypes import HALF_TYPES
from householder.torch._base.layout import allocated, contiguous
from householder.torch._ops import flops
from householder.torch._ops.apply import method_of, require_kernel_columns, unsupported_columns
from householder.torch._ops.batching import all_leading, each, each_backward, leading
from householder.torch._ops.memory import empty_handle, room_for
from householder.torch._ops.operation import (
    BackwardArguments,
    Computed,
    NativeObject,
    Operation,
    OptionalTensor,
    Pulled,
    Results,
    VmapInfo,
)
from householder.torch._ops.operator import Operator

if TYPE_CHECKING:
    from collections.abc import Callable

    from householder._cuda.recurrence import KernelRun
    from householder._mathematics.library import Library

T = TypeVar("T")


class RnnInputs(NamedTuple, Generic[T]):
    """The tensors; or a flag or the mapped axis of each."""

    u: T
    x: T
    h0: T | None
    input_weight: T | None
    bias: T | None
    phases: T | None
    nonlinearity_bias: T | None
    tau: T | None
    batch_sizes: T | None


class RnnOptions(NamedTuple):
    """The arguments that are no tensors."""

    nonlinearity: str
    negative_slope: float
    transpose: bool
    reverse: bool
    form: str
    method: str


class RnnGradients(NamedTuple):
    """Gradients of the results."""

    h: Tensor | None
    last: Tensor | None


class RnnSaved(NamedTuple):
    """All states; the tensor that an operator returned; the object that an eager call saved."""

    h: Tensor
    saved: Tensor | None = None
    native: NativeObject = None


class Sizes(NamedTuple):
    """Sizes of a sequence; the batch is the largest of all steps."""

    n: int
    m: int
    d: int
    steps: int
    batch: int
    rows: int


def sizes_of(inputs: RnnInputs[Tensor]) -> Sizes:
    """Return the sizes of a sequence of one matrix; ``rows`` counts its states."""
    n, m = inputs.u.shape[-2:]
    rows = inputs.x.shape[inputs.u.dim() - 2 : -1].numel()
    if inputs.batch_sizes is None:
        steps, batch, d = inputs.x.shape[-3:]
        return Sizes(n, m, d, steps, batch, rows)
    assert inputs.h0 is not None
    return Sizes(n, m, inputs.x.shape[-1], inputs.batch_sizes.shape[0], inputs.h0.shape[-2], rows)


def reads_halves(x: Tensor) -> bool:
    """Return whether a sequence's inputs, states and their gradients stay of a half type, as CUDA kernels allow."""
    return x.is_cuda


def takes_one_matrix(u: Tensor) -> bool:
    """Return whether a call runs the sequences of one matrix only."""
    return u.is_cuda


class Rnn(Operation):
    """A recurrence; oracle: :func:`householder.reference.sequence.rnn`."""

    name = "rnn"
    inputs_type, options_type, grads_type, saved_type = RnnInputs, RnnOptions, RnnGradients, RnnSaved
    differentiable = len(RnnInputs._fields) - 1  # all tensors but batch_sizes
    is_loop = True
    has_cuda = True
    has_flops = True

    def expression(self, library: Library, inputs: RnnInputs[Tensor], options: RnnOptions) -> tuple[Tensor, Tensor]:
        nonlinearity, negative_slope, transpose, reverse, form, _ = options
        results: tuple[Tensor, Tensor] = expressions.rnn(
            *inputs, nonlinearity, negative_slope, transpose, reverse, form, library=library
        )
        return results

    def empty_results(self, inputs: RnnInputs[Tensor], options: RnnOptions) -> tuple[Tensor, Tensor]:
        u, x = inputs.u, inputs.x
        batch = (x if inputs.batch_sizes is None or inputs.h0 is None else inputs.h0).shape[-2]
        return x.new_empty(*x.shape[:-1], u.shape[-2]), x.new_empty(*u.shape[:-2], batch, u.shape[-2])

    def empty_saved(self, inputs: RnnInputs[Tensor], options: RnnOptions, save: bool) -> Tensor:
        if not inputs.x.is_cuda:
            return empty_handle(inputs.x, save)
        if not save or unsupported_columns(inputs.tau, options.form):
            return inputs.u.new_empty(0)
        from householder.torch._ops.saved_on_cuda import layout_of

        return inputs.u.new_empty(layout_of(inputs, options).shape)

    def cpu_forward(self, inputs: RnnInputs[Tensor], options: RnnOptions, save: bool) -> Computed:
        h, last = self.empty_results(inputs, options)
        native = _core.rnn_forward(inputs, options, h, last, save)
        return native if native is NotImplemented else ((h, last), RnnSaved(h, None, native))

    def cpu_backward(
        self,
        inputs: RnnInputs[Tensor],
        saved: RnnSaved,
        grads: RnnGradients,
        needs_grad: RnnInputs[bool],
        options: RnnOptions,
    ) -> Pulled:
        if options.reverse:  # direct calls of the operator leave it open
            validate.direction(options.reverse, inputs.batch_sizes)
        native, (grad_h, grad_last) = saved.native, grads
        if native is None:  # hooks have replaced it; without it, some gradients would be rounded in another way
            computed = self.cpu_forward(inputs, options, True)
            if computed is NotImplemented:
                return computed
            _, (*_, native) = computed
        if grad_h is not None and not (inputs.u.dim() == 2 and grad_h.dim() == 3 and grad_h.stride(2) == 1):
            grad_h = allocated(grad_h).contiguous()  # otherwise steps and sequences may lie at any distances
        if grad_last is not None:
            grad_last = contiguous(grad_last)
        gradients = room_for(inputs, needs_grad)[: self.differentiable]
        status = _core.rnn_backward(inputs, options, saved.h, grad_h, grad_last, gradients, native)
        return status if status is NotImplemented else gradients

    def cuda_forward(self, inputs: RnnInputs[Tensor], options: RnnOptions, save: bool) -> Computed:
        from householder._cuda import recurrence

        sequence, sizes = _for_kernels(inputs, options), sizes_of(inputs)
        room = None if save else recurrence.SavedByKernels()
        h, run, native = recurrence.forward(sequence, sizes.steps, sizes.batch, room)
        saved = RnnSaved(h, None, native if save and run is not None else None)
        return (h, _last_states(h, inputs, run, options.reverse)), saved

    def cuda_graph_forward(self, inputs: RnnInputs[Tensor], options: RnnOptions, save: bool) -> Computed:
        from householder._cuda import recurrence
        from householder.torch._ops.saved_on_cuda import layout_of

        sequence, sizes, layout = _for_kernels(inputs, options), sizes_of(inputs), layout_of(inputs, options)
        saved = inputs.u.new_empty(layout.shape if save else (0,))
        native = layout.arrays(saved) if save else recurrence.SavedByKernels()
        h, run, _ = recurrence.forward(sequence, sizes.steps, sizes.batch, native)
        if save and run is not None:
            layout.write(saved, run.form)
        return (h, _last_states(h, inputs, run, options.reverse)), RnnSaved(h, saved)

    def cuda_backward(
        self,
        inputs: RnnInputs[Tensor],
        saved: RnnSaved,
        grads: RnnGradients,
        needs_grad: RnnInputs[bool],
        options: RnnOptions,
    ) -> Pulled:
        from householder._cuda import recurrence
        from householder.torch._ops.saved_on_cuda import layout_of

        sequence, sizes = _for_kernels(inputs, options), sizes_of(inputs)
        native = saved.native or recurrence.SavedByKernels()
        if saved.saved is not None and sizes.steps and sizes.batch:
            layout = layout_of(inputs, options)
            native = layout.arrays(saved.saved)._replace(form=layout.form(saved.saved, inputs.u, inputs.phases))
        names = [name for name, is_needed in zip(RnnInputs._fields, needs_grad, strict=True) if is_needed]
        h, grad_h, grad_last = _contiguous(inputs.u, saved.h, *grads)
        gradients = recurrence.backward(sequence, sizes.steps, sizes.batch, h, native, grad_h, grad_last, names)
        return tuple(gradients)

    def reason_without_kernel(self, inputs: RnnInputs[Tensor], options: RnnOptions) -> str:
        return unsupported_columns(inputs.tau, options.form)

    def require_unchanged(
        self, inputs: RnnInputs[Tensor], saved: RnnSaved, grads: RnnGradients, options: RnnOptions
    ) -> None:
        n, m, d, _, batch, _ = sizes_of(inputs)
        batch_shape, kind, of_states, device = inputs.u.shape[:-2], inputs.u.dtype, inputs.x.dtype, inputs.u.device
        real, moduli = kind.to_real(), NONLINEARITIES[options.nonlinearity].moduli(n, kind.is_complex)
        expected = [
            (inputs.h0, (batch, n), of_states),
            (inputs.input_weight, (n, d), kind),
            (inputs.bias, (n,), kind),
            (inputs.phases, (n,), real),
            (inputs.nonlinearity_bias, (moduli,), real),
            (inputs.tau, (m,), kind),
        ]
        for t, shape, dtype in expected:
            if t is not None and (t.shape != (*batch_shape, *shape) or t.dtype is not dtype or t.device != device):
                raise RuntimeError(
                    f"a tensor is {t.dtype} of shape {tuple(t.shape)} on {t.device}, but in the forward pass it was "
                    f"{dtype} of shape {(*batch_shape, *shape)} on {device}: change parameters after the backward pass"
                )
        narrow = kind is torch.float32 and of_states in HALF_TYPES
        of_steps = inputs.x, saved.h, *grads
        alike = all(t is None or (t.dtype is of_states and t.device == device) for t in of_steps)
        if not alike or not (of_states is kind or narrow):
            raise RuntimeError(f"states or their gradients were not {kind} on {device} in the forward pass")

    def vmap(
        self,
        call: Callable[[RnnInputs[Tensor]], tuple[Tensor, Tensor]],
        info: VmapInfo,
        dims: RnnInputs[int | None],
        inputs: RnnInputs[Tensor],
        options: RnnOptions,
    ) -> Results:
        """Run more sequences of the same matrix, or a matrix for each index."""
        if _share_parameters(dims):
            return tuple(_apart(info, result) for result in call(_more_sequences(info, inputs, dims)))
        if takes_one_matrix(inputs.u):
            return each(call, info, dims, inputs)
        return call(_own_parameters(info, inputs, dims))

    def vmap_backward(
        self,
        call: Callable[[BackwardArguments], Pulled],
        info: VmapInfo,
        dims: BackwardArguments,
        arguments: BackwardArguments,
    ) -> Pulled:
        inputs, saved, grads, needs_grad, _ = arguments
        of_inputs: RnnInputs[int | None] = dims.inputs
        if _share_parameters(of_inputs) and not any(needs_grad._replace(x=False, h0=False)):
            folded = arguments._replace(
                inputs=_more_sequences(info, inputs, of_inputs),
                saved=RnnSaved(_together(info, saved.h, dims.saved.h)),
                grads=RnnGradients(*[_together(info, t, dim) for t, dim in zip(grads, dims.grads, strict=True)]),
            )
            return tuple(None if g is None else _apart(info, g) for g in call(folded))
        if takes_one_matrix(inputs.u):
            return each_backward(call, info, dims, arguments)
        return call(
            arguments._replace(
                inputs=_own_parameters(info, inputs, of_inputs),
                saved=RnnSaved(leading(info, saved.h, dims.saved.h)),
                grads=all_leading(info, grads, dims.grads),
            )
        )

    def flops(self, inputs: RnnInputs[Tensor], options: RnnOptions) -> int:
        """Count the recurrence and the products with the inputs."""
        n, _, d, _, _, rows = sizes_of(inputs)
        is_default = validate.is_default(inputs.tau, options.form)
        method = method_of(options.method, inputs.u, rows, 1, is_default) if inputs.phases is None else "dense"
        of_inputs = 0 if inputs.input_weight is None else 2 * rows * n * d
        of_steps = flops.application(method, n, self._reflections(inputs, options), rows)
        return prod(inputs.u.shape[:-2]) * (of_inputs + of_steps)

    def backward_flops(self, inputs: RnnInputs[Tensor], options: RnnOptions) -> int:
        """Count the adjoint of each step, and the gradients of the parameters."""
        n, _, d, _, _, rows = sizes_of(inputs)
        of_inputs = 0 if inputs.input_weight is None else 4 * rows * n * d
        of_steps = flops.gradient(n, self._reflections(inputs, options), rows)
        return prod(inputs.u.shape[:-2]) * (of_inputs + of_steps)

    def _reflections(self, inputs: RnnInputs[Tensor], options: RnnOptions) -> int:
        n, m = inputs.u.shape[-2:]
        return reflection_count(n, m, ends_in_sign=validate.is_default(inputs.tau, options.form))


# Rules of vmap.


def _share_parameters(dims: RnnInputs[int | None]) -> bool:
    """Return whether the inputs and initial states alone are mapped."""
    return all(dim is None for dim in dims._replace(x=None, h0=None))


def _together(info: VmapInfo, t: Tensor | None, dim: int | None) -> OptionalTensor:
    """Make the mapped axis part of the batch: ``(..., B, k)`` becomes ``(..., B * size, k)``."""
    mapped = leading(info, t, dim)
    return None if mapped is None else mapped.movedim(0, -2).flatten(-3, -2)


def _apart(info: VmapInfo, t: Tensor) -> Tensor:
    """Invert ``_together``, with the mapped axis first."""
    return torch.unflatten(t, -2, (t.shape[-2] // info.batch_size, info.batch_size)).movedim(-2, 0)


def _more_sequences(info: VmapInfo, inputs: RnnInputs[Tensor], dims: RnnInputs[int | None]) -> RnnInputs[Tensor]:
    """Run the mapped sequences as more sequences of one call."""
    x, h0 = _together(info, inputs.x, dims.x), _together(info, inputs.h0, dims.h0)
    batch_sizes = None if inputs.batch_sizes is None else inputs.batch_sizes * info.batch_size
    return inputs._replace(x=x, h0=h0, batch_sizes=batch_sizes)


def _own_parameters(info: VmapInfo, inputs: RnnInputs[Tensor], dims: RnnInputs[int | None]) -> RnnInputs[Tensor]:
    """Repeat what is not mapped: each index of the mapped axis has a matrix and parameters of its own."""
    mapped = all_leading(info, inputs._replace(batch_sizes=None), dims)
    return mapped._replace(batch_sizes=inputs.batch_sizes)


# Kernels for CUDA.


def _for_kernels(inputs: RnnInputs[Tensor], options: RnnOptions) -> Sequence:
    """Return a sequence that kernels take, laid out for them."""
    if options.reverse:
        validate.direction(options.reverse, inputs.batch_sizes)
    require_kernel_columns(inputs.tau, options.form)
    u, x, h0, input_weight, bias, phases, nonlinearity_bias, _ = _contiguous(inputs.u, *inputs[:-1])
    return Sequence(
        u=u,
        x=x,
        h0=h0,
        input_weight=input_weight,
        bias=bias,
        phases=phases,
        batch_sizes=None if inputs.batch_sizes is None else inputs.batch_sizes.numpy(),
        nonlinearity=options.nonlinearity,
        negative_slope=options.negative_slope,
        nonlinearity_bias=nonlinearity_bias,
        transpose=options.transpose,
        reverse=options.reverse,
        method=options.method,
    )


def _contiguous(like: Tensor, *tensors: Tensor | None) -> list[OptionalTensor]:
    from householder._cuda.library import library_of

    contiguous = library_of(like).contiguous
    return [None if t is None else contiguous(t) for t in tensors]


def _last_states(h: Tensor, inputs: RnnInputs[Tensor], run: KernelRun | None, reverse: bool) -> Tensor:
    """Copy the state in which each sequence ends."""
    if run is not None and run.packing is not None:
        return h.index_select(0, run.packing.last())
    if h.shape[0]:
        return h[0 if reverse else -1].clone()
    return h.new_zeros(h.shape[1:]) if inputs.h0 is None else inputs.h0.clone()


operator = Operator(Rnn())
"""``operator(RnnInputs(..), RnnOptions(..))``."""
