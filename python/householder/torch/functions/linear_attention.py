"""Linear attention as a function: the delta rule without betas, so that nothing is erased."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import householder
from householder._base.docstrings import completed_by
from householder.torch._ops.delta import DeltaRuleInputs
from householder.torch.functions import delta

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from torch import Tensor

    from householder._base.types import AttentionOptions

    TensorsOfAttention = AttentionOptions[Tensor]


@overload
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, states_at: None = None, **options: Unpack[TensorsOfAttention]
) -> tuple[Tensor, Tensor | None]: ...
@overload
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, states_at: Sequence[int], **options: Unpack[TensorsOfAttention]
) -> tuple[Tensor, Tensor | None, Tensor]: ...
@completed_by(householder.linear_attention, "Tensor")
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    g: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    states_at: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Tensor]:
    r"""Run :math:`S_t = \mathrm{Diag}(e^{g_t}) S_{t-1} + k_t v_t^T` in one native call.

    The outputs are :math:`o_t = \mathrm{scale}\, S_t^T q_t`. Steps decay the state and write to it, but erase nothing.
    RetNet, Lightning attention and Mamba-2 have one gate per head, and gated linear attention one per channel. In
    Mamba-2, values are multiplied by their time steps. Tensors outside the CPU go through torch operations.

    Parameters
    ----------
    q : Tensor, shape (B, T, H, K)
        Queries; float64, or float32 and half types, also mixed, which are computed in float32.
    cu_seqlens : Tensor, shape (N + 1,), integers, optional
        Packs sequences one after the other in a single row, ``B = 1``. Sequence ``i`` has the tokens ``cu_seqlens[i]``
        to ``cu_seqlens[i + 1] - 1``. With ``states_at``, ``torch.compile`` breaks the graph to read these numbers, and
        compiles for others again.

    Returns
    -------
    o : Tensor, shape (B, T, HV, V)
        In the dtype of ``q``.
    final_state : Tensor, shape (N, HV, K, V), or None
        In the dtype of the computation.
    states : Tensor, shape (B, len(states_at), HV, K, V), packed (len(states_at), HV, K, V)
        If ``states_at`` is given, in the dtype of the computation.

    Raises
    ------
    TypeError
        Not tensors, or their dtypes or devices do not match.
    ValueError
        A shape or a number is not as expected, or a gate is positive (which only the CPU checks).

    Examples
    --------
    Without gates, it is causal attention without a softmax:

    >>> import torch
    >>> import householder.torch as ht
    >>> q, k, v = torch.randn(3, 1, 50, 2, 4, dtype=torch.float64)
    >>> o, _ = ht.linear_attention(q, k, v, scale=1.0)
    >>> torch.allclose(o[0, :, 1], (q[0, :, 1] @ k[0, :, 1].mT).tril() @ v[0, :, 1])
    True
    """
    inputs, options = (
        DeltaRuleInputs(q, k, v, None, g, initial_state, None, cu_seqlens),
        (scale, 1, use_qk_l2norm_in_kernel),
    )
    if states_at is not None:
        return delta.run_with_states(inputs, *options, output_final_state, states_at, erases=False)
    return delta.run(inputs, *options, output_final_state=output_final_state, erases=False)
