"""The delta rule and linear attention, chunk by chunk; the convolution and the gated norm of their layers."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from householder._base.types import AnyArray
    from householder._mathematics.library import Library

_CHUNK = 64
"""The largest number of steps of the delta rule in a chunk."""


def delta_rule(
    lib: Library,
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    beta: AnyArray | None,
    g: AnyArray | None,
    initial_state: AnyArray | None,
    cu_seqlens: AnyArray | None,
    scale: float,
    reflections: int,
    normalize: bool,
    skip: AnyArray | None = None,
) -> tuple[AnyArray, AnyArray]:
    """Run the delta rule chunk by chunk: outputs and final states, in the shapes of the operator.

    Without ``beta`` nothing is erased: it is linear attention. With ``skip``, too: ``beta`` multiplies the values, and
    the outputs get the values times ``skip``.
    """
    xp = lib.xp
    if skip is not None:
        written = v if beta is None else beta[..., None] * v
        arguments = initial_state, cu_seqlens, scale, reflections, normalize
        o, states = delta_rule(lib, q, k, written, None, g, *arguments)
        return o + skip[:, None] * v, states
    if normalize:
        q, k = (x / xp.sqrt(xp.sum(xp.square(x), axis=-1, keepdims=True) + 1e-6) for x in (q, k))
    group = v.shape[2] // q.shape[2]
    q, k = (xp.repeat(xp.permute_dims(x, (0, 2, 1, 3)), group, axis=1) for x in (scale * q, k))
    v = xp.permute_dims(v, (0, 2, 1, 3))
    betas = () if beta is None else (xp.permute_dims(beta, (0, 2, 1))[..., None],)
    g = lib.zeros(q.shape[:-1], q) if g is None else xp.permute_dims(g, (0, 2, 1, *range(3, g.ndim)))
    g = g if g.ndim == 4 else g[..., None]
    if initial_state is None:
        count = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        initial_state = lib.zeros((count, *q.shape[1:2], k.shape[-1], v.shape[-1]), q)
    if reflections > 1:  # a gate at the first step of a token, a query at the last
        g = xp.reshape(_padded(lib, g[..., None, :], 0, reflections - 1), (*v.shape[:-1], g.shape[-1]))
        q = xp.reshape(_padded(lib, q[..., None, :], reflections - 1, 0), k.shape)
    if cu_seqlens is None:
        o, states = _sequence(lib, (q, k, v, g, *betas), initial_state)
    else:
        of_sequences = []
        for i, (begin, end) in enumerate(pairwise(cu_seqlens.tolist())):
            steps = [x[:, :, begin * reflections : end * reflections, :] for x in (q, k, v, g, *betas)]
            of_sequences.append(_sequence(lib, steps, initial_state[i : i + 1, ...]))
        outputs, each = zip(*of_sequences, strict=True)
        o, states = xp.concat(outputs, axis=2), xp.concat(each, axis=0)
    return xp.permute_dims(o[:, :, reflections - 1 :: reflections, :], (0, 2, 1, 3)), states


def causal_convolution(lib: Library, x: AnyArray, weight: AnyArray, bias: AnyArray | None, silu: bool) -> AnyArray:
    """Convolve each channel of ``(B, T, C)`` along time, in the dtype of ``weight (C, taps)``."""
    (batch, tokens, channels), taps = x.shape, weight.shape[1]
    wide = lib.cast(x, weight.dtype)
    padded = lib.xp.concat([lib.zeros((batch, taps - 1, channels), wide), wide], axis=1)
    a = sum(weight[:, j] * padded[:, j : j + tokens, :] for j in range(taps))
    a = a if bias is None else a + bias
    return lib.cast(a * _sigmoid(lib, a) if silu else a, x.dtype)


def gated_norm(lib: Library, x: AnyArray, z: AnyArray, weight: AnyArray, epsilon: float, silu: bool) -> AnyArray:
    """Normalise rows, times weights and the logistic function of gates, or their SiLU, in the dtype of ``weight``."""
    wide, gate = lib.cast(x, weight.dtype), lib.cast(z, weight.dtype)
    mean = lib.xp.mean(lib.xp.square(wide), axis=-1, keepdims=True)
    phi = gate * _sigmoid(lib, gate) if silu else _sigmoid(lib, gate)
    return lib.cast(weight * (wide / lib.xp.sqrt(mean + epsilon)) * phi, x.dtype)


def _sigmoid(lib: Library, a: AnyArray) -> AnyArray:
    """Return the logistic function, by tanh, whose derivatives do not overflow."""
    return 0.5 * (1 + lib.xp.tanh(0.5 * a))


def _sequence(lib: Library, operands: Sequence[AnyArray], state: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Run q, k, v, g and perhaps beta of ``(B, heads, steps, ..)``: whole chunks, then the remaining steps."""
    v, steps = operands[2], operands[2].shape[2]
    whole = steps - steps % _CHUNK
    outputs = [v[:, :, :0, :]]
    if whole:
        chunks = [
            lib.xp.reshape(x[:, :, :whole, :], (*x.shape[:2], whole // _CHUNK, _CHUNK, x.shape[-1])) for x in operands
        ]
        state, o = lib.scan(lambda state, *parts: _chunk(lib, state, *parts), state, chunks, 2, False)
        outputs.append(lib.xp.reshape(o, (*v.shape[:2], whole, v.shape[-1])))
    if whole < steps:
        # Steps beyond the end have zero keys and no gate: they change nothing.
        beyond = (1 << (steps - whole - 1).bit_length()) - (steps - whole)
        state, o = _chunk(lib, state, *(_padded(lib, x[:, :, whole:, :], 0, beyond) for x in operands))
        outputs.append(o[:, :, : steps - whole, :])
    return lib.xp.concat(outputs, axis=2), state


def _chunk(
    lib: Library, state: AnyArray, q: AnyArray, k: AnyArray, v: AnyArray, g: AnyArray, beta: AnyArray | None = None
) -> tuple[AnyArray, AnyArray]:
    """Run ``2^i`` steps, pairing the halves of blocks of 2, 4, .. steps; return the state and the outputs.

    Decays from one half to the other are sums of gates, never differences. No product has terms of later steps, which
    a zero would not remove if they were infinity or NaN; neither have derivatives of any order.
    """
    xp, size, pairs, steps = lib.xp, 1, [], q.shape[-2]

    def halves(x: AnyArray, size: int) -> tuple[AnyArray, AnyArray]:
        """Cut rows into blocks of ``2 size``; return the first and the second halves of all blocks."""
        blocks = *q.shape[:-2], steps // (2 * size), 2, size, x.shape[-1]
        first, second = lib.unstack(xp.reshape(x, blocks), -3)
        return first, second

    since, after = g[..., None, :], xp.zeros_like(g)[..., None, :]  # sums of gates to each step, and after it
    system = xp.zeros_like(since[..., :1])  # ones on the diagonal go without saying
    while size < steps:
        k1, k2 = halves(k, size)
        (since1, since2), (after1, after2) = halves(since, size), halves(after, size)
        earlier, decay = xp.matrix_transpose(k1 * xp.exp(after1)), xp.exp(since2)
        pairs.append((halves(q, size)[1] * decay) @ earlier)
        if beta is not None:
            of_keys = (halves(beta, size)[1] * decay * k2) @ earlier
            first, second = halves(system, size)
            above, below = xp.concat([first, xp.zeros_like(first)], axis=-1), xp.concat([of_keys, second], axis=-1)
            system = xp.concat([above, below], axis=-2)
        after = xp.concat([after1 + since2[..., -1:, :], after2], axis=-2)
        since = xp.concat([since1, since1[..., -1:, :] + since2], axis=-2)
        size *= 2
    from_start, to_end = xp.exp(since[..., 0, :, :]), xp.exp(after[..., 0, :, :])
    d = v
    if beta is not None:
        d = lib.solve(system[..., 0, :, :], beta * (v - (k * from_start) @ state), upper=False)
    o = (q * from_start) @ state + xp.sum(q * k, axis=-1, keepdims=True) * d
    for i, of_queries in enumerate(pairs):
        o = o + xp.reshape(_padded(lib, of_queries @ halves(d, 2**i)[0], 2**i, 0), o.shape)
    return xp.matrix_transpose(from_start[..., -1:, :]) * state + xp.matrix_transpose(k * to_end) @ d, o


def _padded(lib: Library, x: AnyArray, before: int, after: int) -> AnyArray:
    """Put rows of zeros before or after those of ``x``."""
    if not before and not after:
        return x
    zeros = lib.zeros((*x.shape[:-2], before + after, x.shape[-1]), x)
    return lib.xp.concat([zeros, x] if before else [x, zeros], axis=-2)
