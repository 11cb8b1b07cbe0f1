"""The operator ``rnn`` under ``vmap``: more sequences of the same matrix, or a matrix for each of many."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from householder.torch.ops._library import leading
from householder.torch.ops._sequence import DIFFERENTIABLE, Inputs, split


def forward(op: Any, info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    """Batch the forward pass, which then keeps no tape."""
    inputs, _, options = split(arguments)
    if all(dim is None for dim in (in_dims[0], *in_dims[3:])):
        h, last, tape = op(*_fold_inputs(info, inputs, in_dims), False, *options)
        return (_unfold(info, h), _unfold(info, last), tape), (0, 0, None)
    if _takes_one_matrix(inputs.u):
        return _each(info, in_dims, (*inputs, False, *options), op)
    return op(*_own(info, inputs, in_dims), False, *options), (0, 0, None)


def backward(op: Any, info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    """Batch the gradients."""
    inputs, (h, _, grad_h, grad_last, wanted), options = split(arguments)
    h_dim, _, *grad_dims = in_dims[DIFFERENTIABLE + 1 : DIFFERENTIABLE + 5]
    states = (h, grad_h, grad_last), (h_dim, *grad_dims)
    out_dims = tuple(0 if want else None for want in wanted)
    if all(dim is None for dim in (in_dims[0], *in_dims[3 : DIFFERENTIABLE + 1])) and not any((wanted[0], *wanted[3:])):
        h, *grads = (_fold(info, state, dim) for state, dim in zip(*states, strict=True))
        gradients = op(*_fold_inputs(info, inputs, in_dims), h, None, *grads, wanted, *options)
        return tuple(None if g is None else _unfold(info, g) for g in gradients), out_dims
    if _takes_one_matrix(inputs.u):
        return _each(info, in_dims, arguments, op)
    h, *grads = _all_leading(info, *states)
    return op(*_own(info, inputs, in_dims), h, None, *grads, wanted, *options), out_dims


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
