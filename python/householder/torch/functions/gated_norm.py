"""The norm after linear attention, in layers of ``transformers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from householder.torch import _ops
from householder.torch._base import checks
from householder.torch._base.dtypes import compute_type

if TYPE_CHECKING:
    from torch import Tensor


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
    x_rows, z_rows = (t.reshape(t.shape[:-1].numel(), t.shape[-1]) for t in (x, z))
    inputs = _ops.gated_norm.GatedNormInputs(x_rows, z_rows, checks.cast(weight, compute_type(x.dtype)))
    y: Tensor = _ops.gated_norm.operator(inputs, _ops.gated_norm.GatedNormOptions(epsilon, silu))
    return y.reshape(x.shape)
