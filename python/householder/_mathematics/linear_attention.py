"""The delta rule and linear attention, chunk by chunk; the convolution and the gated norm of their layers."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from householder._mathematics import chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from householder._base.types import AnyArray
    from householder._mathematics.library import Library


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
        q, k = (x / norms(lib, x) for x in (q, k))
    operands = in_steps(lib, q, k, v, beta, g, scale, reflections)
    if initial_state is None:
        initial_state = no_state(lib, operands, cu_seqlens)
    if cu_seqlens is None:
        o, states = _sequence(lib, operands, initial_state)
    else:
        of_sequences = [(operands[2][:, :, :0, :], initial_state[:0, ...])]  # there may be no sequence
        for i, (begin, end) in enumerate(pairwise(cu_seqlens.tolist())):
            steps = [x[:, :, begin * reflections : end * reflections, :] for x in operands]
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


def norms(lib: Library, x: AnyArray) -> AnyArray:
    """Return the lengths by which rows are divided, a little more than zero for rows of zeros."""
    return lib.xp.sqrt(lib.xp.sum(lib.xp.square(x), axis=-1, keepdims=True) + 1e-6)


def in_steps(
    lib: Library,
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    beta: AnyArray | None,
    g: AnyArray | None,
    scale: float,
    reflections: int,
) -> list[AnyArray]:
    """Return q, k, v, g and perhaps beta of each step of each value head, ``(B, heads, steps, ..)``."""
    xp, group = lib.xp, v.shape[2] // q.shape[2]
    q, k = (xp.repeat(xp.permute_dims(x, (0, 2, 1, 3)), group, axis=1) for x in (scale * q, k))
    v = xp.permute_dims(v, (0, 2, 1, 3))
    betas = () if beta is None else (xp.permute_dims(beta, (0, 2, 1))[..., None],)
    g = lib.zeros(q.shape[:-1], q) if g is None else xp.permute_dims(g, (0, 2, 1, *range(3, g.ndim)))
    g = g if g.ndim == 4 else g[..., None]
    if reflections > 1:  # a gate at the first step of a token, a query at the last
        g = xp.reshape(chunks.padded(lib, g[..., None, :], 0, reflections - 1), (*v.shape[:-1], g.shape[-1]))
        q = at_last_steps(lib, q, reflections)
    return [q, k, v, g, *betas]


def at_last_steps(lib: Library, x: AnyArray, reflections: int) -> AnyArray:
    """Put rows of tokens ``(B, heads, T, ..)`` at the last of the steps of each token, zeros at the others."""
    if reflections == 1:
        return x
    rows = chunks.padded(lib, x[..., None, :], reflections - 1, 0)
    return lib.xp.reshape(rows, (*x.shape[:2], x.shape[2] * reflections, x.shape[3]))


def no_state(lib: Library, operands: Sequence[AnyArray], cu_seqlens: AnyArray | None) -> AnyArray:
    """Return the initial states of sequences that have none."""
    q, _, v, *_ = operands
    count = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return lib.zeros((count, q.shape[1], q.shape[-1], v.shape[-1]), q)


def _sequence(lib: Library, operands: Sequence[AnyArray], state: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Run q, k, v, g and perhaps beta of ``(B, heads, steps, ..)``: all chunks at once but for their states."""
    steps = operands[2].shape[2]
    if not steps:
        return operands[2], 1 * state  # a caller may change it in place, and the initial states stay
    o, state = _chunks(lib, state, *(chunks.cut(lib, x) for x in operands))
    return chunks.joined(lib, o, steps), state


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
    xp, values = lib.xp, v.shape[-1]
    scores, factors, since, after = _pairs_of_halves(lib, q, k, g, beta)
    from_start, to_end = xp.exp(since), xp.exp(after)
    decay, writing = xp.matrix_transpose(from_start[..., -1:, :]), xp.matrix_transpose(k * to_end)
    if beta is None:
        written, erased = v, None
    else:
        both = _substitute(lib, factors, beta * xp.concat([v, -from_start * k], axis=-1))
        written, erased = both[..., :values], both[..., values:]
    states = _states(lib, state, decay, writing, written, erased)
    d = written if erased is None else lib.add_product(written, erased, states)
    o = lib.add_product(xp.sum(q * k, axis=-1, keepdims=True) * d, q * from_start, states)
    for i, of_queries in enumerate(scores):
        o = chunks.add_to_second(lib, o, of_queries, d, 2**i)
    decay, states, writing, d = (x[:, :, -1, ...] for x in (decay, states, writing, d))
    return o, lib.add_product(decay * states, writing, d)


