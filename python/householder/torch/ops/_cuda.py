"""What the operators do with CUDA tensors: matrix products on torch's current stream, and the kernels of ``cuda/``.

No copies, no waiting for the device, memory from torch's cache; :mod:`householder._cuda` computes.
"""

from __future__ import annotations

from functools import wraps
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from householder._cuda import algebra, application, recurrence
from householder._cuda.library import library_of
from householder._cuda.packing import Packing
from householder._cuda.recurrence import Kept, Recurrence
from householder._types import Sequence
from householder.torch.ops._apply import require_alike
from householder.torch.ops._cuda_tape import Layout, tape_layout
from householder.torch.ops._library import on_cuda
from householder.torch.ops._rnn import DIFFERENTIABLE, Inputs

if TYPE_CHECKING:
    from collections.abc import Callable


def _below(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a kernel below autograd and autocast, whose turn it was before: the operations inside are not theirs."""

    @wraps(function)
    def kernel(*arguments: Any) -> Any:
        with torch.no_grad(), torch.autocast(arguments[0].device.type, enabled=False):
            return function(*arguments)

    return kernel


def reads_halves(x: Tensor) -> bool:
    """Tell whether a sequence's inputs, states and their gradients stay of a half type: the kernels' affair."""
    return x.is_cuda


def _canonical(u: Tensor, *vectors: Tensor) -> list[Tensor]:
    """``u (n, m)`` with rows ``(r, n)``, or ``u (c, n, m)`` with rows ``(c, r, n)``."""
    *many, n, m = u.shape
    rows = vectors[0].shape[len(many) : -1].numel()
    shape = (rows, n) if u.dim() == 2 else (prod(many), rows, n)
    matrices = u if u.dim() == 2 else u.reshape(-1 if u.numel() else 0, n, m)
    return [matrices, *(a.reshape(shape) for a in vectors)]


@_below
def apply(u: Tensor, h: Tensor, transpose: bool, method: str) -> Tensor:
    """``W h`` or ``W* h``."""
    matrices, rows = _canonical(u, h)
    c: Tensor = application.forward(matrices, rows, None, transpose, method)
    return c.reshape(h.shape).contiguous()


@_below
def apply_backward(
    u: Tensor, h: Tensor, grad_c: Tensor, want_h: bool, transpose: bool, method: str
) -> tuple[Tensor, Tensor | None]:
    """Gradients of u and, if wanted, of h."""
    require_alike(u, h, grad_c)
    matrices, rows, grads = _canonical(u, h, grad_c)
    grad_u, grad_h, _ = application.backward(matrices, rows, grads, None, transpose, method, want_h=want_h)
    grad_u = grad_u.reshape(u.shape).contiguous()
    return grad_u, grad_h.reshape(h.shape).contiguous() if want_h else None


@_below
def matrix(u: Tensor) -> Tensor:
    """``W`` itself."""
    w: Tensor = algebra.matrix(algebra.form(u)).contiguous()
    return w


@_below
def rnn(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """All states, a copy of the last ones and what the backward pass can use."""
    *tensors, nonlinearity, _, _, reverse, method, with_tape = arguments
    inputs = _in_order(Inputs(*tensors), reverse)
    steps, batch = inputs.sizes()[3:]
    sequence = _sequence((*inputs, *arguments[-6:-1]))
    layout = _layout(inputs, nonlinearity, method)
    tape = inputs.u.new_empty(layout.shape if with_tape else (0,))
    h, run = recurrence.forward(sequence, steps, batch, layout.kept(tape) if with_tape else Kept())
    if with_tape and run is not None:
        layout.write(tape, run.form)
    return _flipped(h, reverse), _last_states(h, inputs, run), tape


@_below
def rnn_backward(*arguments: Any) -> tuple[Tensor | None, ...]:
    """Gradients of the wanted arguments."""
    *tensors, h, tape, grad_h, grad_last, wanted = arguments[:-5]
    reverse = arguments[-2]
    inputs = _in_order(Inputs(*tensors), reverse)
    sequence = _sequence((*inputs, *arguments[-5:]))
    inputs.require_as_before(h, grad_h, grad_last)
    h, grad_h = (_flipped(t, reverse) for t in (h, grad_h))
    steps, batch = inputs.sizes()[3:]
    kept, form = Kept(), None
    if tape is not None and steps and batch:
        layout = _layout(inputs, sequence.nonlinearity, sequence.method)
        kept, form = layout.kept(tape), layout.form(tape, sequence.u, sequence.phases)
    names = [name for name, want in zip(Inputs._fields, wanted, strict=False) if want]
    h, grad_h, grad_last = (_contiguous(t) for t in (h, grad_h, grad_last))
    found = recurrence.backward(sequence, steps, batch, h, kept, grad_h, grad_last, names, form)
    if not steps and grad_last is not None and found.h0 is not None:
        found = found._replace(h0=grad_last.clone())  # no step: the last state is h0
    found = found._replace(x=_flipped(found.x, reverse))
    return tuple(getattr(found, name) for name in Inputs._fields[:DIFFERENTIABLE])


@torch.compiler.disable  # type: ignore[untyped-decorator]
def packed_reversal(batch_sizes: Tensor, like: Tensor) -> Tensor:
    """Give the row that each packed row becomes when every sequence is reversed in its own length."""
    rows: Tensor = Packing(library_of(like), batch_sizes.numpy(), like).reversal()
    return rows


def _in_order(inputs: Inputs, reverse: bool) -> Inputs:
    """Kernels run from the first row to the last."""
    return inputs._replace(x=inputs.x.flip(0)) if reverse else inputs


def _flipped(tensor: Any, reverse: bool) -> Any:
    return tensor.flip(0) if reverse and tensor is not None else tensor


def _sequence(arguments: Any) -> Sequence:
    *tensors, nonlinearity, negative_slope, transpose, _, method = arguments
    inputs = Inputs(*tensors)
    u, x, h0, input_weight, bias, phases, nonlinearity_bias = map(_contiguous, inputs[:-1])
    sizes = None if inputs.batch_sizes is None else inputs.batch_sizes.numpy()
    return Sequence(
        u, x, h0, input_weight, bias, phases, sizes, nonlinearity, negative_slope, nonlinearity_bias, transpose, method
    )


def _contiguous(tensor: Tensor | None) -> Any:
    return None if tensor is None else library_of(tensor).contiguous(tensor)


def _layout(inputs: Inputs, nonlinearity: str, method: str) -> Layout:
    return tape_layout(inputs.u, inputs.x, inputs.phases is not None, nonlinearity, method)


def _last_states(h: Tensor, inputs: Inputs, run: Recurrence | None) -> Tensor:
    """Copy the state in which each sequence ends."""
    if run is not None and run.packing is not None:
        return h.index_select(0, run.packing.last())
    if len(h):
        return h[-1].clone()
    return h.new_zeros(h.shape[1:]) if inputs.h0 is None else inputs.h0.clone()


for _name, _kernel in {
    "apply": apply,
    "apply_backward": apply_backward,
    "matrix": matrix,
    "rnn": rnn,
    "rnn_backward": rnn_backward,
}.items():
    on_cuda(_name, _kernel)
