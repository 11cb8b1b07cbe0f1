r"""Gradients of the delta rule and linear attention in closed form: all chunks at once but for their states.

In a chunk, steps with the decayed products P of queries and A of keys leave errors E and write D to their state S,

.. math:: E = V - \gamma K S - A D, \quad D = \mathrm{diag}(\beta) E, \quad O = \gamma Q S + P D,

and the next state is :math:`\gamma_{end} S + (\kappa K)^T D`. The gradients Z of E follow from those of outputs and of
the next state by the transpose of the system of E:

.. math:: (I + A\,\mathrm{diag}(\beta))^T Z = \mathrm{diag}(\beta) (P^T dO + \kappa K\, dS_{end}).

They are those of the values. The gradients of products are :math:`dP = dO D^T` and :math:`dA = -Z D^T`. Without
``beta``, E and D are the values, and Z has no system. The forward pass is computed again but for its outputs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from householder._mathematics import chunks
from householder._mathematics.linear_attention import at_last_steps, in_steps, no_state, norms
from householder._mathematics.pairs import Pairs, PairsByChannel, PairsByHead, product_with_later, sums_to_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from householder._base.types import AnyArray
    from householder._mathematics.library import Library


class _Forward(NamedTuple):
    """What the forward pass leaves."""

    factors: Sequence[AnyArray]
    """Factors of the inverse of the systems of errors, one for each size of halves."""
    errors: AnyArray
    states: AnyArray
    """The states in which chunks begin."""
    transitions: AnyArray
    erased: AnyArray | None


class _Passes(NamedTuple):
    """What both passes over states leave."""

    errors: AnyArray
    states: AnyArray
    after: AnyArray
    """The gradients of the states in which chunks end."""
    grad_v: AnyArray
    """The gradients of the values, which are those of the errors."""


class _Reached(NamedTuple):
    """Gradients after both passes over states."""

    v: AnyArray
    reading: AnyArray
    """Of the rows that read, as far as they read states."""
    keys: AnyArray
    """Of the keys that write errors to the next states."""
    decay: AnyArray
    """Of the gates of a chunk, as far as they decay its state to the next."""
    products: AnyArray
    """Of the products of pairs with errors in the place of what is written."""


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
    skip: AnyArray | None,
    grad_o: AnyArray | None,
    grad_last: AnyArray | None,
) -> tuple[AnyArray | None, ...]:
    """Return the gradients of q, k, v, beta, g, the initial state and skip, None for operands that are None."""
    if grad_o is None:
        grad_o = lib.zeros((*q.shape[:2], *v.shape[2:]), q)
    options = initial_state, cu_seqlens, scale, reflections, normalize, grad_o, grad_last
    if skip is None:
        return *_gradients(lib, q, k, v, beta, g, *options), None
    written = v if beta is None else beta[..., None] * v
    grad_q, grad_k, of_written, _, grad_g, grad_state = _gradients(lib, q, k, written, None, g, *options)
    grad_v = (of_written if beta is None else beta[..., None] * of_written) + skip[:, None] * grad_o
    grad_beta = None if beta is None else lib.xp.sum(of_written * v, axis=-1)
    return grad_q, grad_k, grad_v, grad_beta, grad_g, grad_state, lib.xp.sum(grad_o * v, axis=(0, 1, 3))


def _gradients(
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
    grad_o: AnyArray,
    grad_last: AnyArray | None,
) -> tuple[AnyArray | None, ...]:
    """Return the gradients of q, k, v, beta, g and the initial state."""
    xp = lib.xp
    lengths = [norms(lib, x) if normalize else None for x in (q, k)]
    q, k = (x if length is None else x / length for x, length in zip((q, k), lengths, strict=True))
    operands = in_steps(lib, q, k, v, beta, g, scale, reflections)
    state = no_state(lib, operands, cu_seqlens) if initial_state is None else initial_state
    grad_last = xp.zeros_like(state) if grad_last is None else grad_last
    operands.append(at_last_steps(lib, xp.permute_dims(grad_o, (0, 2, 1, 3)), reflections))
    grad_state, gradients = _sequences(lib, operands, state, grad_last, cu_seqlens, reflections)
    of_queries, *others = (xp.permute_dims(x, (0, 2, 1, 3)) for x in gradients)
    of_keys, grad_v, of_gates, *of_betas = others
    of_queries = scale * of_queries[:, reflections - 1 :: reflections, ...]
    of_gates = of_gates[:, ::reflections, ...]
    return (
        _of_key_heads(lib, of_queries, q, lengths[0]),
        _of_key_heads(lib, of_keys, k, lengths[1]),
        grad_v,
        of_betas[0][..., 0] if of_betas else None,
        None if g is None else xp.reshape(of_gates, g.shape),
        None if initial_state is None else grad_state,
    )


def _of_key_heads(lib: Library, grad: AnyArray, x: AnyArray, length: AnyArray | None) -> AnyArray:
    """Return the gradients of queries or keys, given those of each value head and what they were normalized to."""
    if grad.shape[2] != x.shape[2]:
        batch, steps, heads, keys = x.shape
        grad = lib.xp.sum(lib.xp.reshape(grad, (batch, steps, heads, grad.shape[2] // heads, keys)), axis=3)
    return grad if length is None else (grad - x * lib.xp.sum(x * grad, axis=-1, keepdims=True)) / length


def _sequences(
    lib: Library,
    operands: Sequence[AnyArray],
    states: AnyArray,
    grad_states: AnyArray,
    cu_seqlens: AnyArray | None,
    reflections: int,
) -> tuple[AnyArray, Sequence[AnyArray]]:
    """Return the gradients of the initial states, and of q, k, v, g and perhaps beta of ``(B, heads, steps, ..)``."""
    if cu_seqlens is None:
        return _sequence(lib, operands, states, grad_states)
    each: list[tuple[AnyArray, Sequence[AnyArray]]]
    each = [(states[:0, ...], [x[:, :, :0, :] for x in operands[:-1]])]  # there may be no sequence
    for i, (begin, end) in enumerate(pairwise(cu_seqlens.tolist())):
        steps = [x[:, :, begin * reflections : end * reflections, :] for x in operands]
        each.append(_sequence(lib, steps, states[i : i + 1, ...], grad_states[i : i + 1, ...]))
    of_states, of_operands = zip(*each, strict=True)
    gradients = [lib.xp.concat(grads, axis=2) for grads in zip(*of_operands, strict=True)]
    return lib.xp.concat(of_states, axis=0), gradients


def _sequence(
    lib: Library, operands: Sequence[AnyArray], state: AnyArray, grad_state: AnyArray
) -> tuple[AnyArray, Sequence[AnyArray]]:
    """Return the gradients of a sequence, given q, k, v, g, perhaps beta, and the gradients of outputs."""
    steps = operands[2].shape[2]
    if not steps:
        return grad_state, operands[:-1]
    *cut, grad_o = (chunks.cut(lib, x) for x in operands)
    grad_state, *gradients = _chunks(lib, grad_o, grad_state, state, *cut)
    return grad_state, [chunks.joined(lib, grad, steps) for grad in gradients]


def _chunks(
    lib: Library,
    grad_o: AnyArray,
    grad_state: AnyArray,
    state: AnyArray,
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    g: AnyArray,
    beta: AnyArray | None = None,
) -> list[AnyArray]:
    """Return the gradients of the state and of the operands of chunks."""
    xp, kind = lib.xp, PairsByHead if g.shape[-1] == 1 else PairsByChannel
    pairs = kind(lib, xp.stack([q, k], axis=-3), g, 1 if beta is None else 2)
    grad_state, reached = _reached(lib, pairs, v, beta, state, grad_o, grad_state)
    of_products, of_keys, of_betas = reached.products, reached.keys, []
    if beta is not None:
        from_pairs = xp.sum(of_products * pairs.products, axis=(-3, -2))[..., None]
        of_betas = [from_pairs + xp.sum(k * of_keys, axis=-1, keepdims=True)]
        of_products, of_keys = xp.matrix_transpose(beta)[..., None, :, :] * of_products, beta * of_keys
    of_gates = _of_gates(lib, g, xp.sum(pairs.reading * reached.reading, axis=-3), k * of_keys, reached.decay)
    of_pairs = pairs.gradients(of_products)
    grad_q, *of_readers = lib.unstack(of_pairs.reading + reached.reading, -3)
    grad_k = sum(of_readers, start=of_pairs.keys + of_keys)
    return [grad_state, grad_q, grad_k, reached.v, of_pairs.gates + of_gates, *of_betas]


def _reached(
    lib: Library,
    pairs: Pairs,
    v: AnyArray,
    beta: AnyArray | None,
    state: AnyArray,
    grad_o: AnyArray,
    grad_state: AnyArray,
) -> tuple[AnyArray, _Reached]:
    """Return the gradients of the initial state, and those after both passes over states."""
    xp = lib.xp
    grad_state, passes = _passes(lib, pairs, v, beta, state, grad_o, grad_state)
    of_read = grad_o[..., None, :, :]
    if beta is not None:
        of_read = xp.stack([grad_o, -passes.grad_v], axis=-3)  # what keys read is taken from the errors
    of_keys = pairs.to_end * (passes.errors @ xp.matrix_transpose(passes.after))
    of_decay = xp.matrix_transpose(xp.sum(passes.states * passes.after, axis=-1, keepdims=True))
    of_decay = of_decay * pairs.from_start[..., -1:, :]
    of_reading = pairs.through_states(of_read, passes.states)
    of_products = pairs.products_of(of_read, passes.errors)
    return grad_state, _Reached(passes.grad_v, of_reading, of_keys, of_decay, of_products)


def _passes(
    lib: Library,
    pairs: Pairs,
    v: AnyArray,
    beta: AnyArray | None,
    state: AnyArray,
    grad_o: AnyArray,
    grad_state: AnyArray,
) -> tuple[AnyArray, _Passes]:
    """Run the chunks and their states in both directions; also return the gradients of the initial state."""
    forward = _forward(lib, pairs, v, beta, state)
    of_written = product_with_later(lib, pairs.products[..., 0, :, :], grad_o)
    grad_state, after = _back(lib, pairs, forward, grad_o, of_written, grad_state)
    grad_v = lib.add_product(of_written, pairs.keys * pairs.to_end, after)
    if beta is not None:
        grad_v = _substitute_back(lib, forward.factors, beta * grad_v)
    return grad_state, _Passes(forward.errors, forward.states, after, grad_v)


def _forward(lib: Library, pairs: Pairs, v: AnyArray, beta: AnyArray | None, state: AnyArray) -> _Forward:
    """Run the chunks, but for their outputs."""
    xp = lib.xp
    decay, writing = (xp.matrix_transpose(x) for x in (pairs.from_start[..., -1:, :], pairs.keys * pairs.to_end))
    if beta is None:
        return _Forward((), v, _states_before(lib, state, decay, writing @ v), decay, None)
    triangle = pairs.products[..., 1, :, :] * xp.matrix_transpose(beta)
    factors, fixed, read = _errors(lib, triangle, v, pairs.from_start * pairs.keys)
    erased = beta * read
    transitions = chunks.transitions(lib, decay, writing, erased)
    states = _states_before(lib, state, transitions, writing @ (beta * fixed))
    return _Forward(factors, lib.add_product(fixed, read, states), states, transitions, erased)


def _states_before(lib: Library, state: AnyArray, factors: AnyArray, additions: AnyArray) -> AnyArray:
    """Return the states in which the chunks begin, of which ``state`` is the first."""
    first = state[:, :, None, ...]
    if additions.shape[2] == 1:
        return first
    _, others = chunks.states(lib, state, factors[:, :, :-1, ...], additions[:, :, :-1, ...], reverse=False)
    return lib.xp.concat([first, others], axis=2)


def _back(
    lib: Library, pairs: Pairs, forward: _Forward, grad_o: AnyArray, of_written: AnyArray, grad_state: AnyArray
) -> tuple[AnyArray, AnyArray]:
    """Return the gradients of the initial state, and of the states in which the chunks end."""
    xp, transitions = lib.xp, forward.transitions
    additions = xp.matrix_transpose(pairs.queries * pairs.from_start) @ grad_o
    if forward.erased is not None:
        additions = lib.add_product(additions, xp.matrix_transpose(forward.erased), of_written)
        transitions = xp.matrix_transpose(transitions)
    first, before = chunks.states(lib, grad_state, transitions, additions, reverse=True)
    return first, xp.concat([before[:, :, 1:, ...], grad_state[:, :, None, ...]], axis=2)


def _of_gates(lib: Library, g: AnyArray, of_start: AnyArray, of_end: AnyArray, of_decay: AnyArray) -> AnyArray:
    """Return the gradients of gates that decay a state on the way to steps, steps to the end, and the state to it."""
    if g.shape[-1] == 1:
        of_start, of_end, of_decay = (lib.xp.sum(x, axis=-1, keepdims=True) for x in (of_start, of_end, of_decay))
    earlier = lib.xp.concat([of_decay, of_end[..., :-1, :]], axis=-2)
    return sums_to_end(lib, of_start) + lib.xp.cumulative_sum(earlier, axis=-2)


def _errors(
    lib: Library, triangle: AnyArray, v: AnyArray, reading: AnyArray
) -> tuple[list[AnyArray], AnyArray, AnyArray]:
    """Return the factors of the inverse of ``I + triangle``, one for each size of halves, and the errors.

    Errors are a matrix, and another one times the state. No product has terms of later steps.
    """
    steps, values, size = triangle.shape[-1], v.shape[-1], 1
    factors: list[AnyArray] = []
    rows = lib.xp.concat([triangle, v, -reading], axis=-1)
    while size < steps:
        factors.append(-chunks.between_halves(lib, rows[..., :steps], size))
        rows = chunks.add_to_second(lib, rows, factors[-1], rows, size)
        size *= 2
    return factors, rows[..., steps : steps + values], rows[..., steps + values :]


def _substitute_back(lib: Library, factors: Sequence[AnyArray], rows: AnyArray) -> AnyArray:
    """Multiply rows by the transpose of the inverse, given as its factors."""
    for i, factor in reversed(list(enumerate(factors))):
        rows = chunks.add_to_first(lib, rows, lib.xp.matrix_transpose(factor), rows, 2**i)
    return rows
