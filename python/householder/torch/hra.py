r"""Householder reflection adaptation (HRA) of the ``peft`` library, computed without an n x n matrix.

An HRA layer multiplies its frozen weight by one orthogonal matrix for each active adapter,
:math:`y = W Q_1 Q_2 \cdots x + b`. An adapter with the vectors U is :math:`Q = H(u_1) \cdots H(u_r)`,
:math:`H(u) = I - 2 u u^T / |u|^2`, or :math:`Q = I - 2 V V^T`, where Gram-Schmidt has made V of U.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear

from householder.torch import _autocast, _check
from householder.torch.functional import product

if TYPE_CHECKING:
    from collections.abc import Callable


def forward_of(layer: nn.Module) -> Callable[..., Tensor] | None:
    """Give the ``forward`` that computes what this layer does, or None if it is no HRA layer of ``peft``."""
    peft: Any = sys.modules.get("peft.tuners.hra.layer")
    if peft is None:
        return None
    forwards = {peft.HRALinear: _linear, peft.HRAConv2d: _convolution}
    return forwards.get(type(layer))


def _linear(layer: Any, x: Tensor, *args: Any, **options: Any) -> Tensor:
    """Multiply the inputs by the orthogonal matrices."""
    if _is_bypassed(layer):
        return _as_before(layer, x, *args, **options)
    names, y, weight, bias = _operands(layer, x)
    for name in reversed(names):
        y = _turned(layer, name, y, transpose=False)
    return linear(y, weight, bias).to(x.dtype)


def _convolution(layer: Any, x: Tensor, *args: Any, **options: Any) -> Tensor:
    """Multiply the kernels by the orthogonal matrices, because there are fewer kernels than patches of the input."""
    if _is_bypassed(layer):
        return _as_before(layer, x, *args, **options)
    names, y, weight, bias = _operands(layer, x)
    kernels = weight.flatten(1)
    for name in names:
        kernels = _turned(layer, name, kernels, transpose=True)
    stride, padding = layer.base_layer.stride[0], layer.base_layer.padding[0]  # as peft: the same along both axes
    return conv2d(y, kernels.view_as(weight), bias, stride, padding).to(x.dtype)


def _is_bypassed(layer: Any) -> bool:
    """Tell whether the base layer alone is called."""
    return bool(layer.disable_adapters or layer.merged)


def _as_before(layer: Any, x: Tensor, *args: Any, **options: Any) -> Tensor:
    y: Tensor = type(layer).forward(layer, x, *args, **options)
    return y


def _operands(layer: Any, x: Tensor) -> tuple[list[str], Tensor, Tensor, Tensor | None]:
    """Give the adapters in use, input, weight and bias, in the dtype of the last adapter's vectors.

    Under ``peft.helpers.disable_input_dtype_casting``, the dtype is that of the weight instead. The weight
    gets no gradient, even if it requires one.
    """
    names = [name for name in layer.active_adapters if name in layer.hra_u]
    weight, bias = layer.get_base_layer().weight.data, layer.base_layer.bias
    if not layer.cast_input_dtype_enabled:
        return names, x.to(weight.dtype), weight, bias
    kind = layer.hra_u[names[-1]].dtype if names else torch.float32
    return names, x.to(kind), weight.to(kind), None if bias is None else bias.to(kind)


def _turned(layer: Any, name: str, rows: Tensor, transpose: bool) -> Tensor:
    """Multiply rows ``(..., n)`` by the matrix of one adapter, or by its transpose; halves in float32."""
    u = layer.hra_u[name]
    compute = torch.float32 if u.dtype in _check.HALF_TYPES else u.dtype
    with _autocast.off(rows.device):
        u, wide = u.to(compute), rows.to(compute)
        if layer.hra_apply_GS[name]:
            v = _orthonormal(u)
            wide = wide - 2 * (wide @ v) @ v.mT
        else:
            wide = product(u, wide, None, "full", transpose)
    return wide.to(rows.dtype)


def _orthonormal(u: Tensor) -> Tensor:
    """Make the columns orthogonal, each to those before, and of length one (modified Gram-Schmidt)."""
    units: list[Tensor] = []
    for column in torch.split(u, 1, 1):
        for unit in units:
            column = column - (unit.mT @ column) * unit
        units.append(column / torch.linalg.vector_norm(column))
    return torch.cat(units, 1)
