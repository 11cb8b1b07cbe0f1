"""Linear attention as a function: the delta rule without betas, so that nothing is erased."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

import householder
from householder._base.docstrings import completed_by
from householder.jax import _delta

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from jax import Array

    from householder._base.types import ArrayLike, AttentionArgs


@overload
def linear_attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, states_at: None = None, **options: Unpack[AttentionArgs]
) -> tuple[Array, Array | None]: ...
@overload
def linear_attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, states_at: Sequence[int], **options: Unpack[AttentionArgs]
) -> tuple[Array, Array | None, Array]: ...
@completed_by(householder.linear_attention, "Array")
def linear_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    g: ArrayLike = None,
    scale: float | None = None,
    initial_state: ArrayLike = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: ArrayLike = None,
    states_at: Sequence[int] | None = None,
) -> tuple[Array, Array | None] | tuple[Array, Array | None, Array]:
    r"""Run :math:`S_t = \mathrm{Diag}(e^{g_t}) S_{t-1} + k_t v_t^T` in one native call.

    The outputs are :math:`o_t = \mathrm{scale}\, S_t^T q_t`. Steps decay the state and write to it, but erase nothing.
    RetNet, Lightning attention and Mamba-2 have one gate per head, and gated linear attention one per channel. In
    Mamba-2, values are multiplied by their time steps. Tokens with ``k = 0`` and ``g = 0`` do not change the state; use
    them to pad short sequences.

    Parameters
    ----------
    q : Array, shape (B, T, H, K)
        Queries; float64, or float32 and half types, also mixed, which are computed in float32.
    g : Array, shape (B, T, HV) or (B, T, HV, K), optional
        Logarithms of decays, at most 0: one per head, or one for each row of its state. The CPU refuses positive ones;
        other devices compute with them.
    cu_seqlens : sequence of int, length N + 1, optional
        Packs sequences one after the other in a single row, ``B = 1``. Sequence ``i`` has the tokens ``cu_seqlens[i]``
        to ``cu_seqlens[i + 1] - 1``. The numbers must be known when the function is traced. Shorter sequences are
        padded for the call.

    Returns
    -------
    o : Array, shape (B, T, HV, V)
        In the dtype of ``q``.
    final_state : Array, shape (N, HV, K, V), or None
        In the dtype of the computation.
    states : Array, shape (B, len(states_at), HV, K, V), packed (len(states_at), HV, K, V)
        If ``states_at`` is given, in the dtype of the computation.

    Examples
    --------
    Without gates, it is causal attention without a softmax:

    >>> import jax
    >>> import householder.jax as hj
    >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 50, 2, 4))
    >>> o, _ = hj.linear_attention(q, k, v, scale=1.0)
    >>> explicit = jax.numpy.tril(q[0, :, 1] @ k[0, :, 1].T) @ v[0, :, 1]
    >>> bool(jax.numpy.allclose(o[0, :, 1], explicit, atol=1e-4))
    True
    """
    options = scale, 1, use_qk_l2norm_in_kernel
    return _delta.run(q, {"k": k, "v": v}, g, initial_state, cu_seqlens, *options, output_final_state, states_at)
