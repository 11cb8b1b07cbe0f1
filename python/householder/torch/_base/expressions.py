"""The mathematics of :mod:`householder._expressions` in torch operations."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import array_api_compat.torch

from householder import _expressions, _library
from householder.torch._base import autocast, precision
from householder.torch._base.dtypes import HALF_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor


class _Torch(_library.Torch):
    def wide(self, a: Tensor) -> torch.dtype:
        return precision.wide_of(a)


class _Exported(_library.Torch):
    """Without triangular solves, which ONNX does not have, and in the precision of the operands."""

    solve = _library.Library.solve

    def wide(self, a: Tensor) -> torch.dtype:
        return a.dtype


LIBRARY, EXPORTED = _Torch(array_api_compat.torch), _Exported(array_api_compat.torch)


def _below_autocast(expression: Callable[..., Any]) -> Callable[..., Any]:
    """Return the expression as a function of tensors, and of another library where it is given."""

    @wraps(expression)
    def compute(*arguments: Any, library: _library.Library = LIBRARY) -> Any:
        with autocast.off(arguments[0].device):
            return expression(library, *arguments)

    return compute


apply = _below_autocast(_expressions.apply)
matrix = _below_autocast(_expressions.matrix)
rnn = _below_autocast(_expressions.rnn)
delta_rule = _below_autocast(_expressions.delta_rule)
gated_norm = _below_autocast(_expressions.gated_norm)
causal_convolution = _below_autocast(_expressions.causal_convolution)


def turn(h: Tensor, phases: Tensor) -> Tensor:
    """Multiply the entries of ``h`` by ``exp(i phases)``."""
    turned: Tensor = _expressions.turn(LIBRARY, h, phases)
    return turned


def activate(a: Tensor, nonlinearity: str, negative_slope: float, nonlinearity_bias: Tensor | None) -> Tensor:
    """Apply one of the named nonlinearities; those with a bias compute half types in single precision."""
    kind, bias = a.dtype, nonlinearity_bias
    if bias is not None and kind in HALF_TYPES:
        a, bias = a.float(), bias.float()
    found: Tensor = _expressions.activate(LIBRARY, a, nonlinearity, negative_slope, bias)
    return found.to(kind)
