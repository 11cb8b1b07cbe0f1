"""The mathematics of :mod:`householder._expressions` in torch operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import array_api_compat.torch

from householder import _expressions, _library
from householder.torch import _autocast, _precision
from householder.torch._dtypes import HALF_TYPES

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class _Torch(_library.Torch):
    def wide(self, a: Tensor) -> torch.dtype:
        return _precision.wide_of(a)


class _Exported(_library.Torch):
    """Without triangular solves, which ONNX does not have, and in the precision of the operands."""

    solve = _library.Library.solve

    def wide(self, a: Tensor) -> torch.dtype:
        return a.dtype


LIBRARY, EXPORTED = _Torch(array_api_compat.torch), _Exported(array_api_compat.torch)


def apply(
    u: Tensor,
    h: Tensor,
    transpose: bool,
    tau: Tensor | None = None,
    shape: str = "trapezoidal",
    library: _library.Library = LIBRARY,
) -> Tensor:
    """Compute ``W h`` or ``W* h`` for ``u (*c, n, m)`` and ``h (*c, *r, n)``."""
    with _autocast.off(h.device):
        c: Tensor = _expressions.apply(library, u, h, transpose, tau, shape)
        return c


def matrix(
    u: Tensor, tau: Tensor | None = None, shape: str = "trapezoidal", library: _library.Library = LIBRARY
) -> Tensor:
    """Form ``W`` itself, without phases."""
    with _autocast.off(u.device):
        w: Tensor = _expressions.matrix(library, u, tau, shape)
        return w


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


def rnn(*arguments: Any, library: _library.Library = LIBRARY) -> tuple[Tensor, Tensor]:
    """Run a recurrence: all states and the last ones, from the arguments of the operator without the method."""
    with _autocast.off(arguments[1].device):
        return _expressions.rnn(library, *arguments)


def delta_rule(*arguments: Any, library: _library.Library = LIBRARY) -> tuple[Tensor, Tensor]:
    """Run the delta rule: outputs and final states, from the arguments of the operator."""
    with _autocast.off(arguments[0].device):
        return _expressions.delta_rule(library, *arguments)


def gated_norm(*arguments: Any, library: _library.Library = LIBRARY) -> Tensor:
    """Normalise rows and multiply them by gates, from the arguments of the operator."""
    with _autocast.off(arguments[0].device):
        y: Tensor = _expressions.gated_norm(library, *arguments)
        return y


def causal_convolution(*arguments: Any, library: _library.Library = LIBRARY) -> Tensor:
    """Convolve each channel along time, from the arguments of the operator."""
    with _autocast.off(arguments[0].device):
        y: Tensor = _expressions.causal_convolution(library, *arguments)
        return y
