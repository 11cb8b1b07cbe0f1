"""Formulas for ``torch.utils.flop_counter.FlopCounterMode``: import this module, and it counts our operators.

This is a separate module because the counter imports Triton if it is installed. A product of ``p x q`` and ``q x r``
counts ``2 p q r``, as in torch. A triangular solve counts half of the product with the inverse.

Examples
--------
>>> import torch
>>> import householder.torch as ht
>>> import householder.torch.flops
>>> from torch.utils.flop_counter import FlopCounterMode
>>> with FlopCounterMode(display=False) as counter:
...     _ = ht.apply(torch.randn(64, 4), torch.randn(100, 64), method="wy")
>>> counter.get_total_flops()  # two products with 64 x 4, one with 4 x 4, one triangular solve
106048
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import register_flop_formula

from householder import _validate, plan
from householder.torch.ops._sequence import split

if TYPE_CHECKING:
    from torch import Tensor


def _factors(n: int, k: int) -> int:
    """``T = striu(V* V) + I / 2``."""
    return 2 * n * k * k


def _formed(n: int, k: int) -> int:
    """``W = I - (V S) V*``."""
    return _factors(n, k) + n * k * k + 2 * n * n * k


def _forward(n: int, m: int, rows: int, method: str, *, sequence: bool, is_complex: bool) -> int:
    if method == "auto" and rows:
        method = plan(n, m, rows, 1 if sequence else None, "complex64" if is_complex else "float32").method
    return _by(method, n, m - (m == n), rows)


def _by(method: str, n: int, k: int, rows: int) -> int:
    if method == "dense":
        return _formed(n, k) + 2 * rows * n * n
    by_reflections = 4 * rows * n * k
    return by_reflections if method == "reflections" else _factors(n, k) + by_reflections + rows * k * k


def _backward(n: int, k: int, rows: int) -> int:
    """``V* h``, ``V* g``, two solves, ``J``; then ``V (L + L*)``, ``h c~*``, ``g h~*`` and ``V c~``."""
    return _factors(n, k) + 4 * rows * n * k + 4 * rows * k * k + 2 * n * k * k + 6 * rows * n * k


def _of_application(u: Tensor, h: Tensor) -> tuple[int, int, int, int]:
    n, m = u.shape[-2:]
    matrices = prod(u.shape[:-2])
    return matrices, n, m, h.numel() // (n * matrices) if matrices else 0


@register_flop_formula(torch.ops.householder.apply, get_raw=True)
def apply_flops(u: Tensor, h: Tensor, tau: Any, transpose: bool, method: str, shape: str, **_out: Any) -> int:  # noqa: ARG001
    """Count one application; ``auto`` of full columns, or with a given tau, as the compact WY form."""
    matrices, n, m, rows = _of_application(u, h)
    if _validate.is_default(tau, shape):
        return matrices * _forward(n, m, rows, method, sequence=False, is_complex=u.is_complex())
    return matrices * _by("wy" if method == "auto" else method, n, m, rows)


@register_flop_formula(torch.ops.householder.apply_backward, get_raw=True)
def apply_backward_flops(u: Tensor, h: Tensor, tau: Any, *others: Any, **_out: Any) -> int:
    """Count the gradients of one application."""
    matrices, n, m, rows = _of_application(u, h)
    return matrices * _backward(n, m - (m == n and _validate.is_default(tau, others[-1])), rows)


@register_flop_formula(torch.ops.householder.matrix, get_raw=True)
def matrix_flops(u: Tensor, **_out: Any) -> int:
    """Count the forming of matrices."""
    n, m = u.shape[-2:]
    return prod(u.shape[:-2]) * _formed(n, m - (m == n))


@register_flop_formula(torch.ops.householder.rnn, get_raw=True)
def rnn_flops(*arguments: Any, **_out: Any) -> int:
    """Count the recurrence and the products with the inputs."""
    inputs, _, options = split(arguments)
    n, m, d, _, _ = inputs.sizes()
    matrices, rows, u = prod(inputs.u.shape[:-2]), inputs.rows(), inputs.u
    method = "dense" if inputs.phases is not None else options.method
    of_inputs = 0 if inputs.input_weight is None else 2 * rows * n * d
    if inputs.is_default(options.shape):
        return matrices * (of_inputs + _forward(n, m, rows, method, sequence=True, is_complex=u.is_complex()))
    return matrices * (of_inputs + _by("wy" if method == "auto" else method, n, m, rows))


@register_flop_formula(torch.ops.householder.rnn_backward, get_raw=True)
def rnn_backward_flops(*arguments: Any, **_out: Any) -> int:
    """Count the gradients of the recurrence: the adjoint of each step, and those of the parameters."""
    inputs, _, options = split(arguments)
    n, m, d, _, _ = inputs.sizes()
    of_inputs = 0 if inputs.input_weight is None else 4 * inputs.rows() * n * d
    k = m - (m == n and inputs.is_default(options.shape))
    return prod(inputs.u.shape[:-2]) * (of_inputs + _backward(n, k, inputs.rows()))
