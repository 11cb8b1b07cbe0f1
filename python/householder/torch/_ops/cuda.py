"""What the operators do with CUDA tensors: matrix products on torch's current stream, and the kernels of ``cuda/``.

No copies, no waiting for the device, memory from torch's cache; :mod:`householder._cuda` computes.
"""

from __future__ import annotations

from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from householder import _notices
from householder._cuda import algebra, application, kernels, recurrence
from householder._cuda.library import library_of
from householder._cuda.packing import Packing
from householder._cuda.recurrence import Kept, Recurrence
from householder._cuda.verdicts import UnusableError
from householder._types import Sequence
from householder.torch._base import autocast
from householder.torch._ops.apply import unsupported_columns
from householder.torch._ops.cuda_tape import tape_layout
from householder.torch._ops.library import empty_kept
from householder.torch._ops.rnn import DIFFERENTIABLE, Inputs, Options, inputs_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from householder._cuda.algebra import Form


def _with_kernels(function: Callable[..., Any]) -> Callable[..., Any]:
    """Launch on torch's stream, below autograd and autocast; ``NotImplemented`` where kernels cannot be used."""

    @wraps(function)
    def kernel(tensors: Any, *arguments: Any) -> Any:
        u = tensors[0]
        if has_kernels(u.device):
            with suppress(UnusableError), torch.no_grad(), autocast.off(u.device), library_of(u).current(u):
                return function(tensors, *arguments)
        return NotImplemented

    return kernel


def has_kernels(where: torch.device) -> bool:
    """Return whether a CUDA device can use kernels at all, and say why if it cannot."""
    if _notices.kernel_mode() == "off":
        return False
    if torch.version.hip is not None:
        _notices.warn_once(str(where), "there are kernels for CUDA but not for ROCm")
        return False
    if reason := kernels.missing():
        _notices.warn_once(str(where), reason)
    return not reason


@_with_kernels
def apply_keeping(tensors: Any, options: Any, _: bool) -> Any:
    """Return ``W h`` or ``W* h``, no state, and the form of u for the backward pass."""
    (u, h, tau), (transpose, method, shape) = tensors, options
    _require_default(tau, shape)
    matrices, rows = application.canonical(u, h)
    c, form = application.forward(matrices, rows, None, transpose, method)
    return c.reshape(h.shape).contiguous(), (None,), form


@_with_kernels
def apply_gradients(tensors: Any, _: Any, form: Form | None, grads: Any, wanted: Any, options: Any) -> Any:
    """Return the wanted gradients."""
    (u, h, tau), (grad_c,), (transpose, method, shape) = tensors, grads, options
    _require_default(tau, shape)
    matrices, rows, grads = application.canonical(u, h, grad_c)
    want_u, want_h, _ = wanted
    grad_u, grad_h, _ = application.backward(matrices, rows, grads, None, transpose, method, want_h=want_h, form=form)
    return (
        grad_u.reshape(u.shape).contiguous() if want_u else None,
        grad_h.reshape(h.shape).contiguous() if want_h else None,
        None,
    )


def apply(tensors: Any, options: Any, _: bool) -> Any:
    """Return ``W h`` or ``W* h``, and an empty tensor, because nothing is kept."""
    found = apply_keeping(tensors, options, False)
    return found if found is NotImplemented else (found[0], empty_kept(tensors[0], False))


def apply_backward(tensors: Any, _: Any, grads: Any, wanted: Any, options: Any) -> Any:
    """Return the wanted gradients."""
    return apply_gradients(tensors, (), None, grads, wanted, options)


def _require_default(tau: Tensor | None, shape: str) -> None:
    """Refuse columns that kernels do not take.

    Raises
    ------
    UnusableError
        Columns are full, or ``tau`` is given.
    """
    if reason := unsupported_columns(tau, shape):
        raise UnusableError(reason)


@_with_kernels
def matrix(tensors: Any, _: Any, __: bool) -> tuple[Tensor, Tensor]:
    """Return ``W`` itself, and an empty tensor, because nothing is kept."""
    return algebra.matrix(algebra.form(tensors[0])).contiguous(), empty_kept(tensors[0], False)


@_with_kernels
def matrix_backward(tensors: Any, _: Any, grads: Any, wanted: Any, __: Any) -> Any:
    """Return the gradient of ``u``: that of ``W`` applied to the identity."""
    (u,), (grad_w,) = tensors, grads
    n = u.shape[-2]
    eye = torch.eye(n, dtype=u.dtype, device=u.device).expand(*u.shape[:-2], n, n)
    options = False, "auto", "trapezoidal"
    found = apply_gradients((u, eye, None), (), None, (grad_w.mT,), (*wanted, False, False), options)
    return found if found is NotImplemented else found[:1]


