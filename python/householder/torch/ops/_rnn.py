"""The operator ``rnn``: whole sequences ``h_t = phi(W h_{t-1} + V x_t + b)`` in one native call.

Shapes are canonical here: ``u (n, m)``, ``x (T, B, d)`` with ``h0 (B, n)`` or None, or, when ``batch_sizes``
is given, packed rows ``x (rows, d)`` with ``h0 (B, n)``. Results are all states, ``(T, B, n)`` or
``(rows, n)``, and a copy of each sequence's last one, ``(B, n)``: a loss on the last states alone then
never makes a gradient as large as the sequence. For many matrices at once, as under ``vmap``, every tensor but
``batch_sizes`` has the same leading axes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from householder import _core
from householder.torch import expressions
from householder.torch._autograd import (
    RECENT,
    held,
    kept_in,
    needs_expression,
    needs_general_function,
    present,
    pull_back,
    spread,
)
from householder.torch.ops._cuda_tape import tape_layout
from householder.torch.ops._library import (
    CORE_NAME,
    core_name,
    follow_torch_threads,
    leading,
    operator,
    place,
    pointer,
    straight_to_cpu,
)
from householder.torch.ops._memory import contiguous, empty, empty_like

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Inputs(NamedTuple):
    """The tensors that every signature of this file begins with, in this order."""

    u: Tensor
    x: Tensor
    h0: Tensor | None
    input_weight: Tensor | None
    bias: Tensor | None
    phases: Tensor | None
    nonlinearity_bias: Tensor | None
    batch_sizes: Tensor | None

    def sizes(self) -> tuple[int, int, int, int, int]:
        """Give n, m, the width of x, the number of steps and the (largest) batch."""
        n, m = self.u.shape[-2:]
        if self.batch_sizes is None:
            steps, batch, d = self.x.shape[-3:]
            return n, m, d, steps, batch
        assert self.h0 is not None
        return n, m, self.x.shape[-1], self.batch_sizes.shape[0], self.h0.shape[-2]

    def rows(self) -> int:
        """Count the states of one matrix."""
        return self.x.shape[self.u.dim() - 2 : -1].numel()

    def readable(self) -> Inputs:
        """Lay tensors out as the core can read them, copying only those that are not yet."""
        u, x, *rest = self
        return Inputs(u.contiguous(), self.series(x), *(None if t is None else t.contiguous() for t in rest))

    def series(self, vectors: Tensor) -> Tensor:
        """Lay out the vectors of all steps: the core takes any distances between steps and between sequences."""
        at_distances = self.u.dim() == 2 and vectors.dim() == 3 and vectors.stride(2) == 1
        return vectors if at_distances else contiguous(vectors)

    def operands(self, *options: Any) -> list[Any]:
        """Give the arguments with which both functions of the core begin; they take ``reverse`` at their ends."""
        nonlinearity, negative_slope, transpose, _, method = options
        u, x, *tensors, nonlinearity_bias, batch_sizes = self
        packing = None if batch_sizes is None else batch_sizes.numpy()
        count, addresses = u.shape[:-2].numel(), [pointer(u), place(x), *map(pointer, tensors)]
        shared = [core_name(x, u), count, *self.sizes(), *addresses, packing]
        return [*shared, nonlinearity, negative_slope, pointer(nonlinearity_bias), transpose, method]

    def require_as_before(self, *states: Tensor | None) -> None:
        """Find what was exchanged or converted since the forward pass: kernels know addresses alone."""
        n, _, d, _, batch = self.sizes()
        many, kind, of_states, device = self.u.shape[:-2], self.u.dtype, self.x.dtype, self.u.device
        real, moduli = kind.to_real(), n if kind.is_complex else n // 2
        expected = ((batch, n), of_states), ((n, d), kind), ((n,), kind), ((n,), real), ((moduli,), real)
        for t, (shape, dtype) in zip(self[2:7], expected, strict=True):
            if t is not None and (t.shape != (*many, *shape) or t.dtype is not dtype or t.device != device):
                raise RuntimeError(
                    f"a tensor is {t.dtype} of shape {tuple(t.shape)} on {t.device}, but in the forward pass it was "
                    f"{dtype} of shape {(*many, *shape)} on {device}: change parameters after the backward pass"
                )
        narrow = kind is torch.float32 and of_states in (torch.bfloat16, torch.float16)
        alike = all(t is None or (t.dtype is of_states and t.device == device) for t in (self.x, *states))
        if not alike or not (of_states is kind or narrow):
            raise RuntimeError(f"states or their gradients were not {kind} on {device} in the forward pass")


DIFFERENTIABLE = len(Inputs._fields) - 1
SAVED = len(Inputs._fields) + 2  # and all states, and the tape
TENSORS = "Tensor u, Tensor x, " + ", ".join(f"Tensor? {name}" for name in Inputs._fields[2:])
OPTIONS = "str nonlinearity, float negative_slope, bool transpose, bool reverse, str method"


def rnn(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Run the recurrence differentiably, by the route that the active transforms allow.

    The arguments are the ``Inputs``, then the nonlinearity, its slope, ``transpose``, ``reverse`` and ``method``.
    """
    if needs_expression():
        return expressions.rnn(*arguments[:-1])
    function: Callable[..., Any] = _without_graph
    if needs_general_function():
        function = Rnn.apply
    elif torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in arguments[:DIFFERENTIABLE]):
        function = EagerRnn.apply
    states: tuple[Tensor, Tensor] = function(*arguments)
    return states


