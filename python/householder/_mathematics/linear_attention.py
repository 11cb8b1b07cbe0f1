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
    """Run q, k, v, g and perhaps beta of ``(B, heads, steps, ..)``: all chunks at once but for their states."""
    steps = operands[2].shape[2]
    if not steps:
        return operands[2], state
    size = min(_CHUNK, 1 << (steps - 1).bit_length())
    chunks = -(-steps // size)
    # Steps beyond the end have zero keys and no gate: they change nothing.
    padded = (_padded(lib, x, 0, chunks * size - steps) for x in operands)
    o, state = _chunks(lib, state, *(lib.xp.reshape(x, (*x.shape[:2], chunks, size, x.shape[-1])) for x in padded))
    return lib.xp.reshape(o, (*o.shape[:2], chunks * size, o.shape[-1]))[:, :, :steps, :], state


def _chunks(
    lib: Library, state: AnyArray, q: AnyArray, k: AnyArray, v: AnyArray, g: AnyArray, beta: AnyArray | None = None
) -> tuple[AnyArray, AnyArray]:
    r"""Run chunks of ``2^i`` steps ``(B, heads, chunks, 2^i, K)``, pairing the halves of blocks of 2, 4, .. steps.

    Decays aside, the steps of a chunk write :math:`D = T^{-1} \mathrm{diag}(\beta) (V - K S)` to its state S, with
    :math:`T = I + \mathrm{stril}(\mathrm{diag}(\beta) K K^*)`. The inverse is a product with a factor for each size of
    blocks, which subtracts multiples of first halves from second halves: nothing is solved. D depends on S by a
    product, and so does the next state, which is the only recurrence.

    Decays from one half to the other are sums of gates, never differences. No product has terms of later steps, which
    a zero would not remove if they were infinity or NaN; neither have derivatives of any order.
    """
    xp, size, steps, values = lib.xp, 1, q.shape[-2], v.shape[-1]
    # Of queries and of T^-1, from the first to the second halves of blocks of each size.
    scores: list[AnyArray] = []
    factors: list[AnyArray] = []
    since, after = g, xp.zeros_like(g)  # sums of gates from the start of a block to each step, and after it to the end
    while size < steps:
        k1, k2 = _halves(lib, k, size)
        (since1, since2), (after1, after2) = _halves(lib, since, size), _halves(lib, after, size)
        earlier, decay = xp.matrix_transpose(k1 * xp.exp(after1)), xp.exp(since2)
        scores.append((_halves(lib, q, size)[1] * decay) @ earlier)
        if beta is not None:
            of_second = [_second(lib, factor, scores[-1].shape[-3]) for factor in factors]
            of_keys = (_halves(lib, beta, size)[1] * decay * k2) @ earlier
            factors.append(_substitute(lib, of_second, of_keys))
        after = xp.reshape(xp.concat([after1 + since2[..., -1:, :], after2], axis=-2), g.shape)
        since = xp.reshape(xp.concat([since1, since1[..., -1:, :] + since2], axis=-2), g.shape)
        size *= 2
    from_start, to_end = xp.exp(since), xp.exp(after)
    decay, writing = xp.matrix_transpose(from_start[..., -1:, :]), xp.matrix_transpose(k * to_end)
    if beta is None:
        written, erased = v, None
    else:
        both = _substitute(lib, factors, beta * xp.concat([v, k * from_start], axis=-1))
        written, erased = both[..., :values], both[..., values:]
    states = _states(lib, state, decay, writing, written, erased)
    d = written if erased is None else written - erased @ states
    o = (q * from_start) @ states + xp.sum(q * k, axis=-1, keepdims=True) * d
    for i, of_queries in enumerate(scores):
        o = o + xp.reshape(_padded(lib, of_queries @ _halves(lib, d, 2**i)[0], 2**i, 0), o.shape)
    decay, states, writing, d = (x[:, :, -1, ...] for x in (decay, states, writing, d))
    return o, decay * states + writing @ d


def _states(
    lib: Library, state: AnyArray, decay: AnyArray, writing: AnyArray, written: AnyArray, erased: AnyArray | None
) -> AnyArray:
    """Return the states in which the chunks begin; the last chunk's decay and what it writes are not used."""
    first = state[:, :, None, :, :]
    if decay.shape[2] == 1:
        return first
    decay, writing, written = (x[:, :, :-1, :, :] for x in (decay, writing, written))
    transitions = decay
    if erased is not None:
        transitions = decay * lib.eye(writing.shape[-2], decay) - writing @ erased[:, :, :-1, :, :]

    def advance(s: AnyArray, transition: AnyArray, addition: AnyArray) -> tuple[AnyArray, AnyArray]:
        s = (transition * s if erased is None else transition @ s) + addition
        return s, s

    _, others = lib.scan(advance, state, [transitions, writing @ written], 2, False)
    return lib.xp.concat([first, others], axis=2)


def _substitute(lib: Library, factors: Sequence[AnyArray], rows: AnyArray) -> AnyArray:
    """Multiply rows by the inverse of a triangle, given as its factors."""
    for i, factor in enumerate(factors):
        first, second = _halves(lib, rows, 2**i)
        rows = lib.xp.reshape(lib.xp.concat([first, second - factor @ first], axis=-2), rows.shape)
    return rows


def _halves(lib: Library, x: AnyArray, size: int) -> Sequence[AnyArray]:
    """Cut rows into blocks of ``2 size``; return the first and the second halves of all blocks."""
    return lib.unstack(lib.xp.reshape(x, (*x.shape[:-2], x.shape[-2] // (2 * size), 2, size, x.shape[-1])), -3)


def _second(lib: Library, factor: AnyArray, blocks: int) -> AnyArray:
    """Return the parts of a factor, ``(.., size, size)`` for each block, that are in second halves of larger blocks."""
    parts = factor.shape[-3] // (2 * blocks)
    split = lib.xp.reshape(factor, (*factor.shape[:-3], blocks, 2, parts, *factor.shape[-2:]))
    return lib.unstack(split, -4)[1]


def _padded(lib: Library, x: AnyArray, before: int, after: int) -> AnyArray:
    """Put rows of zeros before or after those of ``x``."""
    if not before and not after:
        return x
    zeros = lib.zeros((*x.shape[:-2], before + after, x.shape[-1]), x)
    return lib.xp.concat([zeros, x] if before else [x, zeros], axis=-2)
