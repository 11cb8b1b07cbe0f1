"""Sizes of problems, drawn at the switches of paths in the core.

The edges are those of ``rust/core``: registers (4, 8, 16 numbers), small matrices, panels and chunks (64), reflections
of a block (32 and 64, one more block from 48 and 96 on), pieces of products (128), matrices that are formed in wider
blocks (512), groups of problems side by side (8 and 16, drawn where axes are), vectors that go through reflections in
groups (4), tasks (16 rows, 12 sequences), steps whose input is projected at once (8 sequences), rings (96 rows), slices
of a backward pass (16 rows, 256 at a time), rows of a batched backward pass (1024) and of a single block (4096), and
the shapes at which ``auto`` changes its method.
Those of the delta rule are steps taken one by one (4), blocks (16) and chunks (32) of steps, chunks from one kept state
to the next, and columns of the state (128).
"""

from typing import NamedTuple

import torch

import householder as hh

VECTORS = (4, 8, 12, 16, 24, 32, 48, 64)
REFLECTIONS = (1, 4, 8, 16, 32, 48, 64, 80, 96)
ROWS = (4, 8, 16, 32, 64, 96)
SEQUENCES = (8, 12, 24, 48, 96)


class Extent(NamedTuple):
    """A product of m reflections of n numbers and the vectors it is applied to."""

    n: int
    m: int
    rows: int


def reflections(source, n, dtype):
    """m for this n: any, or near an edge, all included."""
    most = n - dtype.is_complex
    m = source.near(REFLECTIONS) if source.flag() else source.among(1, most)
    return most if source.one_in(8) else min(m, most)


def tiny(source, dtype):
    n = source.among(1 + dtype.is_complex, 9)
    return Extent(n, source.among(1, n - dtype.is_complex), source.among(0, 6))


def application(source, dtype):
    """n, m and rows of one application."""
    kind = source.among(0, 99)
    if kind < 72:
        return tiny(source, dtype)
    if kind < 92:
        n = source.near(VECTORS, 2)
        return Extent(
            n, min(reflections(source, n, dtype), 20), source.near(ROWS) if source.flag() else source.among(1, 3)
        )
    if kind < 95:
        n = source.near(VECTORS, 2)
        m = reflections(source, n, dtype)
        return Extent(n, m, switch_of_method(source, n, m, dtype))
    if kind < 98:
        n = source.near((64, 96, 128), 2)
        return Extent(n, reflections(source, n, dtype), source.among(1, 70))
    if kind < 99:
        n = source.near((4, 8, 16), 2)
        return Extent(n, source.among(1, n - 1), source.near((256, 1024, 4096)))
    n = source.near((256, 512), 2)
    return Extent(n, source.among(1, 4), source.choose((1, 2, 17, 70)))


def switch_of_method(source, n, m, dtype):
    """A number of rows at which ``auto`` takes another method than at one row less, or about there."""
    kind = str(dtype).removeprefix("torch.") if dtype.is_complex or dtype == torch.float64 else "float32"
    low, high = 1, 512
    first = hh.plan(n, m, low, dtype=kind).method
    if hh.plan(n, m, high, dtype=kind).method == first:
        return source.among(1, 3)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if hh.plan(n, m, middle, dtype=kind).method == first else (low, middle)
    return max(1, high + source.among(-2, 1))


class Sequences(NamedTuple):
    """A recurrence of m reflections of n numbers over ``steps`` steps of ``batch`` sequences of width ``d``."""

    n: int
    m: int
    d: int
    steps: int
    batch: int


def sequences(source, dtype):
    kind = source.among(0, 99)
    n, m, _ = tiny(source, dtype)
    d, steps, batch = source.among(1, 5), source.among(0, 6), source.among(0, 5)
    if 60 <= kind < 68:  # long and narrow: several rings
        steps, batch = source.near((33, 49, 97)), source.among(1, 3)
    elif 68 <= kind < 78:  # short and wide: several tasks
        steps, batch = source.among(1, 3), source.near(SEQUENCES)
    elif 78 <= kind < 84:  # a ring, full or just not
        batch = source.among(1, 24)
        steps = source.near((96 // batch,))
    elif 84 <= kind < 88:  # several steps' input at once
        d, batch, steps = source.near((16, 32)), source.among(1, 9), source.among(1, 20)
    elif 88 <= kind < 97:
        n = source.near(VECTORS, 2)
        m, d, steps, batch = (
            reflections(source, n, dtype),
            source.near((1, 8, 16)),
            source.among(1, 5),
            source.near((1, 12)),
        )
        m = min(m, 20) if source.one_in(3) else m
    elif kind >= 97:  # coordinates are tasks
        batch = source.among(1, 5)
        n = int((2**18 / batch) ** 0.5) + source.among(-3, 40) if source.one_in(4) else source.near((128, 192))
        m, d, steps = source.among(1, 4), source.near((1, 16, 64)), source.among(1, 4)
    return Sequences(n, m, d, steps, batch)


class Attention(NamedTuple):
    """A delta rule of ``heads`` key heads, each shared by ``group`` value heads; a token has ``reflections`` steps."""

    batch: int
    tokens: int
    heads: int
    group: int
    keys: int
    values: int
    reflections: int


def attention(source):
    kind = source.among(0, 999)
    batch, tokens = source.choose((0, 1, 1, 1, 2, 3)), source.among(0, 6)
    heads, group = source.choose((1, 1, 2)), source.choose((1, 1, 2, 3))
    keys, values = source.among(1, 9), source.among(1, 9)
    reflections = source.choose((1, 1, 1, 2, 3))
    if 600 <= kind < 780:  # chunks, full or just not
        batch, tokens = source.choose((1, 1, 2)), max(1, source.near((4, 16, 32, 32, 48, 64)) // reflections)
    elif 780 <= kind < 920:  # registers and tiles
        keys, values = source.near(VECTORS[:7]), source.near(VECTORS[:7])
    elif 920 <= kind < 960:
        keys, values, tokens, group = source.near((8, 16, 32)), source.near((8, 16, 32)), source.among(5, 36), 1
    elif 960 <= kind < 985:  # several chunks
        batch, tokens, heads, group = 1, source.near((96, 128)) // reflections, 1, source.choose((1, 2))
    elif 985 <= kind < 997:  # columns are tasks
        batch, heads, group, values, tokens = 1, 1, source.choose((1, 2)), source.near((128, 256)), source.among(1, 36)
    elif kind >= 997:  # a state in several chunks is kept
        batch, heads, group, keys, values = 1, 1, 1, source.near((96, 128)), source.near((96, 128))
        tokens = source.near((64, 128, 160)) // reflections
    return Attention(batch, tokens, heads, group, keys, values, reflections)
