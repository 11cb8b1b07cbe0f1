"""The operator library ``torch.ops.householder``, and what every kernel needs to call the core."""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from householder import _core, _torch_library
from householder.torch._base.undocumented import has_storage, is_forward_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

_library: Any = torch.library.Library("householder", "DEF")  # type: ignore[no-untyped-call]

_torch_library.register_kernels()

_can_keep = _torch_library.can_keep()

_core_threads = -1


def define(
    name: str,
    arguments: Sequence[str],
    results: int,
    kernels: dict[str, Callable[..., Any]],
    *,
    fake: Callable[..., Any],
    vmap: Callable[..., Any],
    autograd: tuple[Callable[..., Any], Callable[..., Any]],
) -> Any:
    """Define an operator, with a kernel for each key of the dispatcher, unless the library without Python has one.

    ``autograd`` has its gradients and what they remember, for calls by others than ``Operator``.
    """
    schema = f"{name}({', '.join(arguments)}) -> ({', '.join(['Tensor'] * results)})"
    _library.define(schema, tags=[torch.Tag.pt2_compliant_tag])
    for key, kernel in kernels.items():
        if key != "CPU" or not _torch_library.is_loaded():
            _library.impl(name, kernel, key)
    torch.library.register_fake(f"householder::{name}", fake, lib=_library)
    torch.library.register_vmap(f"householder::{name}", vmap, lib=_library)
    backward, setup_context = autograd
    checked: Any = _Checked()
    torch.library.register_autograd(f"householder::{name}", backward, setup_context=setup_context, lib=checked)
    return getattr(torch.ops.householder, name).default


class _Checked:
    """The library. Its kernels refuse forward mode, which loses tangents, and raise the exceptions of Python."""

    def impl(self, name: str, kernel: Callable[..., Any], key: str, **options: Any) -> None:
        def checked(*arguments: Any) -> Any:
            if is_forward_mode():
                raise RuntimeError(
                    f"torch.ops.householder.{name} has no forward mode: call the functions of householder.torch"
                )
            try:
                return kernel(*arguments)
            except RuntimeError as error:  # where Python raises what a signal's handler has raised
                raise _torch_library.original(error) from None

        _library.impl(name, checked, key, **options)


def are_plain(*tensors: Tensor | None) -> bool:
    """Return whether tensors have memory, and no subclass overrides operators, as distributed tensors do."""
    own = Tensor.__torch_dispatch__
    return all(t is None or (type(t).__torch_dispatch__ is own and has_storage(t)) for t in tensors)


def on_cuda() -> ModuleType:
    """Return the module that computes with CUDA tensors, imported with the first one: most processes have none.

    It is imported by its name, because it needs the operations and they need it.
    """
    return import_module("householder.torch._ops.cuda")


_core.share_tensor_types(Tensor, torch.nn.Parameter)


# torch's threads spin for milliseconds after each parallel loop, so other threads would share processors with them.
_torch_cpu = {"win32": "torch_cpu.dll", "darwin": "libtorch_cpu.dylib"}.get(sys.platform, "libtorch_cpu.so")
shares_threads = _core.share_torch_threads(str(Path(torch.__file__).with_name("lib") / _torch_cpu))
"""Whether calls run on torch's threads, as on every system that the tests know."""


def follow_torch_threads() -> None:
    """Hand torch's number of threads to the core when it has changed since the last call."""
    global _core_threads
    threads = torch.get_num_threads()
    if threads != _core_threads:
        _core.set_num_threads(threads)
        _core_threads = threads


def require_dtype(x: Tensor, *others: Tensor | None) -> None:
    """Check that all tensors still have one dtype.

    Raises
    ------
    RuntimeError
        The dtypes differ, because ``module.float()`` or the like has converted tensors saved for the backward pass.
    """
    dtype = x.dtype
    for t in others:
        if t is not None and t.dtype is not dtype:
            raise RuntimeError(
                f"a saved tensor changed its dtype between forward and backward ({dtype} to {t.dtype}): "
                "convert modules after the backward pass"
            )