def _without_graph(*arguments: Any) -> tuple[Tensor, Tensor]:
    h, last, _ = forward_op(*arguments, False)
    return h, last


def _save(ctx: Any, arguments: Any, h: Tensor, tape: Tensor | None, kept: _core.Kept | None = None) -> None:
    tape = None if tape is None or not tape.numel() else tape
    ctx.save_for_backward(*Inputs(*arguments[:-5]), h, tape, *held(kept))
    ctx.options = arguments[-5:]


class Rnn(Function):
    """``rnn`` under compilation and the transforms of ``torch.func``; it keeps no tape."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        u: Tensor,
        x: Tensor,
        h0: Tensor | None,
        input_weight: Tensor | None,
        bias: Tensor | None,
        phases: Tensor | None,
        nonlinearity_bias: Tensor | None,
        batch_sizes: Tensor | None,
        nonlinearity: str,
        negative_slope: float,
        transpose: bool,
        reverse: bool,
        method: str,
    ) -> tuple[Tensor, Tensor]:
        # torch.compile before 2.7 counts the parameters to find out whether there is a context among them
        inputs = (u, x, h0, input_weight, bias, phases, nonlinearity_bias, batch_sizes)
        return _without_graph(*inputs, nonlinearity, negative_slope, transpose, reverse, method)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(not RECENT)
        _save(ctx, inputs, output[0], None)

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor | None, grad_last: Tensor | None) -> tuple[Any, ...]:
        wanted = ctx.needs_input_grad[:DIFFERENTIABLE]
        saved = ctx.saved_tensors
        tensors, holders = saved[:SAVED], saved[SAVED:]
        arguments = (*tensors, grad_h, grad_last, wanted, *ctx.options)
        if needs_expression():
            *primals, batch_sizes, _, _ = tensors
            gradients = spread(
                _by_expression(primals, batch_sizes, grad_h, grad_last, wanted, ctx.options[:-1]), wanted
            )
        elif torch.is_grad_enabled():
            gradients = spread(RnnBackward.apply(*arguments), wanted)
        else:
            backward: Any = backward_op
            if straight_to_cpu(*tensors, grad_h, grad_last):
                backward = partial(_backward_cpu, kept=kept_in(holders))
            gradients = backward(*arguments)
        return *gradients, *[None] * 6


class EagerRnn(Function):
    """``rnn`` in plain eager calls."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        kept = None
        if straight_to_cpu(*arguments[:-5]):
            h, last, tape, kept = _run_forward(*arguments, True, keep=True)
        else:
            h, last, tape = forward_op(*arguments, True)
        ctx.set_materialize_grads(False)
        _save(ctx, arguments, h, tape, kept)
        return h, last

    backward = Rnn.backward


