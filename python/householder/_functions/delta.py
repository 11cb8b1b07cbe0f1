"""The delta rule: a product of reflections that depends on the data, forward and backward, one native call each.

:func:`householder.linear_attention` is the same without betas, which erase.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, Unpack, overload

import numpy as np

from householder import _core
from householder._base import segments, validate
from householder._base.cpu import array, operand
from householder._base.segments import Segment
from householder._base.types import (
    AnyArray,
    Argument,
    Array,
    ArrayLike,
    Delta,
    DeltaArgs,
    DeltaGradients,
    DeltaWithStates,
)


@overload
def delta_rule(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, beta: ArrayLike, states_at: None = None, **options: Unpack[DeltaArgs]
) -> Delta: ...
@overload
def delta_rule(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, beta: ArrayLike, states_at: Sequence[int], **options: Unpack[DeltaArgs]
) -> DeltaWithStates: ...
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
) -> Delta | DeltaWithStates:
    """Run ``S_t = (I - b_t k_t k_t') Diag(exp g_t) S_{t-1} + b_t k_t v_t'``, ``o_t = scale S_t' q_t``.

    With ``beta = 2``, unit keys and no gate, each step multiplies the state by a Householder reflection. DeltaNet has
    no gate, gated DeltaNet one per head, and Kimi delta attention one per channel. DeltaProduct has several reflections
    per token.

    Parameters
    ----------
    q : array, shape (B, T, H, K)
        Queries.
    k : array, shape (B, T * num_householder, H, K)
        Keys.
    v : array, shape (B, T * num_householder, HV, V)
        Values; HV is a multiple of H, and consecutive value heads share a key head.
    beta : array, shape (B, T * num_householder, HV)
        Step sizes. Above 2, the state may grow.
    g : array, shape (B, T, HV) or (B, T, HV, K), optional
        Logarithms of decays, at most 0: one per head, or one for each row of its state. They act at the first step of
        a token.
    scale : float, optional
        Factor of the outputs, ``K**-0.5`` if None.
    initial_state : array, shape (N, HV, K, V), optional
        States in which the sequences begin; zeros if None. N is B or, with ``cu_seqlens``, the number of sequences.
    output_final_state : bool
        Return the states in which the sequences end.
    use_qk_l2norm_in_kernel : bool
        Divide queries and keys by ``sqrt(sum x^2 + 1e-6)``.
    cu_seqlens : sequence of int, length N + 1, optional
        Packs sequences one after the other in a single row, ``B = 1``. The first entry is 0, and sequence ``i`` has the
        tokens ``cu_seqlens[i]`` to ``cu_seqlens[i + 1] - 1``.
    states_at : sequence of int, optional
        Return the states after so many tokens, too: increasing numbers from 0 to T. In packed tokens, a state is that
        of the sequence whose token comes before: at ``cu_seqlens[i + 1]`` sequence ``i`` ends, 0 begins the first one.
    num_householder : int
        Steps per token. The output is taken after the last step.

    Returns
    -------
    Delta or, with ``states_at``, DeltaWithStates
        Named tuple of the outputs ``o (B, T, HV, V)`` and ``final_state (N, HV, K, V)`` or None. With ``states_at`` it
        also has ``states (B, len(states_at), HV, K, V)``, packed ``(len(states_at), HV, K, V)``.

    Raises
    ------
    TypeError
        An unsupported dtype, or arguments of different dtypes, devices or libraries.
    ValueError
        Shapes that do not fit, or a positive gate.

    Examples
    --------
    A reflection, applied twice, is the identity:

    >>> import numpy as np, householder as hh
    >>> k = np.zeros((1, 2, 1, 3)) + np.array([0.6, 0.0, 0.8])
    >>> s = np.random.default_rng(0).standard_normal((1, 1, 3, 4))
    >>> state = {"initial_state": s, "output_final_state": True}
    >>> o, last = hh.delta_rule(k, k, np.zeros((1, 2, 1, 4)), beta=np.full((1, 2, 1), 2.0), **state)
    >>> o.shape, np.allclose(last, s)
    ((1, 2, 1, 4), True)

    States after chosen tokens, from which other sequences with the same beginning go on:

    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 50, 2, 4)) / 2
    >>> beta = np.ones((1, 50, 2))
    >>> o, _, states = hh.delta_rule(q, k, v, beta=beta, states_at=[16, 32])
    >>> rest = {"beta": beta[:, 32:], "initial_state": states[:, 1]}
    >>> states.shape, np.allclose(hh.delta_rule(q[:, 32:], k[:, 32:], v[:, 32:], **rest).o, o[:, 32:])
    ((1, 2, 2, 4, 4), True)
    """
    needed, options = {"k": k, "v": v, "beta": beta}, (scale, num_householder, cu_seqlens, use_qk_l2norm_in_kernel)
    return Call.of(q, needed, g, initial_state, *options).results(output_final_state, states_at)


@overload
def delta_rule_vjp(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, beta: ArrayLike, states_at: None = None, **options: Unpack[DeltaArgs]
) -> tuple[Delta, "DeltaVjp"]: ...
@overload
def delta_rule_vjp(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, beta: ArrayLike, states_at: Sequence[int], **options: Unpack[DeltaArgs]
) -> tuple[DeltaWithStates, "DeltaWithStatesVjp"]: ...
def delta_rule_vjp(
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
) -> tuple[Delta, "DeltaVjp"] | tuple[DeltaWithStates, "DeltaWithStatesVjp"]:
    """Return the results of :func:`delta_rule`, with a function that computes gradients.

    The function remembers every argument, so a gradient always belongs to these results. Do not change an argument in
    place before the last call of the function.

    Parameters
    ----------
    q, k, v, beta : array
        Queries, keys, values and steps. All arguments are as for :func:`delta_rule`.
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
    num_householder : int
        Steps per token.

    Returns
    -------
    results : Delta or, with ``states_at``, DeltaWithStates
        Named tuple of the outputs ``o`` and ``final_state``, as :func:`delta_rule` returns them.
    vjp : DeltaVjp or, with ``states_at``, DeltaWithStatesVjp
        The function: ``vjp(grad_o, grad_final_state=None)`` returns the gradients of all array arguments. With
        ``states_at`` it also takes ``grad_states``.

    Raises
    ------
    TypeError, ValueError
        As in :func:`delta_rule`.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 1, 50, 2, 4)) / 2
    >>> beta, g = rng.random((1, 50, 2)), -rng.random((1, 50, 2))
    >>> (o, final_state), vjp = hh.delta_rule_vjp(q, k, v, beta=beta, g=g)
    >>> grads = vjp(2 * o)  # the loss is the sum of all o**2
    >>> grads.k.shape, grads.g.shape, grads.initial_state
    ((1, 50, 2, 4), (1, 50, 2), None)
    """
    needed, options = {"k": k, "v": v, "beta": beta}, (scale, num_householder, cu_seqlens, use_qk_l2norm_in_kernel)
    return Call.of(q, needed, g, initial_state, *options).results_and_vjp(output_final_state, states_at)


class DeltaVjp:
    """A function that computes gradients.

    :func:`householder.delta_rule_vjp` and :func:`householder.linear_attention_vjp` return it. It can be called
    repeatedly.
    """

    def __init__(self, call: "Call", saved: Array):
        self._call, self._saved = call, saved

    def __call__(self, grad_o: ArrayLike = None, *, grad_final_state: ArrayLike = None) -> DeltaGradients:
        """Return a loss's gradients from its gradients for the results.

        Parameters
        ----------
        grad_o : array, shape (B, T, HV, V), optional
            The loss's gradient for the outputs.
        grad_final_state : array, shape (N, HV, K, V), optional
            The loss's gradient for the final states.

        Returns
        -------
        DeltaGradients
            Named tuple ``(q, k, v, beta, g, initial_state)``, each of its argument's shape, None for an argument that
            was not given.

        Raises
        ------
        TypeError, ValueError
            A gradient does not have the shape or dtype of its result, or none is given.
        """
        operands, options, states, _ = self._call
        q, v = operands[0], operands[2]
        if grad_o is None and grad_final_state is None:
            raise ValueError("grad_o and grad_final_state are both None, expected at least one gradient")
        grad_o = _optional("grad_o", grad_o, q, (*q.shape[:2], *v.shape[2:]))
        grad_last = _optional("grad_final_state", grad_final_state, q, states)
        grads = DeltaGradients._make(None if a is None else np.empty(a.shape, a.dtype) for a in operands)
        _core.delta_backward((*operands, None), options, self._saved, grad_o, grad_last, (*grads, None))
        return grads


class DeltaWithStatesVjp:
    """A function that computes gradients, also from those of states after chosen tokens.

    :func:`householder.delta_rule_vjp` and :func:`householder.linear_attention_vjp` return it if they are called with
    ``states_at``. It can be called repeatedly.
    """

    def __init__(self, call: "Call", segments: list[Segment], pulls: list[DeltaVjp]):
        self._call, self._segments, self._pulls = call, segments, pulls

    def __call__(
        self, grad_o: ArrayLike = None, *, grad_final_state: ArrayLike = None, grad_states: ArrayLike = None
    ) -> DeltaGradients:
        """Return a loss's gradients from its gradients for the results.

        Parameters
        ----------
        grad_o : array, shape (B, T, HV, V), optional
            The loss's gradient for the outputs.
        grad_final_state : array, shape (N, HV, K, V), optional
            The loss's gradient for the final states.
        grad_states : array, shape (B, len(states_at), HV, K, V), packed (len(states_at), HV, K, V), optional
            The loss's gradient for the states after chosen tokens.

        Returns
        -------
        DeltaGradients
            Named tuple ``(q, k, v, beta, g, initial_state)``, each of its argument's shape, None for an argument that
            was not given.

        Raises
        ------
        TypeError, ValueError
            A gradient does not have the shape or dtype of its result, or none is given.
        """
        (q, _, v, *_), _, states, is_packed = self._call
        if grad_o is None and grad_final_state is None and grad_states is None:
            raise ValueError("grad_o, grad_final_state and grad_states are all None, expected at least one gradient")
        cuts = sum(segment.chosen is not None for segment in self._segments)
        shape = (cuts, *states[1:]) if is_packed else (states[0], cuts, *states[1:])
        grad_o = _optional("grad_o", grad_o, q, (*q.shape[:2], *v.shape[2:]))
        grad_last = _optional("grad_final_state", grad_final_state, q, states)
        grad_states = _optional("grad_states", grad_states, q, shape)
        grad_last = np.zeros(states, q.dtype) if grad_last is None else grad_last
        grad_states = np.zeros(shape, q.dtype) if grad_states is None else grad_states
        return self._pull(grad_o, grad_last, grad_states if is_packed else grad_states.swapaxes(0, 1))

    def _pull(self, grad_o: Array | None, grad_last: Array, at_cuts: Array) -> DeltaGradients:
        """Pull gradients through the segments, from the last to the first."""
        ended, grad_initial, unfinished = len(grad_last), np.empty_like(grad_last), grad_last[:0]
        parts: list[tuple[AnyArray, ...]] = []
        for i, (segment, pull) in reversed([*enumerate(zip(self._segments, self._pulls, strict=True))]):
            begin = ended - segment.ends
            grads_of_ends = np.concatenate([grad_last[begin:ended], unfinished])
            if segment.chosen is not None:
                grads_of_ends[segment.chosen] += at_cuts[i]
            grads_of_tokens = None if grad_o is None else grad_o[:, segment.begin : segment.end]
            part = pull(grads_of_tokens, grad_final_state=grads_of_ends)
            continued = len(grads_of_ends) - (segment.until - segment.begun)
            unfinished, grad_initial[segment.begun : segment.until] = np.split(part.initial_state, [continued])
            ended = begin
            parts.insert(0, part[:-1])
        joined = [None if each[0] is None else np.concatenate(each, 1) for each in zip(*parts, strict=True)]
        return DeltaGradients._make([*joined, None if self._call.operands[-1] is None else grad_initial])


class Call(NamedTuple):
    """The checked arguments of a call of the core."""

    operands: tuple[AnyArray, ...]
    options: tuple[tuple[int, int, int, int, int], list[int], bool, float, bool]
    states: tuple[int, ...]
    is_packed: bool

    @classmethod
    def of(
        cls,
        q: ArrayLike,
        needed: Mapping[str, ArrayLike],
        g: ArrayLike,
        initial_state: ArrayLike,
        scale: Argument,
        num_householder: Argument,
        cu_seqlens: ArrayLike,
        normalize: Argument,
    ) -> "Call":
        """Check the arguments; ``needed`` has k, v and, for the delta rule, beta."""
        q = array("q", q)
        if q.dtype.kind != "f":
            raise TypeError(f"q has dtype {q.dtype}, expected float32 or float64")
        needed = {name: operand(name, value, q, like="q") for name, value in needed.items()}
        g = None if g is None else operand("g", g, q, like="q")
        shapes = {name: a.shape for name, a in needed.items()}
        sizes = validate.delta_sizes(q.shape, shapes, None if g is None else g.shape, num_householder)
        offsets = validate.delta_offsets(q.shape, cu_seqlens)
        states = len(offsets) - 1, sizes[1], sizes[2], sizes[3]
        initial_state = _optional("initial_state", initial_state, q, states)
        scale = validate.scale(scale, sizes[2])
        normalize = validate.flag("use_qk_l2norm_in_kernel", normalize)
        options = sizes, offsets, g is not None and g.ndim == 4, scale, normalize
        return cls(
            (q, needed["k"], needed["v"], needed.get("beta"), g, initial_state), options, states, cu_seqlens is not None
        )

    def results(self, output_final_state: Argument, states_at: Sequence[int] | None = None) -> Delta | DeltaWithStates:
        """Return the outputs, the final states if they are requested, and states after chosen tokens."""
        is_wanted = validate.flag("output_final_state", output_final_state)
        if states_at is None:
            return self.run(is_wanted, None)
        return self._with_states(is_wanted, self._segments(states_at), None)

    def results_and_vjp(
        self, output_final_state: Argument, states_at: Sequence[int] | None = None
    ) -> tuple[Delta, DeltaVjp] | tuple[DeltaWithStates, DeltaWithStatesVjp]:
        """Return the results, and the function that computes gradients."""
        is_wanted = validate.flag("output_final_state", output_final_state)
        if states_at is None:
            return self.with_vjp(is_wanted)
        parts, pulls = self._segments(states_at), list[DeltaVjp]()
        return self._with_states(is_wanted, parts, pulls), DeltaWithStatesVjp(self, parts, pulls)

    def _segments(self, states_at: Sequence[int]) -> list[Segment]:
        q, (_, offsets, *_) = self.operands[0], self.options
        return segments.segments(states_at, q.shape, offsets if self.is_packed else None)

    def _with_states(self, is_wanted: bool, parts: list[Segment], pulls: list[DeltaVjp] | None) -> DeltaWithStates:
        """Run segment by segment, and append the functions that compute their gradients to ``pulls``."""

        def write(rows: list[AnyArray], begins: Array, offsets: list[int] | None, place: Array, last: Array) -> None:
            call = self._of_segment(rows, begins, offsets)
            saved = None if pulls is None else call.empty_saved()
            out = np.ascontiguousarray(place)  # the place itself, if it is in one piece
            call.write(out, last, saved)
            if out is not place:
                place[...] = out
            if pulls is not None and saved is not None:
                pulls.append(DeltaVjp(call, saved))

        *operands, initial_state = self.operands
        if initial_state is None:
            initial_state = np.zeros(self.states, operands[0].dtype)
        o, empty = self.empty_outputs(), partial(np.empty, dtype=initial_state.dtype)
        final_state, states = segments.fill(np, empty, write, operands, initial_state, self.options[0][-1], parts, o)
        return DeltaWithStates(o, final_state if is_wanted else None, states)

    def _of_segment(self, operands: list[AnyArray], initial_state: Array, offsets: list[int] | None) -> "Call":
        laid_out = tuple(None if a is None else np.ascontiguousarray(a) for a in (*operands, initial_state))
        offsets = validate.delta_offsets(operands[0].shape, offsets)
        sizes, _, by_channel, scale, normalize = self.options
        return Call(laid_out, (sizes, offsets, by_channel, scale, normalize), initial_state.shape, self.is_packed)

    def with_vjp(self, is_wanted: bool) -> tuple[Delta, DeltaVjp]:
        """Return the results, and the function that computes gradients."""
        saved = self.empty_saved()
        return self.run(is_wanted, saved), DeltaVjp(self, saved)

    def run(self, is_wanted: bool, saved: Array | None) -> Delta:
        """Return the outputs, and the final states if they are wanted."""
        o, last = self.empty_outputs(), np.empty(self.states, self.operands[0].dtype) if is_wanted else None
        self.write(o, last, saved)
        return Delta(o, last)

    def write(self, o: Array, last: Array | None, saved: Array | None) -> None:
        """Run forward, and fill ``saved`` with the states from which a backward pass starts again."""
        _core.delta_forward((*self.operands, None), self.options, o, last, saved, False)

    def empty_outputs(self) -> Array:
        """Allocate the outputs."""
        q, v = self.operands[0], self.operands[2]
        return np.empty((*q.shape[:2], *v.shape[2:]), q.dtype)

    def empty_saved(self) -> Array:
        """Allocate the states that a backward pass starts from."""
        k, (_, _, *state) = self.operands[1], self.states
        return np.empty((k.shape[0] * k.shape[1] // _core.delta_interval(*state), *self.states[1:]), k.dtype)


def _optional(name: str, value: Argument, q: Array, expected: tuple[int, ...]) -> Array | None:
    if value is None:
        return None
    a = operand(name, value, q, like="q")
    validate.shape(name, a, expected)
    return a
