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

from householder.torch._base import autocast, checks
from householder.torch._base.dtypes import HALF_TYPES
from householder.torch.acceleration.subclasses import Accelerated
from householder.torch.functions.apply import product

if TYPE_CHECKING:
    from householder._base.types import Argument

HRALayer = Any
"""A layer of ``peft.tuners.hra``, which is imported if models have such layers."""


class Linear(Accelerated):
    """An HRA layer that multiplies its inputs by the orthogonal matrices."""

    def forward(self, x: Tensor, *args: Argument, **options: Argument) -> Tensor:
        """Compute what ``HRALinear`` computes."""
        if _is_bypassed(self):
            y: Tensor = super().forward(x, *args, **options)
            return y
        names, y, weight, bias = _operands(self, x)
        checks.last_axis("x", y, weight.shape[1])
        for name in reversed(names):
            y = _turned(self, name, y, transpose=False)
        return linear(y, weight, bias).to(x.dtype)


class Convolution(Accelerated):
    """An HRA layer that multiplies its kernels, because there are fewer kernels than patches of the input."""

    def forward(self, x: Tensor, *args: Argument, **options: Argument) -> Tensor:
        """Compute what ``HRAConv2d`` computes."""
        if _is_bypassed(self):
            y: Tensor = super().forward(x, *args, **options)
            return y
        names, y, weight, bias = _operands(self, x)
        kernels = weight.flatten(1)
        for name in names:
            kernels = _turned(self, name, kernels, transpose=True)
        base: Any = self.base_layer
        stride, padding = base.stride[0], base.padding[0]  # as peft: the same along both axes
        return conv2d(y, kernels.view_as(weight), bias, stride, padding).to(x.dtype)


def base_for(layer: nn.Module) -> type[Accelerated] | None:
    """Return the class that computes what this layer does, or None if it is no HRA layer of ``peft``."""
    peft: Any = sys.modules.get("peft.tuners.hra.layer")
    if peft is None:
        return None
    bases: dict[type, type[Accelerated]] = {peft.HRALinear: Linear, peft.HRAConv2d: Convolution}
    return bases.get(type(layer))


def _is_bypassed(layer: HRALayer) -> bool:
    """Return whether peft computes this call: the base layer alone, or dtypes that differ although none is cast."""
    if layer.disable_adapters or layer.merged:
        return True
    dtype = _dtype(layer)
    return not layer.cast_input_dtype_enabled and any(p.dtype is not dtype for p in layer.base_layer.parameters())


def _names(layer: HRALayer) -> list[str]:
    return [name for name in layer.active_adapters if name in layer.hra_u]


def _dtype(layer: HRALayer) -> torch.dtype:
    """Return the dtype of the last adapter's vectors, in which the base layer computes."""
    names = _names(layer)
    dtype: torch.dtype = layer.hra_u[names[-1]].dtype if names else torch.float32
    return dtype


def _operands(layer: HRALayer, x: Tensor) -> tuple[list[str], Tensor, Tensor, Tensor | None]:
    """Return the adapters in use, input, weight and bias. The weight gets no gradient, even if it requires one."""
    dtype, bias = _dtype(layer), layer.base_layer.bias
    weight = layer.get_base_layer().weight.data.to(dtype)
    return _names(layer), x.to(dtype), weight, None if bias is None else bias.to(dtype)


def _turned(layer: HRALayer, name: str, rows: Tensor, transpose: bool) -> Tensor:
    """Multiply rows ``(..., n)`` by the matrix of one adapter, or by its transpose; halves in float32."""
    u = layer.hra_u[name]
    v = _orthonormal(u) if layer.hra_apply_GS[name] else None
    compute = torch.float32 if u.dtype in HALF_TYPES else u.dtype
    with autocast.off(rows.device):
        wide = rows.to(compute)
        if v is None:
            wide = product(u.to(compute), wide, None, "full", transpose)
        else:
            v = v.to(compute)
            wide = wide - 2 * (wide @ v) @ v.mT
    return wide.to(rows.dtype)


def _orthonormal(u: Tensor) -> Tensor:
    """Make the columns orthogonal, each to those before, and of length one (modified Gram-Schmidt).

    All is computed as in peft, also under autocast. If columns are dependent, the result consists of rounding errors,
    and other operations would give other errors, or zero divided by zero.
    """
    units: list[Tensor] = []
    for column in torch.split(u, 1, 1):
        for unit in units:
            column = column - (unit.mT @ column) * unit
        units.append(column / column.norm())
    return torch.cat(units, 1)
