"""The operation ``rnn``: whole sequences ``h_t = phi(W h_{t-1} + V x_t + b)`` in one native call.

Shapes are canonical here: ``u (n, m)``, ``x (T, B, d)`` with ``h0 (B, n)`` or None, or, when ``batch_sizes``
is given, packed rows ``x (rows, d)`` with ``h0 (B, n)``. Results are all states, ``(T, B, n)`` or
``(rows, n)``, and a copy of each sequence's last one, ``(B, n)``: a loss on the last states alone then
never makes a gradient as large as the sequence. For many matrices at once, as under ``vmap``, every tensor but
``batch_sizes`` has the same leading axes.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from householder import _core, _validate
from householder._spec import NONLINEARITIES, reflection_count
from householder.torch._base import expressions
from householder.torch._base.dtypes import HALF_TYPES
from householder.torch._base.layout import contiguous
from householder.torch._ops.apply import application_flops, gradient_flops, method_of, unsupported_columns
from householder.torch._ops.library import all_leading, each, empty_kept, follow_torch_threads, on_cuda, room_for
from householder.torch._ops.operator import Operator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from householder._library import Library


class Inputs(NamedTuple):
    """The tensors, in the order of every signature."""

    u: Tensor
    x: Tensor
    h0: Tensor | None
    input_weight: Tensor | None
    bias: Tensor | None
    phases: Tensor | None
    nonlinearity_bias: Tensor | None
    tau: Tensor | None
    batch_sizes: Tensor | None

    def sizes(self) -> tuple[int, int, int, int, int]:
        """Return n, m, the width of x, the number of steps and the (largest) batch."""
        n, m = self.u.shape[-2:]
        if self.batch_sizes is None:
            steps, batch, d = self.x.shape[-3:]
            return n, m, d, steps, batch
        assert self.h0 is not None
        return n, m, self.x.shape[-1], self.batch_sizes.shape[0], self.h0.shape[-2]

    def rows(self) -> int:
        """Count the states of one matrix."""
        return self.x.shape[self.u.dim() - 2 : -1].numel()

    def is_default(self, shape: str) -> bool:
        """Return whether reflections are those of layers: trapezoidal, without ``tau``."""
        return _validate.is_default(self.tau, shape)

    def vectors(self, of_steps: Tensor) -> Tensor:
        """Lay out the vectors of all steps; the core accepts any strides between steps and between sequences."""
        at_distances = self.u.dim() == 2 and of_steps.dim() == 3 and of_steps.stride(2) == 1
        return of_steps if at_distances else contiguous(of_steps)


class Options(NamedTuple):
    """The options, in the order of every signature."""

    nonlinearity: str
    negative_slope: float
    transpose: bool
    reverse: bool
    shape: str
    method: str


DIFFERENTIABLE = len(Inputs._fields) - 1
"""All tensors but ``batch_sizes``."""


def reads_halves(x: Tensor) -> bool:
    """Return whether a sequence's inputs, states and their gradients stay of a half type, as CUDA kernels allow."""
    return x.is_cuda


def inputs_of(tensors: Any, options: Any) -> Inputs:
    """Name the tensors; direct calls of the operators check nothing before.

    Raises
    ------
    ValueError
        The sequences are packed, and the direction is the reverse.
    """
    inputs = Inputs._make(tensors)
    if options[3]:
        _validate.direction(options[3], inputs.batch_sizes)
    return inputs


def _compute(tensors: Any, options: Any, keep: bool) -> Any:
    follow_torch_threads()
    (u, x, h0, *_, batch_sizes), n = tensors, tensors[0].shape[-2]
    batch = (x if batch_sizes is None else h0).shape[-2]
    h, last = x.new_empty(*x.shape[:-1], n), x.new_empty(*u.shape[:-2], batch, n)
    kept = _core.rnn_forward(tensors, options, h, last, keep)
    return kept if kept is NotImplemented else ((h, last), (h, None), kept)


def _empty_tape(inputs: Inputs, options: Sequence[Any], keep: bool) -> Tensor:
    """Return a tensor of the shape of the one that the forward pass leaves to the backward pass."""
    named = Options._make(options)
    if not inputs.x.is_cuda:
        return empty_kept(inputs.x, keep)
    if not keep or not inputs.is_default(named.shape):
        return inputs.u.new_empty(0)
    return inputs.u.new_empty(on_cuda().tape_layout(inputs, named).shape)


