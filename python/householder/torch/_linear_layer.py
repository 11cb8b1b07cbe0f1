"""What surrounds linear attention in a layer, of ours or of ``transformers``: short convolutions and gated norms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from householder.torch import _check, _ops
from householder.torch._dtypes import compute_type

if TYPE_CHECKING:
    from torch import Tensor


def causal_convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, silu: bool) -> Tensor:
    """Return the causal convolution of each channel, through SiLU if asked.

    Half types are computed in float32 and rounded once. ``x`` may have any strides; if its channels are next to each
    other, it is not copied.

    Parameters
    ----------
    x : Tensor, shape (B, T, C)
        Zeros come before the first token.
    weight : Tensor, shape (C, taps)
        The last tap multiplies the token itself.
    bias : Tensor, shape (C,), optional
    silu : bool
        Whether outputs ``a`` are multiplied by their logistic function.

    Returns
    -------
    Tensor, shape (B, T, C)
        In the dtype of ``x``.
    """
    compute = compute_type(x.dtype)
    weights = _check.cast(weight, compute), None if bias is None else _check.cast(bias, compute)
    y: Tensor = _ops.convolution.operator(_ops.convolution.Inputs(x, *weights), _ops.convolution.Options(silu))
    return y


def gated_norm(x: Tensor, z: Tensor, weight: Tensor, *, epsilon: float, silu: bool) -> Tensor:
    """Return root mean square norms of rows, times weights and an activation of gates.

    Half types are computed in float32 and rounded once.

    Parameters
    ----------
    x, z : Tensor, shape (..., W)
        Rows and their gates.
    weight : Tensor, shape (W,)
    epsilon : float
        Added to the mean square of a row.
    silu : bool
        Whether gates pass through SiLU, not the logistic function alone.

    Returns
    -------
    Tensor, shape (..., W)
        In the dtype of ``x``.
    """
    x_rows, z_rows = (t.reshape(-1, t.shape[-1]) for t in (x, z))
    inputs = _ops.gated_norm.Inputs(x_rows, z_rows, _check.cast(weight, compute_type(x.dtype)))
    y: Tensor = _ops.gated_norm.operator(inputs, _ops.gated_norm.Options(epsilon, silu))
    return y.reshape(x.shape)