class RnnBackward(Function):
    """The gradients of ``rnn`` as a differentiable function; its own backward runs step by step in torch."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        return present(backward_op(*arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        *tensors, _, _, grad_h, grad_last, ctx.wanted, nonlinearity, negative_slope, transpose, reverse, _ = inputs
        ctx.save_for_backward(*tensors, grad_h, grad_last)
        ctx.options = (nonlinearity, negative_slope, transpose, reverse)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        *primals, batch_sizes, grad_h, grad_last = ctx.saved_tensors

        def gradients(*arguments: Any) -> tuple[Tensor, ...]:
            *primals, grad_h, grad_last = arguments
            return _by_expression(primals, batch_sizes, grad_h, grad_last, ctx.wanted, ctx.options)

        needs = ctx.needs_input_grad
        wanted = (*needs[:DIFFERENTIABLE], *needs[DIFFERENTIABLE + 3 : DIFFERENTIABLE + 5])
        results = spread(pull_back(gradients, (*primals, grad_h, grad_last), cotangents, wanted), wanted)
        return *results[:-2], None, None, None, *results[-2:], *[None] * 6


def _by_expression(
    primals: Sequence[Any],
    batch_sizes: Tensor | None,
    grad_h: Tensor | None,
    grad_last: Tensor | None,
    wanted: Sequence[bool],
    options: tuple[Any, ...],
) -> tuple[Tensor, ...]:
    """Give the wanted gradients in torch operations."""
    grads = (grad_h, grad_last)

    def states(*primals: Any) -> tuple[Tensor, ...]:
        arguments: list[Any] = [*primals, batch_sizes, *options]
        both = expressions.rnn(*arguments)
        return tuple(state for state, grad in zip(both, grads, strict=True) if grad is not None)

    return pull_back(states, primals, present(grads), wanted)


def _tape_shape(inputs: Inputs, nonlinearity: str, method: str) -> tuple[int, ...]:
    """Tell how large is what the forward pass may leave to the backward pass."""
    (*many, n, m), rows, has_phases = inputs.u.shape, inputs.rows(), inputs.phases is not None
    if inputs.x.is_cuda:
        return tape_layout(inputs.u, inputs.x, has_phases, nonlinearity, method).shape
    width = _core.rnn_tape_width(CORE_NAME[inputs.x.dtype], n, m, rows, has_phases, nonlinearity, method)
    return *many, rows, width


def _forward_cpu(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _run_forward(*arguments)[:3]


def _run_forward(*arguments: Any, keep: bool = False) -> tuple[Tensor, Tensor, Tensor, _core.Kept | None]:
    follow_torch_threads()
    *tensors, nonlinearity, _, _, reverse, method, with_tape = arguments
    inputs = Inputs(*tensors).readable()
    dtype, many, (n, _, _, _, batch) = inputs.x.dtype, inputs.u.shape[:-2], inputs.sizes()
    h, last = empty((*inputs.x.shape[:-1], n), dtype), empty((*many, batch, n), dtype)
    tape = empty(_tape_shape(inputs, nonlinearity, method) if with_tape else (0,), dtype)
    operands = inputs.operands(*arguments[-6:-1])
    operands += [h.data_ptr(), tape.data_ptr() if tape.numel() else None, keep, last.data_ptr(), reverse]
    kept = _core.rnn_forward(*operands)
    return h, last, tape, kept


def _backward_cpu(*arguments: Any, kept: _core.Kept | None = None) -> tuple[Tensor | None, ...]:
    follow_torch_threads()
    *tensors, h, tape, grad_h, grad_last, wanted = arguments[:-5]
    inputs, options = Inputs(*tensors).readable(), arguments[-5:]
    inputs.require_as_before(h, grad_h, grad_last)
    h, grad_last = (None if t is None else t.contiguous() for t in (h, grad_last))
    grad_h = None if grad_h is None else inputs.series(grad_h)
    gradients = _backward_room(inputs, wanted, _room)
    if tape is None and options[0] == "oplu":  # the states do not tell which entries were exchanged
        _, _, tape = _forward_cpu(*inputs, *options, True)
    tape = tape if tape is not None and tape.numel() else None
    operands = inputs.operands(*options)
    operands += [pointer(h), pointer(tape), place(grad_h), *map(pointer, (grad_last, *gradients)), kept, options[3]]
    _core.rnn_backward(*operands)
    if inputs.sizes()[3] == 0 and grad_last is not None and gradients[2] is not None:
        gradients[2].copy_(grad_last)  # no step: the last state is h0
    return gradients


def _forward_fake(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    inputs, (nonlinearity, _, _, _, method, with_tape) = Inputs(*arguments[:-6]), arguments[-6:]
    x, (n, _, _, _, batch) = inputs.x, inputs.sizes()
    tape = inputs.u.new_empty(_tape_shape(inputs, nonlinearity, method) if with_tape else (0,))
    return x.new_empty(*x.shape[:-1], n), x.new_empty(*inputs.u.shape[:-2], batch, n), tape


def _backward_fake(*arguments: Any) -> tuple[Tensor | None, ...]:
    return _backward_room(arguments, arguments[-6], lambda t: t.new_empty(t.shape))


def _room(like: Tensor) -> Tensor:
    return empty_like(like) if like.is_contiguous() else empty(like.shape, like.dtype)


def _backward_room(inputs: Any, wanted: Any, like: Callable[[Tensor], Tensor]) -> tuple[Tensor | None, ...]:
    return tuple([like(t) if want else None for t, want in zip(inputs, wanted, strict=False)])


def _fold(info: Any, tensor: Any, dim: int | None) -> Any:
    """Make the mapped dimension part of the batch: ``(..., B, k)`` becomes ``(..., B * size, k)``."""
    return None if tensor is None else leading(info, tensor, dim).movedim(0, -2).flatten(-3, -2)


def _fold_inputs(info: Any, inputs: Inputs, in_dims: Any) -> Inputs:
    sizes = inputs.batch_sizes
    return inputs._replace(
        x=_fold(info, inputs.x, in_dims[1]),
        h0=_fold(info, inputs.h0, in_dims[2]),
        batch_sizes=None if sizes is None else sizes * info.batch_size,
    )


def _unfold(info: Any, tensor: Tensor) -> Tensor:
    return torch.unflatten(tensor, -2, (tensor.shape[-2] // info.batch_size, info.batch_size)).movedim(-2, 0)


def _all_leading(info: Any, tensors: Any, in_dims: Any) -> list[Any]:
    """Put the mapped dimension first in every tensor that is there."""
    return [None if t is None else leading(info, t, dim) for t, dim in zip(tensors, in_dims, strict=True)]


def _own(info: Any, inputs: Inputs, in_dims: Any) -> Inputs:
    """Give each index of the mapped dimension a matrix and parameters of its own."""
    return Inputs._make([*_all_leading(info, inputs[:-1], in_dims[:DIFFERENTIABLE]), inputs.batch_sizes])


def _takes_one_matrix(u: Tensor) -> bool:
    """Tell whether a call runs the sequences of one matrix only."""
    return u.is_cuda


def _each(info: Any, in_dims: Any, arguments: Any, op: Any) -> tuple[Any, Any]:
    """Call the operator once for each index of the mapped dimension, and stack the results."""

    def at(i: int) -> list[Any]:
        mapped = (
            (a, isinstance(a, Tensor) and dim is not None, dim) for a, dim in zip(arguments, in_dims, strict=True)
        )
        return [a.select(dim, i) if is_mapped else a for a, is_mapped, dim in mapped]

    columns = zip(*(op(*at(i)) for i in range(info.batch_size)), strict=True)
    results = tuple(None if column[0] is None else torch.stack(column) for column in columns)
    return results, tuple(None if result is None else 0 for result in results)


def _forward_vmap(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    inputs = Inputs(*arguments[:-6])
    if all(dim is None for dim in (in_dims[0], *in_dims[3:])):
        h, last, tape = forward_op(*_fold_inputs(info, inputs, in_dims), *arguments[-6:-1], False)
        return (_unfold(info, h), _unfold(info, last), tape), (0, 0, None)
    if _takes_one_matrix(inputs.u):
        return _each(info, in_dims, (*arguments[:-1], False), forward_op)
    return forward_op(*_own(info, inputs, in_dims), *arguments[-6:-1], False), (0, 0, None)


def _backward_vmap(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    *tensors, h, _, grad_h, grad_last, wanted = arguments[:-5]
    inputs = Inputs(*tensors)
    h_dim, _, *grad_dims = in_dims[DIFFERENTIABLE + 1 : DIFFERENTIABLE + 5]
    states = (h, grad_h, grad_last), (h_dim, *grad_dims)
    out_dims = tuple(0 if want else None for want in wanted)
    if all(dim is None for dim in (in_dims[0], *in_dims[3 : DIFFERENTIABLE + 1])) and not any((wanted[0], *wanted[3:])):
        h, *grads = (_fold(info, state, dim) for state, dim in zip(*states, strict=True))
        gradients = backward_op(*_fold_inputs(info, inputs, in_dims), h, None, *grads, wanted, *arguments[-5:])
        return tuple(None if g is None else _unfold(info, g) for g in gradients), out_dims
    if _takes_one_matrix(inputs.u):
        return _each(info, in_dims, arguments, backward_op)
    h, *grads = _all_leading(info, *states)
    return backward_op(*_own(info, inputs, in_dims), h, None, *grads, wanted, *arguments[-5:]), out_dims


forward_op = operator(
    f"rnn({TENSORS}, {OPTIONS}, bool with_tape) -> (Tensor, Tensor, Tensor)",
    cpu=_forward_cpu,
    fake=_forward_fake,
    vmap=_forward_vmap,
)
backward_op = operator(
    f"rnn_backward({TENSORS}, Tensor h, Tensor? tape, Tensor? grad_h, Tensor? grad_last, bool[] wanted, {OPTIONS})"
    f" -> ({', '.join(['Tensor'] * DIFFERENTIABLE)})",
    cpu=_backward_cpu,
    fake=_backward_fake,
    vmap=_backward_vmap,
)
