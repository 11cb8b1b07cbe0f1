"""Commit drafted tokens: the states after those of them that are accepted, in one pass over each state."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

import householder
from householder._base import drafts, validate
from householder._base.docstrings import completed_by
from householder.jax import _check, _ops

if TYPE_CHECKING:
    from jax import Array

    from householder._base.types import AnyArray, ArrayLike


@completed_by(householder.commit, "Array")
def commit(
    state: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    accepted: ArrayLike,
    beta: ArrayLike = None,
    g: ArrayLike = None,
    use_qk_l2norm_in_kernel: bool = False,
    num_householder: int = 1,
) -> Array:
    """Return the states after the accepted tokens of a draft, for speculative decoding.

    Call :func:`delta_rule` for the outputs of all T drafted tokens first. Decide how many tokens of each sequence are
    accepted, and commit these. A state is read and written once, however many tokens there are, and rejected tokens
    have no effect, even if they are infinite or NaN.

    Parameters
    ----------
    k : Array, shape (B, T * num_householder, H, K)
        Keys; float64, or float32 and half types, also mixed, which are computed in float32.
    accepted : array of int, shape (B,)
        How many of the T tokens each sequence accepts, from 0 to T; those of a traced array are not checked.

    Returns
    -------
    Array, shape (B, HV, K, V)
        In the dtype of the computation.

    Examples
    --------
    Two sequences with four drafted tokens each. The first one accepts one of them, the second one three:

    >>> import jax, jax.numpy as jnp
    >>> import householder.jax as hj
    >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 4, 2, 8)) / 3
    >>> beta, state = jnp.full((2, 4, 2), 0.5), jnp.zeros((2, 2, 8, 8))
    >>> o, _, prefixes = hj.delta_rule(q, k, v, beta=beta, initial_state=state, states_at=[1, 3])
    >>> after = hj.commit(state, k, v, beta=beta, accepted=[1, 3])
    >>> bool(jnp.allclose(after, jnp.stack([prefixes[0, 0], prefixes[1, 1]]), atol=1e-6))
    True
    """
    k, compute = _check.first("k", k, _check.REAL_TYPES)
    others = {"v": _check.like("v", v, compute, "k")}
    if beta is not None:
        others["beta"] = _check.like("beta", beta, compute, "k")
    g = None if g is None else _check.like("g", g, compute, "k")
    shapes = {name: a.shape for name, a in others.items()}
    sizes = drafts.sizes(k.shape, shapes, None if g is None else g.shape, num_householder)
    state = _check.optional("state", _check.like("state", state, compute, "k"), compute, sizes.states, "k")
    options = _ops.delta.DeltaRuleParams(
        1.0, sizes.native[-1], validate.flag("use_qk_l2norm_in_kernel", use_qk_l2norm_in_kernel)
    )
    with suppress(jax.errors.JAXTypeError):  # traced numbers cannot be checked
        accepted = np.array(validate.accepted(accepted, sizes.batch, sizes.tokens), np.int32)
    if not jnp.issubdtype(accepted.dtype, jnp.integer):
        raise TypeError(f"accepted has dtype {accepted.dtype}, expected integers")
    validate.shape("accepted", accepted, (sizes.batch,))
    is_accepted = jnp.arange(sizes.tokens) < jnp.asarray(accepted)[:, None]
    of_steps = jnp.repeat(is_accepted, options.reflections, axis=1)

    def first(a: AnyArray, mask: Array) -> AnyArray:
        """Return zeros, which change nothing, in the place of tokens that are not accepted."""
        if a is None:
            return None
        return jnp.where(jnp.expand_dims(mask, range(2, a.ndim)), _check.cast(a, compute), 0)

    keys = first(k, of_steps)
    operands = keys[:, : sizes.tokens], keys, *(first(others.get(name), of_steps) for name in ("v", "beta"))
    last: Array
    _, last = _ops.delta.delta_rule(options, *operands, first(g, is_accepted), state)
    return last
