"""CUDA tensors go to :mod:`householder.torch.ops._cuda`, imported with the first one: most processes have none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from householder.torch.ops._library import implement

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from torch import Tensor


def on_cuda() -> ModuleType:
    """Give the module that computes with CUDA tensors."""
    from householder.torch.ops import _cuda

    return _cuda


def reads_halves(x: Tensor) -> bool:
    """Tell whether a sequence's inputs, states and their gradients stay of a half type, as CUDA kernels allow."""
    return x.is_cuda


def _kernel(name: str) -> Callable[..., Any]:
    return lambda *arguments: getattr(on_cuda(), name)(*arguments)


for _name in ("apply", "apply_backward", "matrix", "rnn", "rnn_backward"):
    implement(_name, _kernel(_name), "CUDA")
