"""Chunks of the steps of a sequence: their states, and halves of blocks of their steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from householder._base.types import AnyArray
    from householder._mathematics.library import Library

_LARGEST = 64
"""The largest number of steps in a chunk."""


def cut(lib: Library, x: AnyArray) -> AnyArray:
    """Cut steps ``(B, heads, steps, ..)`` into chunks of ``2^i`` steps, ``(B, heads, chunks, 2^i, ..)``.

    Steps beyond the end have zero keys and no gate: they change nothing.
    """
    steps = x.shape[2]
    size = min(_LARGEST, 1 << (steps - 1).bit_length())
    chunks = -(-steps // size)
    return lib.xp.reshape(padded(lib, x, 0, chunks * size - steps), (*x.shape[:2], chunks, size, x.shape[-1]))


def joined(lib: Library, x: AnyArray, steps: int) -> AnyArray:
    """Join the chunks of a sequence of so many steps."""
    (batch, heads, chunks, size, width) = x.shape
    return lib.xp.reshape(x, (batch, heads, chunks * size, width))[:, :, :steps, :]


def transitions(lib: Library, decay: AnyArray, writing: AnyArray, erased: AnyArray | None) -> AnyArray:
    """Return what chunks multiply states by: matrices, or the numbers ``decay`` if nothing is erased."""
    if erased is None:
        return decay
    return lib.add_product(decay * lib.eye(writing.shape[-2], decay), writing, erased)


def states(
    lib: Library, state: AnyArray, factors: AnyArray, additions: AnyArray, *, reverse: bool
) -> tuple[AnyArray, AnyArray]:
    """Return the last state, and those after each chunk: ``factor state + addition`` from one to the next."""

    def advance(s: AnyArray, factor: AnyArray, addition: AnyArray) -> tuple[AnyArray, AnyArray]:
        is_number = factor.shape[-1] == 1
        s = factor * s + addition if is_number else lib.add_product(addition, factor, s)
        return s, s

    return lib.scan(advance, state, [factors, additions], 2, reverse)


def add_to_second(lib: Library, rows: AnyArray, factor: AnyArray, earlier: AnyArray, size: int) -> AnyArray:
    """Add to the second halves of blocks of ``2 size`` the products of a factor and the first halves of ``earlier``."""
    first, second = halves(lib, rows, size)
    return from_halves(lib, first, lib.add_product(second, factor, half(lib, earlier, 0, size)), rows.shape)


def add_to_first(lib: Library, rows: AnyArray, factor: AnyArray, later: AnyArray, size: int) -> AnyArray:
    """Add to the first halves of blocks of ``2 size`` the products of a factor and the second halves of ``later``."""
    first, second = halves(lib, rows, size)
    return from_halves(lib, lib.add_product(first, factor, half(lib, later, 1, size)), second, rows.shape)


def between_halves(lib: Library, pairs: AnyArray, size: int) -> AnyArray:
    """Return numbers of pairs of steps from the first to the second halves of blocks, ``(.., blocks, size, size)``."""
    xp = lib.xp
    of_blocks = blocks(lib, blocks(lib, pairs, size, -1), size, -4)[..., :, 1, :, :, 0, :]
    return xp.moveaxis(xp.linalg.diagonal(xp.moveaxis(of_blocks, (-4, -2), (-2, -1))), -1, -3)


def halves(lib: Library, rows: AnyArray, size: int) -> Sequence[AnyArray]:
    """Return the first and the second halves of blocks of ``2 size`` rows."""
    return lib.unstack(blocks(lib, rows, size, -2), -3)


def from_halves(lib: Library, first: AnyArray, second: AnyArray, shape: Sequence[int]) -> AnyArray:
    """Return the rows of which these are the halves of blocks."""
    return lib.xp.reshape(lib.xp.concat([first, second], axis=-2), tuple(shape))


def half(lib: Library, x: AnyArray, half: int, size: int, axis: int = -2) -> AnyArray:
    """Return the first halves, 0, or the second ones, 1, of blocks of ``2 size`` along an axis."""
    return blocks(lib, x, size, axis)[..., half, *[slice(None)] * -axis]


def blocks(lib: Library, x: AnyArray, size: int, axis: int) -> AnyArray:
    """Cut an axis into blocks of two halves, ``(.., blocks, 2, size, ..)``."""
    return lib.xp.reshape(x, (*x.shape[:axis], x.shape[axis] // (2 * size), 2, size, *x.shape[axis:][1:]))


def padded(lib: Library, x: AnyArray, before: int, after: int) -> AnyArray:
    """Put rows of zeros before or after those of ``x``."""
    if not before and not after:
        return x
    zeros = lib.zeros((*x.shape[:-2], before + after, x.shape[-1]), x)
    return lib.xp.concat([zeros, x] if before else [x, zeros], axis=-2)
