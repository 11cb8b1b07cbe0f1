"""The mathematics of :mod:`householder._mathematics` in torch operations."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING

import array_api_compat.torch

from householder._mathematics import delta_gradients, library, linear_attention, nonlinearities, recurrence, reflections
from householder.torch._base import autocast, precision
from householder.torch._base.dtypes import HALF_TYPES

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from householder._base.types import AnyArray, AnyFunction, Argument


class _Torch(library.TorchLibrary):
    def wide(self, a: Tensor) -> torch.dtype:
        return precision.wide_of(a)


class _Exported(library.TorchLibrary):
    """Without triangular solves, which ONNX does not have, and in the precision of the operands."""

    solve = library.Library.solve

    def wide(self, a: Tensor) -> torch.dtype:
        return a.dtype


LIBRARY, EXPORTED = _Torch(array_api_compat.torch), _Exported(array_api_compat.torch)


def _below_autocast(expression: AnyFunction) -> AnyFunction:
    """Return the expression without autocast, and with torch's library unless another is given."""

    @wraps(expression)
    def compute(*arguments: Argument, library: library.Library = LIBRARY) -> AnyArray:
        with autocast.off(arguments[0].device):
            return expression(library, *arguments)

    return compute


apply = _below_autocast(reflections.apply)
matrix = _below_autocast(reflections.matrix)
rnn = _below_autocast(recurrence.rnn)
delta_rule = _below_autocast(linear_attention.delta_rule)
delta_rule_gradients = _below_autocast(delta_gradients.delta_rule)
gated_norm = _below_autocast(linear_attention.gated_norm)
causal_convolution = _below_autocast(linear_attention.causal_convolution)


def turn(h: Tensor, phases: Tensor) -> Tensor:
    """Multiply the entries of ``h`` by ``exp(i phases)``."""
    turned: Tensor = reflections.turn(LIBRARY, h, phases)
    return turned


def activate(a: Tensor, nonlinearity: str, negative_slope: float, nonlinearity_bias: Tensor | None) -> Tensor:
    """Apply one of the named nonlinearities; those with a bias compute half types in single precision."""
    kind, bias = a.dtype, nonlinearity_bias
    if bias is not None and kind in HALF_TYPES:
        a, bias = a.float(), bias.float()
    h: Tensor = nonlinearities.activate(LIBRARY, a, nonlinearity, negative_slope, bias)
    return h.to(kind)
