"""The delta rule as a function: checks and types; ``_ops`` computes. Linear attention is the same without betas."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, overload

import jax.numpy as jnp
import numpy as np

import householder
from householder._base import segments, validate
from householder._base.docstrings import completed_by
from householder.jax import _check, _ops
from householder.jax._packing import pad

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Unpack

    from jax import Array

    from householder._base.types import AnyArray, Argument, ArrayLike, DeltaArgs


@overload
def delta_rule(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, beta: ArrayLike, states_at: None = None, **options: Unpack[DeltaArgs]
) -> tuple[Array, Array | None]: ...
@overload
def delta_rule(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, beta: ArrayLike, states_at: Sequence[int], **options: Unpack[DeltaArgs]
) -> tuple[Array, Array | None, Array]: ...
@completed_by(householder.delta_rule, "Array")
def delta_rule(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    beta: ArrayLike,
    g: ArrayLike = None,
    scale: float | None = None,
    initial_state: ArrayLike = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: ArrayLike = None,
    states_at: Sequence[int] | None = None,
    num_householder: int = 1,
) -> tuple[Array, Array | None] | tuple[Array, Array | None, Array]:
    r"""Run :math:`S_t = (I - \beta_t k_t k_t^T) \mathrm{Diag}(e^{g_t}) S_{t-1} + \beta_t k_t v_t^T` in one native call.

    The outputs are :math:`o_t = \mathrm{scale}\, S_t^T q_t`. With ``beta = 2``, unit keys and no gate, each step is a
    Householder reflection. DeltaNet has no gate, gated DeltaNet one per head, and Kimi delta attention one per channel.
    DeltaProduct has several reflections per token. Tokens with ``beta = 0`` and ``g = 0`` do not change the state; use
    them to pad short sequences.

    Parameters
    ----------
    q : Array, shape (B, T, H, K)
        Queries; float64, or float32 and half types, also mixed, which are computed in float32.
    g : Array, shape (B, T, HV) or (B, T, HV, K), optional
        Logarithms of decays, at most 0: one per head, or one for each row of its state. They act at the first step of
        a token. The CPU refuses positive ones; other devices compute with them.
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
    A reflection, applied twice, is the identity:

    >>> import jax.numpy as jnp
    >>> import householder.jax as hj
    >>> k = jnp.tile(jnp.array([0.6, 0.8]), (1, 2, 1, 1))
    >>> state, beta = jnp.eye(2)[None, None], jnp.full((1, 2, 1), 2.0)
    >>> _, final_state = hj.delta_rule(k, k, 0 * k, beta=beta, initial_state=state, output_final_state=True)
    >>> bool(jnp.allclose(final_state, state, atol=1e-6))
    True
    """
    needed, options = {"k": k, "v": v, "beta": beta}, (scale, num_householder, use_qk_l2norm_in_kernel)
    return run(q, needed, g, initial_state, cu_seqlens, *options, output_final_state, states_at)


def run(
    q: ArrayLike,
    needed: Mapping[str, ArrayLike],
    g: ArrayLike,
    initial_state: ArrayLike,
    cu_seqlens: ArrayLike,
    scale: float | None,
    num_householder: int,
    normalize: bool,
    output_final_state: bool,
    states_at: Argument,
) -> tuple[Array, Array | None] | tuple[Array, Array | None, Array]:
    """Check the arguments and compute; ``needed`` has k, v and, for the delta rule, beta."""
    q, compute = _check.first("q", q, _check.REAL_TYPES)
    needed = {name: _check.like(name, a, compute, "q") for name, a in needed.items()}
    g = None if g is None else _check.like("g", g, compute, "q")
    gates = None if g is None else g.shape
    shapes = {name: a.shape for name, a in needed.items()}
    sizes = validate.delta_sizes(q.shape, shapes, gates, num_householder)
    _, heads, keys, values, num_householder = sizes
    offsets = None if cu_seqlens is None else validate.delta_offsets(q.shape, cu_seqlens)
    states = (q.shape[0] if offsets is None else len(offsets) - 1, heads, keys, values)
    initial_state = _check.optional("initial_state", initial_state, compute, states, "q")
    scale = validate.scale(scale, keys)
    options = _ops.delta.DeltaRuleParams(scale, num_householder, validate.flag("use_qk_l2norm_in_kernel", normalize))
    arrays = q, needed["k"], needed["v"], needed.get("beta"), g
    operands = [None if a is None else _check.cast(a, compute) for a in arrays]
    wants_state = validate.flag("output_final_state", output_final_state)
    if states_at is None:
        o, last = _computed(options, operands, initial_state, offsets)
        return _check.cast(o, q.dtype), last if wants_state else None
    initial_state = jnp.zeros(states, compute) if initial_state is None else initial_state
    parts = segments.segments(states_at, q.shape, offsets)
    compute_part = partial(_computed, options)
    o, last, at_cuts = segments.run(jnp, compute_part, operands, initial_state, num_householder, parts)
    return _check.cast(o, q.dtype), last if wants_state else None, at_cuts


def _computed(
    options: _ops.delta.DeltaRuleParams,
    operands: Sequence[AnyArray],
    initial_state: Array | None,
    offsets: list[int] | None,
) -> tuple[Array, Array]:
    """Compute a call whose arguments are checked; packed sequences are padded for it."""
    if offsets is None:
        o, last = _ops.delta.delta_rule(options, *operands, initial_state)
        return o, last
    lengths = np.diff(offsets)
    mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
    of_steps = mask.repeat(options.reflections, axis=1)
    masks = mask, of_steps, of_steps, of_steps, mask
    padded = [None if a is None else pad(a[0], where) for a, where in zip(operands, masks, strict=True)]
    o, last = _ops.delta.delta_rule(options, *padded, initial_state)
    return o[mask][None], last