def _differentiate(
    tensors: Any, states: Any, kept: _core.Kept | None, grads: Any, wanted: Sequence[bool], options: Any
) -> Any:
    follow_torch_threads()
    inputs, (h, _), (grad_h, grad_last) = inputs_of(tensors, options), states, grads
    if kept is None:  # hooks have replaced it; without it, some gradients would be rounded in another way
        found = _compute(tensors, options, True)
        if found is NotImplemented:
            return found
        kept = found[2]
    grad_h = None if grad_h is None else inputs.vectors(grad_h)
    grad_last = None if grad_last is None else contiguous(grad_last)
    gradients = room_for(tensors, wanted)
    done = _core.rnn_backward(inputs, options, h, grad_h, grad_last, gradients, kept)
    return done if done is NotImplemented else gradients


def require_unchanged(tensors: Any, states: Any, grads: Any, options: Any) -> None:
    """Refuse tensors replaced or converted since the forward pass, because kernels see only addresses."""
    inputs = Inputs._make(tensors)
    n, m, d, _, batch = inputs.sizes()
    many, kind, of_states, device = inputs.u.shape[:-2], inputs.u.dtype, inputs.x.dtype, inputs.u.device
    real, moduli = kind.to_real(), NONLINEARITIES[options[0]].moduli(n, kind.is_complex)
    of_weights = ((n, d), kind), ((n,), kind), ((n,), real), ((moduli,), real), ((m,), kind)
    for t, (shape, dtype) in zip(inputs[2:8], (((batch, n), of_states), *of_weights), strict=True):
        if t is not None and (t.shape != (*many, *shape) or t.dtype is not dtype or t.device != device):
            raise RuntimeError(
                f"a tensor is {t.dtype} of shape {tuple(t.shape)} on {t.device}, but in the forward pass it was "
                f"{dtype} of shape {(*many, *shape)} on {device}: change parameters after the backward pass"
            )
    narrow = kind is torch.float32 and of_states in HALF_TYPES
    of_steps = inputs.x, states[0], *grads
    alike = all(t is None or (t.dtype is of_states and t.device == device) for t in of_steps)
    if not alike or not (of_states is kind or narrow):
        raise RuntimeError(f"states or their gradients were not {kind} on {device} in the forward pass")


def _unsupported(tensors: Any, options: Any) -> str:
    return unsupported_columns(Inputs._make(tensors).tau, options[4])


def _expression(library: Library, tensors: Any, options: Any) -> Any:
    return expressions.rnn(*tensors, *options[:-1], library=library)


