"""The delta rule in ``jax.numpy``, chunk by chunk: every derivative exists, on every device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

_CHUNK = 64
"""Most steps that are taken together."""


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
    batch, _, heads, keys = q.shape
    value_heads, values = v.shape[2:]
    if normalize:
        q, k = (x * lax.rsqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    q, k = (jnp.repeat(x, value_heads // heads, 2) for x in (scale * q, k))
    gates = jnp.zeros((*q.shape[:3], 1), q.dtype) if g is None else g.reshape(*q.shape[:3], -1)
    if initial_state is None:
        initial_state = jnp.zeros((batch, value_heads, keys, values), q.dtype)
    # The gate acts at the first step of a token, the query at the last: none and zero at the others.
    others = (0, reflections - 1)
    gates = _padded(gates[:, :, None], 2, others).reshape(batch, -1, *gates.shape[2:])
    q = _padded(q[:, :, None], 2, others[::-1]).reshape(batch, -1, *q.shape[2:])
    steps, size = k.shape[1], 1
    while size < min(_CHUNK, steps):
        size *= 2
    chunks = -(-steps // size)

    def cut(x: Array) -> Array:
        """Cut time into ``(chunks, B, HV, steps, ..)``. Steps beyond the end have zero keys and change nothing."""
        x = _padded(x, 1, (0, chunks * size - steps))
        return jnp.moveaxis(x.reshape(batch, chunks, size, *x.shape[2:]), (1, 3), (0, 2))

    operands = tuple(cut(x) for x in (q, k, v, beta[..., None], gates))
    last, o = lax.scan(lambda state, chunk: _chunk(state, *chunk), initial_state, operands)
    o = jnp.moveaxis(o, (0, 2), (1, 3)).reshape(batch, chunks * size, value_heads, values)
    return o[:, reflections - 1 : steps : reflections], last


def _chunk(state: Array, q: Array, k: Array, v: Array, beta: Array, g: Array) -> tuple[Array, Array]:
    """Run ``2^i`` steps; pairs of steps are formed between the halves of blocks of 2, 4, .. steps.

    Decays from one half to the other are sums of gates, never differences. No product has terms of later steps, which
    a zero would not remove if they were infinity or NaN; neither have derivatives of any order.
    """
    with jax.default_matmul_precision("highest"):
        size, pairs = 1, []
        system = jnp.ones((*q.shape[:-1], 1, 1), q.dtype)  # a block of one number for each step
        while size < q.shape[-2]:
            (k1, k2), (g1, g2) = _halves(k, size), _halves(g, size)
            earlier, decay = (k1 * jnp.exp(_later_sums(g1))).mT, jnp.exp(jnp.cumsum(g2, -2))
            pairs.append((_halves(q, size)[1] * decay) @ earlier)
            of_keys = (_halves(beta, size)[1] * decay * k2) @ earlier
            above = _padded(system[..., ::2, :, :], -1, (0, size))
            system = jnp.concatenate([above, jnp.concatenate([of_keys, system[..., 1::2, :, :]], -1)], -2)
            size *= 2
        from_start = jnp.exp(jnp.cumsum(g, -2))
        right = beta * (v - (k * from_start) @ state)
        d = lax.linalg.triangular_solve(system[..., 0, :, :], right, left_side=True, lower=True, unit_diagonal=True)
        o = (q * from_start) @ state + (q * k).sum(-1, keepdims=True) * d
        for i, of_queries in enumerate(pairs):
            o += _padded(of_queries @ _halves(d, 2**i)[0], -2, (2**i, 0)).reshape(o.shape)
        return from_start[..., -1:, :].mT * state + (k * jnp.exp(_later_sums(g))).mT @ d, o


def _halves(x: Array, size: int) -> tuple[Array, Array]:
    """Cut rows into blocks of ``2 size``; give the first and the second halves of all blocks."""
    x = x.reshape(*x.shape[:-2], x.shape[-2] // (2 * size), 2, size, x.shape[-1])
    return x[..., 0, :, :], x[..., 1, :, :]


def _later_sums(g: Array) -> Array:
    """Sum the gates of all steps after each one."""
    return lax.cumsum(_padded(g[..., 1:, :], -2, (0, 1)), g.ndim - 2, reverse=True)


def _padded(x: Array, axis: int, zeros: tuple[int, int]) -> Array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = zeros
    return jnp.pad(x, widths)
