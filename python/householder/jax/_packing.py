"""Sequences of different lengths as sequences of one length: the kernels of XLA take arrays of one shape.

Padding adds zeros after a sequence, and nothing that is computed from them is read.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from householder import _validate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jax import Array
    from numpy.typing import NDArray


class Packing:
    """Packed sequences, one step of all after the other, as rows of ``(T, B)``."""

    def __init__(self, batch_sizes: Any) -> None:
        self.sizes = sizes = _validate.batch_sizes(batch_sizes)
        self.rows, self.steps = sum(sizes.tolist()), len(sizes)
        self.batch = int(sizes[0]) if self.steps else 0

    @cached_property  # once the sizes are known to fit x
    def _places(self) -> NDArray[np.intp]:
        return np.flatnonzero(np.arange(self.batch) < self.sizes[:, None])

    @property
    def _ends(self) -> NDArray[np.intp]:
        sequences = np.arange(self.batch)
        ends: NDArray[np.intp] = ((sequences < self.sizes[:, None]).sum(0) - 1) * self.batch + sequences
        return ends

    def pad(self, x: Array) -> Array:
        """Return ``(T, B, d)`` of packed rows ``(rows, d)``."""
        return _scattered(x, self._places, self.steps * self.batch).reshape(self.steps, self.batch, x.shape[-1])

    def pack(self, h: Array) -> Array:
        """Return the packed rows of ``(T, B, n)``."""
        return h.reshape(-1, h.shape[-1])[self._places]

    def last(self, h: Array, last: Array) -> Array:
        """Return the state in which each sequence ends; ``last`` without steps."""
        return h.reshape(-1, h.shape[-1])[self._ends] if self.steps else last


class Rows:
    """Sequences one after the other in one row, as rows of ``(N, T)``."""

    def __init__(self, offsets: Sequence[int]) -> None:
        lengths = np.diff(offsets)
        self.count, self.steps = len(lengths), int(lengths.max(initial=0))
        self._lengths = lengths

    def pad(self, a: Array, per_token: int = 1) -> Array:
        """Return ``(N, T * per_token, ..)`` of a row ``(1, tokens * per_token, ..)``."""
        steps = self.steps * per_token
        padded = _scattered(a[0], self._places(per_token), self.count * steps)
        return padded.reshape(self.count, steps, *a.shape[2:])

    def pack(self, a: Array) -> Array:
        """Return the row of ``(N, T, ..)``."""
        return a.reshape(-1, *a.shape[2:])[self._places(1)][None]

    def _places(self, per_token: int) -> np.ndarray[Any, Any]:
        return np.flatnonzero(np.arange(self.steps * per_token) < per_token * self._lengths[:, None])


def _scattered(a: Array, places: np.ndarray[Any, Any], count: int) -> Array:
    """Return ``count`` rows with those of ``a`` in these places, and zeros elsewhere."""
    return jnp.zeros((count, *a.shape[1:]), a.dtype).at[places].set(a)