@_with_kernels
def rnn_keeping(tensors: Any, options: Any, keep: bool) -> Any:
    """Return all states and a copy of the last ones, the states again, and what the backward pass can use."""
    inputs, options = _kernel_arguments(tensors, options)
    sequence, (steps, batch) = _sequence(inputs, options), inputs.sizes()[3:]
    h, run, kept = recurrence.forward(sequence, steps, batch, None if keep else Kept())
    return (h, _last_states(h, inputs, run, options.reverse)), (h, None), kept if keep and run is not None else None


@_with_kernels
def rnn(tensors: Any, options: Any, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return all states, a copy of the last ones and what the backward pass can use, as a tensor."""
    inputs, options = _kernel_arguments(tensors, options)
    sequence, (steps, batch) = _sequence(inputs, options), inputs.sizes()[3:]
    layout = tape_layout(inputs, options)
    tape = inputs.u.new_empty(layout.shape if keep else (0,))
    h, run, _ = recurrence.forward(sequence, steps, batch, layout.kept(tape) if keep else Kept())
    if keep and run is not None:
        layout.write(tape, run.form)
    return h, _last_states(h, inputs, run, options.reverse), tape


@_with_kernels
def rnn_gradients(tensors: Any, states: Any, kept: Kept | None, grads: Any, wanted: Any, options: Any) -> Any:
    """Return the wanted gradients."""
    inputs, options = _kernel_arguments(tensors, options)
    sequence, (steps, batch) = _sequence(inputs, options), inputs.sizes()[3:]
    names = [name for name, want in zip(Inputs._fields, wanted, strict=False) if want]
    h, grad_h, grad_last = (_contiguous(t) for t in (states[0], *grads))
    found = recurrence.backward(sequence, steps, batch, h, kept or Kept(), grad_h, grad_last, names)
    return tuple(getattr(found, name) for name in Inputs._fields[:DIFFERENTIABLE])


@_with_kernels
def rnn_backward(tensors: Any, states: Any, grads: Any, wanted: Any, options: Any) -> Any:
    """Return the wanted gradients."""
    inputs, named = _kernel_arguments(tensors, options)
    kept, tape, (steps, batch) = Kept(), states[1], inputs.sizes()[3:]
    if tape is not None and steps and batch:
        layout = tape_layout(inputs, named)
        kept = layout.kept(tape)._replace(form=layout.form(tape, inputs.u, inputs.phases))
    return rnn_gradients(tensors, states, kept, grads, wanted, options)


def packed_reversal(batch_sizes: Tensor, like: Tensor) -> Tensor | None:
    """Return the row that each packed row becomes when every sequence is reversed in its own length.

    None where there are no kernels for it.
    """
    if has_kernels(like.device):
        library = library_of(like)
        with suppress(UnusableError), library.current(like):
            rows: Tensor = Packing(library, batch_sizes.numpy(), like).reversal()
            return rows
    return None


def _kernel_arguments(tensors: Any, options: Any) -> tuple[Inputs, Options]:
    """Name the arguments of a sequence that kernels take."""
    inputs, named = inputs_of(tensors, options), Options._make(options)
    _require_default(inputs.tau, named.shape)
    return inputs, named


def _sequence(inputs: Inputs, options: Options) -> Sequence:
    u, x, h0, input_weight, bias, phases, nonlinearity_bias, _ = map(_contiguous, inputs[:-1])
    sizes = None if inputs.batch_sizes is None else inputs.batch_sizes.numpy()
    nonlinearity, negative_slope, transpose, reverse, _, method = options
    parameters = input_weight, bias, phases
    how = nonlinearity, negative_slope, nonlinearity_bias, transpose, reverse, method
    given: Any = u, x, h0, *parameters, sizes, *how
    return Sequence(*given)


def _contiguous(tensor: Tensor | None) -> Any:
    return None if tensor is None else library_of(tensor).contiguous(tensor)


def _last_states(h: Tensor, inputs: Inputs, run: Recurrence | None, reverse: bool) -> Tensor:
    """Copy the state in which each sequence ends."""
    if run is not None and run.packing is not None:
        return h.index_select(0, run.packing.last())
    if len(h):
        return h[0 if reverse else -1].clone()
    return h.new_zeros(h.shape[1:]) if inputs.h0 is None else inputs.h0.clone()
