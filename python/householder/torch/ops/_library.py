"""The operator library ``torch.ops.householder`` and what every CPU kernel needs to call the compiled core."""

from __future__ import annotations

import sys
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from householder import _core
from householder.torch._autograd import is_forward_mode

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

_library: Any = torch.library.Library("householder", "DEF")  # type: ignore[no-untyped-call]

CORE_NAME = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}

_core_threads = -1


def operator(
    schema: str,
    *,
    cpu: Callable[..., Any],
    fake: Callable[..., Any],
    vmap: Callable[..., Any],
    autograd: tuple[Callable[..., Any], Callable[..., Any]],
) -> OpOverload:
    """Define an operator; ``autograd``: its gradients and what they remember, for calls by others than ``Operator``."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=[torch.Tag.pt2_compliant_tag])
    implement(name, cpu, "CPU")
    torch.library.register_fake(f"householder::{name}", fake, lib=_library)
    torch.library.register_vmap(f"householder::{name}", vmap, lib=_library)
    backward, setup_context = autograd
    torch.library.register_autograd(f"householder::{name}", backward, setup_context=setup_context, lib=_library)
    overload: OpOverload = getattr(torch.ops.householder, name).default
    return overload


def implement(name: str, kernel: Callable[..., Any], key: str) -> None:
    """Register a kernel, which refuses forward mode: a kernel sees no tangents, so they would get lost."""

    @wraps(kernel)
    def checked(*arguments: Any) -> Any:
        if is_forward_mode():
            raise RuntimeError(
                f"torch.ops.householder.{name} has no forward mode: call the functions of householder.torch"
            )
        return kernel(*arguments)

    _library.impl(name, checked, key)


def are_plain(*tensors: Tensor) -> bool:
    """Tell whether tensors have memory, and no subclass overrides operators, as distributed tensors do."""
    own = Tensor.__torch_dispatch__
    return all(type(t).__torch_dispatch__ is own and torch._C._has_storage(t) for t in tensors)


_core.share_tensor_types(Tensor, torch.nn.Parameter)


if sys.platform.startswith("linux"):
    # torch's threads spin for milliseconds after each parallel loop, so other threads would share processors with them.
    _core.share_openmp(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))


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
                f"a tensor is {t.dtype} but was {dtype} in the forward pass: convert modules after the backward pass"
            )


def require_alike(u: Tensor, h: Tensor, tau: Tensor | None, grad_c: Tensor) -> None:
    """Refuse tensors that were converted or moved since the forward pass."""
    require_dtype(h, u, tau, grad_c)
    if grad_c.shape != h.shape or not u.device == h.device == grad_c.device:
        raise ValueError(
            f"grad_c has shape {tuple(grad_c.shape)} on {grad_c.device}, expected {tuple(h.shape)} on {u.device} as h"
        )


def leading(info: Any, tensor: Tensor, dim: int | None) -> Tensor:
    """Put the dimension that ``vmap`` maps over first, repeating a tensor that has none."""
    return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