def empty_kept(like: Tensor, keep: bool) -> Tensor:
    """Return a tensor of the shape of the one that stands for what a forward operator keeps, on the CPU alone."""
    is_kept = keep and like.device.type == "cpu" and _can_keep
    return like.new_empty((int(is_kept),), dtype=torch.int64)


def leading(info: Any, tensor: Tensor, dim: int | None) -> Tensor:
    """Put the dimension that ``vmap`` maps over first, repeating a tensor that has none."""
    return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def all_leading(info: Any, tensors: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
    """Put the mapped dimension first in every tensor that is there."""
    return [None if t is None else leading(info, t, dim) for t, dim in zip(tensors, dims, strict=True)]


def fold(info: Any, tensors: Sequence[Any], dims: Sequence[int | None], axes: Sequence[int]) -> list[Any]:
    """Merge the dimension that ``vmap`` maps over with one axis of each tensor."""
    pairs = zip(all_leading(info, tensors, dims), axes, strict=True)
    return [None if t is None else t.movedim(0, axis).flatten(axis, axis + 1) for t, axis in pairs]


def unfold(info: Any, tensors: Sequence[Any], axes: Sequence[int]) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    """Invert ``fold``, with the mapped dimension first; return where it is, too."""
    count = info.batch_size
    found = [
        None if t is None else t.unflatten(axis, (count, t.shape[axis] // count)).movedim(axis, 0)
        for t, axis in zip(tensors, axes, strict=True)
    ]
    return tuple(found), tuple([None if t is None else 0 for t in found])


def each(op: Any, info: Any, in_dims: Any, *arguments: Any) -> Any:
    """Call an operator once for each index of the mapped dimension, and stack the results."""
    mapped = [isinstance(a, Tensor) and dim is not None for a, dim in zip(arguments, in_dims, strict=True)]

    def at(i: int) -> list[Any]:
        given = zip(arguments, mapped, in_dims, strict=True)
        return [a.select(dim, i) if is_mapped else a for a, is_mapped, dim in given]

    found = [op(*at(i)) for i in range(info.batch_size)]
    if isinstance(found[0], Tensor):
        return torch.stack(found), 0
    results = tuple(None if of_one[0] is None else torch.stack(of_one) for of_one in zip(*found, strict=True))
    return results, tuple(None if result is None else 0 for result in results)


def room_for(
    tensors: Sequence[Any], wanted: Sequence[bool], dtypes: Sequence[torch.dtype] | None = None
) -> tuple[Tensor | None, ...]:
    """Allocate tensors like these where they are wanted, contiguous and of these dtypes or their own.

    Tensors after the last that may be wanted are ignored.
    """
    form, kinds = torch.contiguous_format, repeat(None) if dtypes is None else dtypes
    return tuple(
        [
            torch.empty_like(t, dtype=dtype, memory_format=form) if want else None
            for t, want, dtype in zip(tensors, wanted, kinds, strict=False)
        ]
    )


def keeping_nothing(
    forward: Callable[..., Any], backward: Callable[..., Any], describe: Callable[..., tuple[Any, ...]]
) -> dict[str, Any]:
    """Return how ``Operator`` computes what keeps nothing, and has one result of the first tensor's shape and dtype.

    Functions of the core take the tensors, what ``describe(tensors, options)`` returns, and results or gradients.
    """

    def fake(tensors: Any, _: Any, __: bool) -> tuple[Any, ...]:
        return room_for(tensors, [True])

    def compute(tensors: Any, options: Any, _: bool) -> Any:
        follow_torch_threads()
        (y,) = room_for(tensors, [True])
        done = forward(tensors, *describe(tensors, options), y)
        return done if done is NotImplemented else (y, (), None)

    def differentiate(tensors: Any, _: Any, __: Any, grads: Any, wanted: Any, options: Any) -> Any:
        follow_torch_threads()
        gradients = room_for(tensors, wanted)
        done = backward(tensors, *describe(tensors, options), *grads, gradients)
        return done if done is NotImplemented else gradients

    return {"fake": fake, "compute": compute, "differentiate": differentiate}
