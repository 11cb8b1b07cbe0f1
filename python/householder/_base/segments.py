"""States after chosen tokens: sequences are cut there into segments, each of which begins where the one before ended.

NumPy, torch and JAX share the composition, so a call has the states on every device, for every dtype and transform.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from householder._base import validate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from householder._base.types import AnyArray, Argument

    Compute = Callable[[list[AnyArray], AnyArray, list[int] | None], tuple[AnyArray, AnyArray]]
    """A function of operands, initial states and ``cu_seqlens`` to outputs and final states."""
    Write = Callable[[list[AnyArray], AnyArray, list[int] | None, AnyArray, AnyArray], None]
    """The same, with the places of outputs and final states."""


class Segment(NamedTuple):
    """Tokens between two cuts. Of its sequences, those that go on from the segment before come first.

    Borders are numbers, because ``torch.compile`` takes slices in tuples as constants and compiles for others again.
    """

    begin: int
    end: int
    """Its tokens are those from ``begin`` to before ``end``."""
    begun: int
    until: int
    """The sequences that begin in it are those from ``begun`` to before ``until``."""
    ends: int
    """How many of its sequences end in it; the others go on in the next segment."""
    chosen: int | slice | None
    """Those of its sequences whose states at its end are asked for."""
    cu_seqlens: list[int] | None
    """Where its sequences begin and end, if they are packed in one row."""

    def of(self, operands: Sequence[AnyArray], reflections: int) -> list[AnyArray]:
        """Return its tokens of q and of g, the last operand, and its steps of the others."""
        steps = [1, *[reflections] * (len(operands) - 2), 1]
        pairs = zip(operands, steps, strict=True)
        return [None if a is None else a[:, self.begin * each : self.end * each] for a, each in pairs]


def segments(states_at: Argument, q: tuple[int, ...], cu_seqlens: list[int] | None) -> list[Segment]:
    """Check ``states_at``, and cut sequences there: all rows of a batch at the same tokens, or packed ones."""
    batch, tokens, *_ = q
    cuts = validate.states_at(states_at, tokens)
    if cu_seqlens is not None:
        return _packed(cuts, cu_seqlens)
    parts: list[Segment] = []
    for begin, end in pairwise(_ends(cuts, tokens)):
        begun, ends = batch if parts else 0, batch if end == tokens else 0
        parts.append(Segment(begin, end, begun, batch, ends, slice(None) if len(parts) < len(cuts) else None, None))
    return parts


def _packed(cuts: list[int], cu_seqlens: list[int]) -> list[Segment]:
    """Cut packed sequences: a position belongs to the sequence of the token before it, 0 to the first sequence."""
    *starts, tokens = cu_seqlens
    if not starts:
        raise ValueError(f"states_at is {cuts}, but cu_seqlens is {cu_seqlens}: there is no sequence with a state")
    parts: list[Segment] = []
    begun = ended = owner = 0  # sequences
    for begin, end in pairwise(_ends(cuts, tokens)):
        while cu_seqlens[owner + 1] < end:
            owner += 1
        until = len(starts) if end == tokens else owner + 1
        complete = until - (end < cu_seqlens[until])
        offsets = [*(max(start - begin, 0) for start in starts[ended:until]), end - begin]
        chosen = owner - ended if len(parts) < len(cuts) else None
        parts.append(Segment(begin, end, begun, until, complete - ended, chosen, offsets))
        begun, ended = until, complete
    return parts


def _ends(cuts: list[int], tokens: int) -> list[int]:
    """Return where segments begin and end; none follows a cut after the last token."""
    return [0, *cuts, *([tokens] if cuts[-1] < tokens else [])]


def run(
    xp: ModuleType,
    compute: Compute,
    operands: Sequence[AnyArray],
    initial_state: AnyArray,
    reflections: int,
    segments: list[Segment],
) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Compute all segments: outputs, final states and the states at the cuts.

    The states are ``(B, cuts, HV, K, V)`` or, of packed sequences, ``(cuts, HV, K, V)``.
    """
    outputs, ended, states = [], [], []
    unfinished = initial_state[:0]
    for segment in segments:
        begins = _joined(xp, [unfinished, initial_state[segment.begun : segment.until]])
        o, last = compute(segment.of(operands, reflections), begins, segment.cu_seqlens)
        outputs.append(o)
        ended.append(last[: segment.ends])
        if segment.chosen is not None:
            states.append(last[segment.chosen])
        unfinished = last[segment.ends :]
    axis = 1 if segments[0].cu_seqlens is None else 0
    return xp.concat(outputs, axis=1), _joined(xp, ended), xp.stack(states, axis=axis)


def fill(
    xp: ModuleType,
    empty: Callable[[tuple[int, ...]], AnyArray],
    write: Write,
    operands: Sequence[AnyArray],
    initial_state: AnyArray,
    reflections: int,
    segments: list[Segment],
    o: AnyArray,
) -> tuple[AnyArray, AnyArray]:
    """Write the outputs of all segments to ``o``, and return final states and the states at the cuts, as ``run`` does.

    Outputs and states are written to their places at once, because copies take long. With states after every 64th or
    256th of 2,048 tokens, ``run`` takes 1.1 to 1.4 times as long in NumPy. In torch the factor is 1.03 to 1.14 on one
    thread, and 1.1 to 1.5 for one sequence on two threads. ``empty`` allocates states in the dtype of the computation,
    where the operands are.
    """
    is_packed, cuts = segments[0].cu_seqlens is not None, sum(segment.chosen is not None for segment in segments)
    final_state = empty(initial_state.shape)
    each = initial_state.shape[1:] if is_packed else initial_state.shape
    states = empty((cuts, *each))
    unfinished, ended = initial_state[:0], 0
    for i, segment in enumerate(segments):
        begins = _joined(xp, [unfinished, initial_state[segment.begun : segment.until]])
        last = states[i] if i < cuts and not is_packed else empty(begins.shape)
        write(segment.of(operands, reflections), begins, segment.cu_seqlens, o[:, segment.begin : segment.end], last)
        if is_packed and segment.chosen is not None:
            states[i] = last[segment.chosen]
        final_state[ended : ended + segment.ends] = last[: segment.ends]
        unfinished, ended = last[segment.ends :], ended + segment.ends
    return final_state, states if is_packed else states.swapaxes(0, 1)


def _joined(xp: ModuleType, parts: list[AnyArray]) -> AnyArray:
    """Join arrays along their first axis; copy nothing if only one of them has numbers."""
    filled = [part for part in parts if part.shape[0]]
    return filled[0] if len(filled) == 1 else xp.concat(filled or parts[:1], axis=0)
