"""The short convolution before linear attention, in layers of ours and of ``transformers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from householder.torch import _ops
from householder.torch._base import checks
from householder.torch._base.dtypes import compute_type

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
    weights = checks.cast(weight, compute), None if bias is None else checks.cast(bias, compute)
    y: Tensor = _ops.convolution.operator(
        _ops.convolution.ConvolutionInputs(x, *weights), _ops.convolution.ConvolutionOptions(silu)
    )
    return y
