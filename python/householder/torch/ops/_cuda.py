"""What the operators do with CUDA tensors: matrix products on torch's current stream, and the kernels of ``cuda/``.

No copies, no waiting for the device, memory from torch's cache; :mod:`householder._cuda` computes.
"""

from __future__ import annotations

from contextlib import suppress
from functools import wraps
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from householder import _notices, _validate
from householder._cuda import algebra, application, kernels, recurrence
from householder._cuda.library import library_of
from householder._cuda.packing import Packing
from householder._cuda.recurrence import Kept, Recurrence
from householder._cuda.verdicts import UnusableError
from householder._types import Sequence
from householder.torch import _autocast
from householder.torch.ops import _devices
from householder.torch.ops._cuda_tape import Layout, tape_layout
from householder.torch.ops._library import require_alike
from householder.torch.ops._sequence import DIFFERENTIABLE, Inputs, Options, split

if TYPE_CHECKING:
    from collections.abc import Callable

    from householder._cuda.algebra import Form


def _with_kernels(otherwise: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run below autograd and autocast, which have run before. Where kernels cannot be used, call ``otherwise``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def kernel(*arguments: Any) -> Any:
            where = arguments[0].device
            if has_kernels(where):
                with suppress(UnusableError), torch.no_grad(), _autocast.off(where):
                    return function(*arguments)
            return otherwise(*arguments)

        return kernel

    return decorate


def _ask_the_dispatcher(*_: Any) -> Any:
    return NotImplemented


def has_kernels(where: torch.device) -> bool:
    """Tell whether a CUDA device can use kernels at all, and say why if it cannot."""
    if _notices.asked() == "off":
        return False
    if torch.version.hip is not None:
        _notices.say(str(where), "there are kernels for CUDA but not for ROCm")
        return False
    if reason := kernels.missing():
        _notices.say(str(where), reason)
    return not reason


def _canonical(u: Tensor, *vectors: Tensor) -> list[Tensor]:
    """``u (n, m)`` with rows ``(r, n)``, or ``u (c, n, m)`` with rows ``(c, r, n)``."""
    *many, n, m = u.shape
    rows = vectors[0].shape[len(many) : -1].numel()
    shape = (rows, n) if u.dim() == 2 else (prod(many), rows, n)
    matrices = u if u.dim() == 2 else u.reshape(-1 if u.numel() else 0, n, m)
    return [matrices, *(a.reshape(shape) for a in vectors)]


@_with_kernels(_ask_the_dispatcher)
def apply_and_keep(u: Tensor, h: Tensor, tau: Tensor | None, transpose: bool, method: str, shape: str) -> Any:
    """``W h`` or ``W* h``, and the form of u for the backward pass, or ``NotImplemented``: ask the dispatcher."""
    _require_default(u, tau, shape)
    matrices, rows = _canonical(u, h)
    c, form = application.forward(matrices, rows, None, transpose, method)
    return c.reshape(h.shape).contiguous(), form


@_with_kernels(_ask_the_dispatcher)
def apply_gradients(
    u: Tensor,
    h: Tensor,
    tau: Tensor | None,
    grad_c: Tensor,
    wanted: Any,
    transpose: bool,
    method: str,
    shape: str,
    form: Form | None,
) -> Any:
    """Give the wanted gradients, or ``NotImplemented``: ask the dispatcher."""
    _require_default(u, tau, shape)
    matrices, rows, grads = _canonical(u, h, grad_c)
    want_u, want_h, _ = wanted
    grad_u, grad_h, _ = application.backward(matrices, rows, grads, None, transpose, method, want_h=want_h, form=form)
    return (
        grad_u.reshape(u.shape).contiguous() if want_u else None,
        grad_h.reshape(h.shape).contiguous() if want_h else None,
        None,
    )


def apply(*arguments: Any) -> Tensor:
    """``W h`` or ``W* h``."""
    found = apply_and_keep(*arguments)
    return _devices.apply(*arguments) if found is NotImplemented else found[0]


def apply_backward(*arguments: Any) -> tuple[Tensor | None, ...]:
    """Give the wanted gradients."""
    require_alike(*arguments[:4])
    found = apply_gradients(*arguments, None)
    return _devices.apply_backward(*arguments) if found is NotImplemented else found


def _require_default(u: Tensor, tau: Tensor | None, shape: str) -> None:
    """Refuse what kernels do not take, and say so once for each device.

    Raises
    ------
    UnusableError
        Columns are full, or ``tau`` is given.
    RuntimeError
        So it is, and ``HOUSEHOLDER_KERNELS`` is ``require``.
    """
    if not _validate.is_default(tau, shape):
        reason = "kernels take trapezoidal columns without tau"
        _notices.say(str(u.device), reason)
        raise UnusableError(reason)


@_with_kernels(_devices.matrix)
def matrix(u: Tensor) -> Tensor:
    """``W`` itself."""
    w: Tensor = algebra.matrix(algebra.form(u)).contiguous()
    return w


@_with_kernels(_devices.rnn)
def rnn(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """All states, a copy of the last ones and what the backward pass can use."""
    inputs, (with_tape,), options = _kernel_arguments(arguments)
    steps, batch = inputs.sizes()[3:]
    layout = _layout(inputs, options)
    tape = inputs.u.new_empty(layout.shape if with_tape else (0,))
    kept = layout.kept(tape) if with_tape else Kept()
    h, run = recurrence.forward(_sequence(inputs, options), steps, batch, kept)
    if with_tape and run is not None:
        layout.write(tape, run.form)
    return h, _last_states(h, inputs, run, options.reverse), tape


@_with_kernels(_devices.rnn_backward)
def rnn_backward(*arguments: Any) -> tuple[Tensor | None, ...]:
    """Gradients of the wanted arguments."""
    inputs, (h, tape, grad_h, grad_last, wanted), options = _kernel_arguments(arguments)
    inputs.require_as_before(options.nonlinearity, h, grad_h, grad_last)
    sequence = _sequence(inputs, options)
    steps, batch = inputs.sizes()[3:]
    kept, form = Kept(), None
    if tape is not None and steps and batch:
        layout = _layout(inputs, options)
        kept, form = layout.kept(tape), layout.form(tape, sequence.u, sequence.phases)
    names = [name for name, want in zip(Inputs._fields, wanted, strict=False) if want]
    h, grad_h, grad_last = (_contiguous(t) for t in (h, grad_h, grad_last))
    found = recurrence.backward(sequence, steps, batch, h, kept, grad_h, grad_last, names, form)
    return tuple(getattr(found, name) for name in Inputs._fields[:DIFFERENTIABLE])


def packed_reversal(batch_sizes: Tensor, like: Tensor) -> Tensor | None:
    """Give the row that each packed row becomes when every sequence is reversed in its own length.

    None where there are no kernels for it.
    """
    if has_kernels(like.device):
        with suppress(UnusableError):
            rows: Tensor = Packing(library_of(like), batch_sizes.numpy(), like).reversal()
            return rows
    return None


def _kernel_arguments(arguments: Any) -> Any:
    """Split the arguments of a sequence that kernels take."""
    inputs, between, options = split(arguments)
    _require_default(inputs.u, inputs.tau, options.shape)
    return inputs, between, options


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


def _layout(inputs: Inputs, options: Options) -> Layout:
    return tape_layout(inputs.u, inputs.x, inputs.phases is not None, options.nonlinearity, options.method)


def _last_states(h: Tensor, inputs: Inputs, run: Recurrence | None, reverse: bool) -> Tensor:
    """Copy the state in which each sequence ends."""
    if run is not None and run.packing is not None:
        return h.index_select(0, run.packing.last())
    if len(h):
        return h[0 if reverse else -1].clone()
    return h.new_zeros(h.shape[1:]) if inputs.h0 is None else inputs.h0.clone()
