"""The operator library ``torch.ops.householder`` and what every CPU kernel needs to call the compiled core."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import forward_ad, profiler
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from householder import _core
from householder.torch._autograd import transforms_active

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


def operator(schema: str, *, cpu: Callable[..., Any], fake: Callable[..., Any], vmap: Callable[..., Any]) -> OpOverload:
    """Define an operator without autograd: gradients belong to the ``autograd.Function`` around it."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=[torch.Tag.pt2_compliant_tag])
    _library.impl(name, cpu, "CPU")
    torch.library.register_fake(f"householder::{name}", fake, lib=_library)
    torch.library.register_vmap(f"householder::{name}", vmap, lib=_library)
    overload: OpOverload = getattr(torch.ops.householder, name).default
    return overload


def on_cuda(name: str, kernel: Callable[..., Any]) -> None:
    """Say what an operator does with CUDA tensors."""
    _library.impl(name, kernel, "CUDA")


def straight_to_cpu(*tensors: Tensor | None) -> bool:
    """Tell whether the dispatcher would do nothing but call the CPU kernel: no mode, no wrapper, no lazy negation.

    Calling the kernel oneself then saves 6 us, a tenth of what a small problem costs, forward and backward. Complex
    numbers, which may be conjugated lazily, take the dispatcher.
    """
    return _is_undisturbed() and _core.are_plain(*tensors)


def is_profiled() -> bool:
    """Tell whether a profile is being made, which shows what goes through the dispatcher."""
    return getattr(profiler, "_is_profiler_enabled", False)


def is_plain_application(u: Any, h: Any) -> bool:
    """Tell whether ``W h`` of these is an ordinary eager call on the CPU, about which nothing is left to check."""
    return _is_undisturbed() and _core.is_plain_application(u, h)


def plain_rnn_tape_width(inputs: tuple[Any, ...], options: tuple[Any, ...]) -> int | None:
    """Give the width of a sequence's tape where it is an ordinary eager call, as ``is_plain_application`` tells."""
    return _core.plain_rnn_tape_width(inputs, options) if _is_undisturbed() else None


def _is_undisturbed() -> bool:
    """Tell whether the call is not compiled, traced, transformed or watched by a mode: in one look, as it is short."""
    return not (
        torch.compiler.is_compiling()
        or transforms_active()
        or getattr(forward_ad, "_current_level", -1) >= 0
        or is_in_torch_dispatch_mode()
        or torch._C._get_tracing_state() is not None
    )


_core.share_tensor_types(Tensor, torch.nn.Parameter)


def share_torch_threads() -> None:
    """Let the core work on the threads of torch's kernels, where torch has them from GNU's OpenMP or a like one.

    They spin for milliseconds after each of torch's parallel loops; other threads would share processors with them.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
        functions = library.GOMP_parallel, library.omp_get_max_threads
    except (OSError, AttributeError):
        return
    _core.share_openmp(*(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions))


share_torch_threads()


def follow_torch_threads() -> None:
    """Hand torch's number of threads to the core when it has changed since the last call."""
    global _core_threads
    threads = torch.get_num_threads()
    if threads != _core_threads:
        _core.set_num_threads(threads)
        _core_threads = threads


def core_name(x: Tensor, *others: Tensor | None) -> str:
    """Name the dtype that all have for the core.

    Raises
    ------
    RuntimeError
        They differ: ``module.float()`` and the like convert what was saved for the backward pass.
    """
    dtype = x.dtype
    for t in others:
        if t is not None and t.dtype is not dtype:
            raise RuntimeError(
                f"a tensor is {t.dtype} but was {dtype} in the forward pass: convert modules after the backward pass"
            )
    return CORE_NAME[dtype]


def leading(info: Any, tensor: Tensor, dim: int | None) -> Tensor:
    """Put the dimension that ``vmap`` maps over first, repeating a tensor that has none."""
    return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
