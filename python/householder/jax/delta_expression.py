"""The delta rule in ``jax.numpy``, chunk by chunk: every derivative exists, on every device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

_LEAST = -800.0
"""``exp`` of smaller gates is zero in every precision. Gates are clipped here so that sums of them stay finite."""


def delta_rule(
    q: Array,
    k: Array,
    v: Array,
    beta: Array,
    g: Array | None,
    initial_state: Array | None,
    scale: float,
    reflections: int,
    normalize: bool,
) -> tuple[Array, Array]:
    """Give outputs and final states, in the shapes of the operator."""
    batch, tokens, heads, keys = q.shape
    value_heads, values = v.shape[2:]
    if normalize:
        q, k = (x * lax.rsqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    q, k = (jnp.repeat(x, value_heads // heads, 2) for x in (scale * q, k))
    gates = jnp.zeros((*q.shape[:3], 1), q.dtype) if g is None else jnp.maximum(g.reshape(*q.shape[:3], -1), _LEAST)
    if initial_state is None:
        initial_state = jnp.zeros((batch, value_heads, keys, values), q.dtype)
    # The gate acts at the first step of a token; the other steps have the gate 0.
    later = jnp.zeros((*gates.shape[:2], reflections - 1, *gates.shape[2:]), q.dtype)
    gates = jnp.concatenate([gates[:, :, None], later], 2).reshape(batch, -1, *gates.shape[2:])
    length = max(1, (64 if gates.shape[-1] == 1 else 16) // reflections)
    chunks = -(-tokens // length)

    def cut(x: Array, steps: int) -> Array:
        """Cut time into ``(chunks, B, HV, steps, ..)``. Steps beyond the end have zero keys and change nothing."""
        x = jnp.pad(x, [(0, 0), (0, chunks * steps - x.shape[1]), *[(0, 0)] * (x.ndim - 2)])
        return jnp.moveaxis(x.reshape(batch, chunks, steps, *x.shape[2:]), (1, 3), (0, 2))

    steps = length * reflections
    operands = (cut(q, length), cut(k, steps), cut(v, steps), cut(beta, steps), cut(gates, steps))
    last, o = lax.scan(lambda state, chunk: _chunk(state, *chunk, reflections), initial_state, operands)
    o = jnp.moveaxis(o, (0, 2), (1, 3)).reshape(batch, chunks * length, value_heads, values)
    return o[:, :tokens], last


def _chunk(state: Array, q: Array, k: Array, v: Array, beta: Array, g: Array, reflections: int) -> tuple[Array, Array]:
    with jax.default_matmul_precision("highest"):
        c, ends = jnp.cumsum(g, -2), slice(reflections - 1, None, reflections)
        size = c.shape[-2]
        earlier = jnp.tril(jnp.ones((size, size), bool))[:, :, None]
        difference = jnp.where(earlier, c[..., :, None, :] - c[..., None, :, :], 0.0)
        decay = jnp.where(earlier, jnp.exp(difference), 0.0)
        if decay.shape[-1] == 1:
            of_keys, of_queries = k @ k.mT * decay[..., 0], q @ k.mT * decay[..., ends, :, 0]
        else:
            of_keys = jnp.einsum("...ix,...jx,...ijx->...ij", k, k, decay)
            of_queries = jnp.einsum("...ix,...jx,...ijx->...ij", q, k, decay[..., ends, :, :])
        by = beta[..., None]
        system = jnp.eye(size, dtype=q.dtype) + by * jnp.tril(of_keys, -1)
        right = by * (v - (k * jnp.exp(c)) @ state)
        d = lax.linalg.triangular_solve(system, right, left_side=True, lower=True, unit_diagonal=True)
        o = (q * jnp.exp(c[..., ends, :])) @ state + of_queries @ d
        last = c[..., -1:, :]
        return jnp.exp(last).mT * state + (k * jnp.exp(last - c)).mT @ d, o
