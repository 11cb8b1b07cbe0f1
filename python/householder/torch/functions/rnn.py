"""Whole recurrences: checks, types and layouts of ``rnn``; ``_ops`` computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import householder
from householder._base import sequences, validate
from householder._base.docstrings import completed_by
from householder._base.linear_map import columns_of
from householder.torch import _ops
from householder.torch._base import checks
from householder.torch._base.dtypes import HALF_TYPES
from householder.torch._ops.rnn import RnnInputs, RnnOptions, reads_halves

if TYPE_CHECKING:
    from torch import Tensor

    from householder._base.types import AnyArray, ArrayLike


@completed_by(householder.rnn, "Tensor")
def rnn(
    u: ArrayLike,
    x: Tensor,
    h0: Tensor | None = None,
    *,
    nonlinearity: str = "leaky_relu",
    negative_slope: float = 0.1,
    nonlinearity_bias: Tensor | None = None,
    input_weight: Tensor | None = None,
    bias: Tensor | None = None,
    batch_sizes: Tensor | None = None,
    reverse: bool = False,
    method: str = "auto",
) -> tuple[Tensor, Tensor]:
    r"""Run :math:`h_t = \phi(W h_{t-1} + V x_t + b)` over whole sequences in one native call.

    ``torch.func.vmap`` over ``u`` and any other tensors runs an ensemble of recurrences, also in one call.

    Parameters
    ----------
    batch_sizes : Tensor, shape (T,), int64 on the CPU, optional
        Sequences of different lengths, packed as in :class:`torch.nn.utils.rnn.PackedSequence`.

    Returns
    -------
    h : Tensor, shape (T, B, n), (T, n) or (rows, n)
        All states, in the dtype of ``x``.
    h_last : Tensor, shape (B, n) or (n,)
        A copy of the last state of each sequence; with ``reverse``, the state of the first step. A loss of only
        this state needs no gradient of the size of ``h``.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> u = torch.tensor([[1.0], [1.0]], dtype=torch.float64)
    >>> x = torch.tensor([[1.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    >>> h, h_last = ht.rnn(u, x, nonlinearity="identity")
    >>> h
    tensor([[ 1.,  2.],
            [-2., -1.]], dtype=torch.float64)
    """
    u, tau, phases, form, is_adjoint = columns_of(u)
    inputs = RnnInputs(u, x, h0, input_weight, bias, phases, nonlinearity_bias, tau, batch_sizes)
    return sequence(inputs, RnnOptions(nonlinearity, negative_slope, is_adjoint, reverse, form, method))


def sequence(inputs: RnnInputs[AnyArray], options: RnnOptions) -> tuple[Tensor, Tensor]:
    """Check and convert the arguments of the operation ``rnn``, and compute."""
    u, x, h0, input_weight, bias, phases, nonlinearity_bias, tau, batch_sizes = inputs
    nonlinearity, negative_slope, transpose, reverse, form, method = options
    slope, reverse = sequences.options(nonlinearity, negative_slope, reverse, method, batch_sizes)
    options = RnnOptions(nonlinearity, slope, transpose, reverse, form, method)
    compute = checks.operands(u, x=x, h0=h0, input_weight=input_weight, bias=bias, tau=tau)
    checks.tensor("x", x)
    validate.single(u, "rnn")
    n, _ = checks.columns(u, form, tau, phases)
    width = sequences.inputs(tuple(x.shape), n, input_weight is not None, batch_sizes is not None, least_width=0)
    shapes = sequences.parameters(n, width, nonlinearity, nonlinearity_bias, u.is_complex())
    checks.nonlinearity_bias(nonlinearity_bias, u, shapes.nonlinearity_bias)
    checks.shape("bias", bias, shapes.bias)
    checks.shape("input_weight", input_weight, shapes.input_weight)
    packed = None if batch_sizes is None else checks.batch_sizes(batch_sizes, x)
    extent = sequences.extent(tuple(x.shape), n, packed)
    unbatched = len(extent.states) == 1
    rows = x.unsqueeze(1) if unbatched else x
    if h0 is not None:
        sequences.initial_state(tuple(h0.shape), extent)
        if h0.shape != (extent.batch, n):
            h0 = h0.expand(extent.batch, n).contiguous()
    elif packed is not None:
        h0 = x.new_zeros(extent.batch, n)

    states = x.dtype if reads_halves(x) else compute
    types = (compute, states, states, compute, compute)
    operands = zip((u, rows, h0, input_weight, bias), types, strict=True)
    cast = [None if t is None else checks.cast(t, kind) for t, kind in operands]
    if nonlinearity_bias is not None and u.dtype in HALF_TYPES:
        nonlinearity_bias = nonlinearity_bias.to(compute)
    tau = None if tau is None else checks.cast(tau, compute)
    h, last = _ops.rnn.operator(RnnInputs._make([*cast, phases, nonlinearity_bias, tau, batch_sizes]), options)
    if unbatched:
        h, last = h.squeeze(1), last.squeeze(0)
    return checks.cast(h, x.dtype), checks.cast(last, x.dtype)
