"""Common parts of the rules of ``torch.func.vmap``: tensors in ``NamedTuple`` objects, and the mapped axis of each."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from householder._base.types import AnyFunction
    from householder.torch._ops.operation import (
        BackwardArguments,
        Inputs,
        OperatorArgument,
        OptionalTensor,
        Pulled,
        Results,
        VmapInfo,
    )

    AxisOrNone = Any
    """An axis of a tensor; anything where the tensor is None."""
    TensorsT = TypeVar("TensorsT", bound=tuple[Any, ...])


def of_any_size(rule: AnyFunction) -> AnyFunction:
    """Let an operator's rule map over nothing, too: as over one index of zeros, which the results then lose."""

    @wraps(rule)
    def mapped(info: VmapInfo, dims: Sequence[AxisOrNone], *arguments: OperatorArgument) -> Results:
        if info.batch_size:
            return rule(info, dims, *arguments)
        pairs = zip(arguments, dims, strict=True)
        one = [a.sum(dim, keepdim=True) if isinstance(dim, int) else a for a, dim in pairs]
        results, places = rule(info._replace(batch_size=1), dims, *one)
        if isinstance(results, Tensor):
            return results.narrow(places, 0, 0), places
        pairs = zip(results, places, strict=True)
        return tuple(t if place is None else t.narrow(place, 0, 0) for t, place in pairs), places

    return mapped


def leading(info: VmapInfo, t: Tensor | None, dim: int | None) -> OptionalTensor:
    """Put the mapped axis first, repeating a tensor that has none; return None for None."""
    if t is None:
        return None
    return t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)


def all_leading(info: VmapInfo, tensors: TensorsT, dims: Sequence[int | None]) -> TensorsT:
    """Put the mapped axis first in every tensor."""
    return type(tensors)(*[leading(info, t, dim) for t, dim in zip(tensors, dims, strict=True)])


def fold(info: VmapInfo, tensors: TensorsT, dims: Sequence[int | None], axes: Sequence[AxisOrNone]) -> TensorsT:
    """Merge the mapped axis with one axis of each tensor."""
    pairs = zip(all_leading(info, tensors, dims), axes, strict=True)
    merged: list[OptionalTensor] = [
        None if t is None else t.movedim(0, axis).flatten(axis, axis + 1) for t, axis in pairs
    ]
    return type(tensors)(*merged)


def unfold(info: VmapInfo, tensors: Sequence[Tensor | None], axes: Sequence[AxisOrNone]) -> Pulled:
    """Invert ``fold``, with the mapped axis first."""
    count, pairs = info.batch_size, zip(tensors, axes, strict=True)
    return tuple(
        [
            None if t is None else torch.unflatten(t, axis, (count, t.shape[axis] // count)).movedim(axis, 0)
            for t, axis in pairs
        ]
    )


def each(call: Callable[[Inputs], Results], info: VmapInfo, dims: Inputs, inputs: Inputs) -> Results:
    """Call once for each index of the mapped axis, and stack the results."""
    return _stacked([call(_at(i, inputs, dims)) for i in range(info.batch_size)])


def each_backward(
    call: Callable[[BackwardArguments], Pulled], info: VmapInfo, dims: BackwardArguments, arguments: BackwardArguments
) -> Pulled:
    """Call a backward pass once for each index of the mapped axis, and stack the gradients."""
    return _stacked(
        [
            call(
                arguments._replace(
                    inputs=_at(i, arguments.inputs, dims.inputs),
                    saved=_at(i, arguments.saved, dims.saved),
                    grads=_at(i, arguments.grads, dims.grads),
                )
            )
            for i in range(info.batch_size)
        ]
    )


def _at(i: int, tensors: TensorsT, dims: Sequence[int | None]) -> TensorsT:
    """Return the tensors of one index of the mapped axis."""
    pairs = zip(tensors, dims, strict=True)
    return type(tensors)(*[t if t is None or dim is None else t.select(dim, i) for t, dim in pairs])


def _stacked(results: list[Results]) -> Results:
    first = results[0]
    if isinstance(first, Tensor):
        return torch.stack(results)
    return tuple(None if of_one[0] is None else torch.stack(of_one) for of_one in zip(*results, strict=True))