def _fake(tensors: Any, options: Any, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    inputs = inputs_of(tensors, options)
    u, x, (n, _, _, _, batch) = inputs.u, inputs.x, inputs.sizes()
    h, last = x.new_empty(*x.shape[:-1], n), x.new_empty(*u.shape[:-2], batch, n)
    return h, last, _empty_tape(inputs, options, keep)


def _vmap(op: Any, info: Any, in_dims: Any, *arguments: Any) -> Any:
    """Run more sequences of the same matrix, or a matrix for each of many; the forward pass then keeps no tape."""
    inputs, options = Inputs(*arguments[: DIFFERENTIABLE + 1]), arguments[DIFFERENTIABLE + 2 :]
    if all(dim is None for dim in (in_dims[0], *in_dims[3:])):
        h, last, tape = op(*_fold_inputs(info, inputs, in_dims), False, *options)
        return (_unfold(info, h), _unfold(info, last), tape), (0, 0, None)
    if _takes_one_matrix(inputs.u):
        return each(op, info, in_dims, *inputs, False, *options)
    return op(*_own(info, inputs, in_dims), False, *options), (0, 0, None)


def _backward_vmap(op: Any, info: Any, in_dims: Any, *arguments: Any) -> Any:
    first = DIFFERENTIABLE + 1
    inputs, (h, _, grad_h, grad_last, wanted), options = (
        Inputs(*arguments[:first]),
        arguments[first : first + 5],
        arguments[first + 5 :],
    )
    h_dim, _, *grad_dims = in_dims[first : first + 4]
    states = (h, grad_h, grad_last), (h_dim, *grad_dims)
    out_dims = tuple(0 if want else None for want in wanted)
    if all(dim is None for dim in (in_dims[0], *in_dims[3:first])) and not any((wanted[0], *wanted[3:])):
        h, *grads = _fold(info, *states)
        gradients = op(*_fold_inputs(info, inputs, in_dims), h, None, *grads, wanted, *options)
        return tuple(None if g is None else _unfold(info, g) for g in gradients), out_dims
    if _takes_one_matrix(inputs.u):
        return each(op, info, in_dims, *arguments)
    h, *grads = all_leading(info, *states)
    return op(*_own(info, inputs, in_dims), h, None, *grads, wanted, *options), out_dims


def _fold(info: Any, tensors: Any, dims: Any) -> list[Any]:
    """Make the mapped dimension part of the batch: ``(..., B, k)`` becomes ``(..., B * size, k)``."""
    return [None if t is None else t.movedim(0, -2).flatten(-3, -2) for t in all_leading(info, tensors, dims)]


def _fold_inputs(info: Any, inputs: Inputs, in_dims: Any) -> Inputs:
    sizes, (x, h0) = inputs.batch_sizes, _fold(info, inputs[1:3], in_dims[1:3])
    return inputs._replace(x=x, h0=h0, batch_sizes=None if sizes is None else sizes * info.batch_size)


def _unfold(info: Any, tensor: Tensor) -> Tensor:
    return torch.unflatten(tensor, -2, (tensor.shape[-2] // info.batch_size, info.batch_size)).movedim(-2, 0)


def _own(info: Any, inputs: Inputs, in_dims: Any) -> Inputs:
    """Give each index of the mapped dimension a matrix and parameters of its own."""
    return Inputs._make([*all_leading(info, inputs[:-1], in_dims[:DIFFERENTIABLE]), inputs.batch_sizes])


def _takes_one_matrix(u: Tensor) -> bool:
    """Return whether a call runs the sequences of one matrix only."""
    return u.is_cuda


def _flops(tensors: Any, options: Any) -> int:
    """Count the recurrence and the products with the inputs."""
    inputs, (*_, shape, method) = Inputs._make(tensors), options
    n, m, d, _, _ = inputs.sizes()
    rows, u, is_default = inputs.rows(), inputs.u, inputs.is_default(shape)
    method = "dense" if inputs.phases is not None else method_of(method, u, rows, 1, is_default)
    of_inputs = 0 if inputs.input_weight is None else 2 * rows * n * d
    k = reflection_count(n, m, ends_in_sign=is_default)
    return prod(u.shape[:-2]) * (of_inputs + application_flops(method, n, k, rows))


def _backward_flops(tensors: Any, options: Any) -> int:
    """Count the adjoint of each step, and the gradients of the parameters."""
    inputs = Inputs._make(tensors)
    n, m, d, _, _ = inputs.sizes()
    of_inputs = 0 if inputs.input_weight is None else 4 * inputs.rows() * n * d
    k = reflection_count(n, m, ends_in_sign=inputs.is_default(options[4]))
    return prod(inputs.u.shape[:-2]) * (of_inputs + gradient_flops(n, k, inputs.rows()))


operator = Operator(
    "rnn",
    tensors="Tensor u, Tensor x, " + ", ".join(f"Tensor? {name}" for name in Inputs._fields[2:]),
    options="str nonlinearity, float negative_slope, bool transpose, bool reverse, str shape, str method",
    states="Tensor h, Tensor? tape",
    grads="Tensor? grad_h, Tensor? grad_last",
    differentiable=DIFFERENTIABLE,
    compute=_compute,
    differentiate=_differentiate,
    require_unchanged=require_unchanged,
    keeps_on_cuda=True,
    unsupported=_unsupported,
    is_loop=True,
    expression=_expression,
    fake=_fake,
    vmap=_vmap,
    backward_vmap=_backward_vmap,
    flops=_flops,
    backward_flops=_backward_flops,
)
"""``operator(inputs, options)``."""