def _pairs_of_halves(
    lib: Library, q: AnyArray, k: AnyArray, g: AnyArray, beta: AnyArray | None
) -> tuple[list[AnyArray], list[AnyArray], AnyArray, AnyArray]:
    """Return scores of queries and factors of :math:`T^{-1}`, both from the first to the second halves of blocks.

    Also return the sums of gates from the start of a chunk to each step, and after it to the end.
    """
    xp, size, steps = lib.xp, 1, q.shape[-2]
    # Rows that multiply earlier keys, beside each other: one product serves all.
    readers = xp.stack([q] if beta is None else [q, -beta * k], axis=-2)
    scores: list[AnyArray] = []
    factors: list[AnyArray] = []
    since, after = g, xp.zeros_like(g)
    while size < steps:
        (since1, since2), (after1, after2) = chunks.halves(lib, since, size), chunks.halves(lib, after, size)
        earlier = xp.matrix_transpose(chunks.half(lib, k, 0, size) * xp.exp(after1))
        products = _products(lib, chunks.half(lib, readers, 1, size, -3), xp.exp(since2), earlier)
        scores.append(products[0])
        if beta is not None:
            inner = [chunks.half(lib, factor, 1, size >> (i + 1), -3) for i, factor in enumerate(factors)]
            factors.append(_substitute(lib, inner, products[1]))
        after = xp.reshape(xp.concat([after1 + since2[..., -1:, :], after2], axis=-2), g.shape)
        since = xp.reshape(xp.concat([since1, since1[..., -1:, :] + since2], axis=-2), g.shape)
        size *= 2
    return scores, factors, since, after


def _products(lib: Library, readers: AnyArray, decay: AnyArray, earlier: AnyArray) -> Sequence[AnyArray]:
    """Multiply the decayed rows of each of the readers, ``(.., size, readers, K)``, by ``earlier (.., K, size)``."""
    *blocks, size, count, keys = readers.shape
    rows = lib.xp.reshape(readers * decay[..., None, :], (*blocks, size * count, keys))
    return lib.unstack(lib.xp.reshape(rows @ earlier, (*blocks, size, count, size)), -2)


def _states(
    lib: Library, state: AnyArray, decay: AnyArray, writing: AnyArray, written: AnyArray, erased: AnyArray | None
) -> AnyArray:
    """Return the states in which the chunks begin; the last chunk's decay and what it writes are not used."""
    first = state[:, :, None, :, :]
    if decay.shape[2] == 1:
        return first
    decay, writing, written = (x[:, :, :-1, :, :] for x in (decay, writing, written))
    erased = None if erased is None else erased[:, :, :-1, :, :]
    transitions = chunks.transitions(lib, decay, writing, erased)
    _, others = chunks.states(lib, state, transitions, writing @ written, reverse=False)
    return lib.xp.concat([first, others], axis=2)


def _substitute(lib: Library, factors: Sequence[AnyArray], rows: AnyArray) -> AnyArray:
    """Multiply rows by the inverse of a triangle, given as its factors."""
    for i, factor in enumerate(factors):
        rows = chunks.add_to_second(lib, rows, factor, rows, 2**i)
    return rows
