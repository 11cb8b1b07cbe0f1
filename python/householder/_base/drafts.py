"""Drafted tokens: those that a sequence accepts are its first ones, and change its state; the others do not."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from householder._base import validate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from householder._base.types import AnyArray, Argument


class DraftSizes(NamedTuple):
    """The sizes of drafts."""

    batch: int
    tokens: int
    native: tuple[int, int, int, int, int]
    """``H, HV, K, V`` and the steps of a token."""

    @property
    def states(self) -> tuple[int, int, int, int]:
        """The shape of the states."""
        return self.batch, *self.native[1:4]


def sizes(
    k: tuple[int, ...], others: Mapping[str, tuple[int, ...]], g: tuple[int, ...] | None, reflections: Argument
) -> DraftSizes:
    """Check the shapes of drafts; ``others`` are those of v and, for the delta rule, of beta."""
    steps = validate.integer("num_householder", reflections, 1)
    if len(k) != 4 or k[1] % steps or 0 in k[2:]:
        also = f" and num_householder = {steps}" if steps > 1 else ""
        raise ValueError(f"k has shape {tuple(k)}, expected (B, T * num_householder, H, K){also}, H and K at least 1")
    tokens = k[1] // steps
    native = validate.delta_sizes((k[0], tokens, *k[2:]), others, g, steps, "(B, T, H, K) =")
    return DraftSizes(k[0], tokens, native)


def first_tokens(
    xp: ModuleType, operands: Sequence[AnyArray], accepted: list[int], reflections: int
) -> tuple[list[AnyArray], list[int] | None]:
    """Return the accepted tokens of k, v, beta and g: in their rows or, packed, in one row with its ``cu_seqlens``."""
    steps = [*[reflections] * (len(operands) - 1), 1]
    if len(accepted) <= 1 or set(accepted) == {operands[0].shape[1] // reflections}:
        n = sum(accepted[:1])
        return [None if a is None else a[:, : n * each] for a, each in zip(operands, steps, strict=True)], None
    packed = [
        None if a is None else xp.concat([a[i : i + 1, : n * each] for i, n in enumerate(accepted)], axis=1)
        for a, each in zip(operands, steps, strict=True)
    ]
    return packed, [*accumulate(accepted, initial=0)]
