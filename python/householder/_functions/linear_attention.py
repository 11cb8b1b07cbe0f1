"""Linear attention: the delta rule without betas, so that nothing is erased. One native call each way."""

from collections.abc import Sequence
from typing import Unpack, overload

from householder._base.docstrings import completed_by
from householder._base.types import ArrayLike, AttentionArgs, Delta, DeltaWithStates
from householder._functions.delta import Call, DeltaVjp, DeltaWithStatesVjp, delta_rule


@overload
def linear_attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, states_at: None = None, **options: Unpack[AttentionArgs]
) -> Delta: ...
@overload
def linear_attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, states_at: Sequence[int], **options: Unpack[AttentionArgs]
) -> DeltaWithStates: ...
@completed_by(delta_rule, "array")
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
) -> Delta | DeltaWithStates:
    """Run ``S_t = Diag(exp g_t) S_{t-1} + k_t v_t'``, ``o_t = scale S_t' q_t``.

    Steps decay the state and write to it, but erase nothing. RetNet, Lightning attention and Mamba-2 have one gate per
    head, and gated linear attention one per channel. In Mamba-2, values are multiplied by their time steps.

    Parameters
    ----------
    k : array, shape (B, T, H, K)
        Keys.
    v : array, shape (B, T, HV, V)
        Values; HV is a multiple of H, and consecutive value heads share a key head.
    g : array, shape (B, T, HV) or (B, T, HV, K), optional
        Logarithms of decays, at most 0: one per head, or one for each row of its state.

    Examples
    --------
    Without gates, it is causal attention without a softmax:

    >>> import numpy as np, householder as hh
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 50, 2, 4))
    >>> o = hh.linear_attention(q, k, v, scale=1.0).o
    >>> bool(np.allclose(o[0, :, 1], np.tril(q[0, :, 1] @ k[0, :, 1].T) @ v[0, :, 1]))
    True
    """
    needed, options = {"k": k, "v": v}, (scale, 1, cu_seqlens, use_qk_l2norm_in_kernel)
    return Call.of(q, needed, g, initial_state, *options).results(output_final_state, states_at)


@overload
def linear_attention_vjp(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, states_at: None = None, **options: Unpack[AttentionArgs]
) -> tuple[Delta, DeltaVjp]: ...
@overload
def linear_attention_vjp(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, states_at: Sequence[int], **options: Unpack[AttentionArgs]
) -> tuple[DeltaWithStates, DeltaWithStatesVjp]: ...
def linear_attention_vjp(
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
) -> tuple[Delta, DeltaVjp] | tuple[DeltaWithStates, DeltaWithStatesVjp]:
    """Return the results of :func:`linear_attention`, with a function that computes gradients.

    The function remembers every argument, so a gradient always belongs to these results. Do not change an argument in
    place before the last call of the function.

    Parameters
    ----------
    q, k, v : array
        Queries, keys and values. All arguments are as for :func:`linear_attention`.
    g, initial_state : array, optional
        Logarithms of decays, and states in which the sequences begin.
    scale : float, optional
        Factor of the outputs.
    output_final_state, use_qk_l2norm_in_kernel : bool
        Return the final states, and normalise queries and keys.
    cu_seqlens : sequence of int, length N + 1, optional
        Packs sequences in a single row.
    states_at : sequence of int, optional
        Return the states after so many tokens, too.

    Returns
    -------
    results : Delta or, with ``states_at``, DeltaWithStates
        Named tuple of the outputs ``o`` and ``final_state``, as :func:`linear_attention` returns them.
    vjp : DeltaVjp or, with ``states_at``, DeltaWithStatesVjp
        The function: ``vjp(grad_o, grad_final_state=None)`` returns the gradients of all array arguments; that of
        ``beta`` is None. With ``states_at`` it also takes ``grad_states``.

    Raises
    ------
    TypeError, ValueError
        As in :func:`linear_attention`.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 1, 50, 2, 4)) / 2
    >>> (o, final_state), vjp = hh.linear_attention_vjp(q, k, v, g=-rng.random((1, 50, 2)))
    >>> grads = vjp(2 * o)  # the loss is the sum of all o**2
    >>> grads.k.shape, grads.g.shape, grads.beta
    ((1, 50, 2, 4), (1, 50, 2), None)
    """
    needed, options = {"k": k, "v": v}, (scale, 1, cu_seqlens, use_qk_l2norm_in_kernel)
    return Call.of(q, needed, g, initial_state, *options).results_and_vjp(output_final_state, states_at)
