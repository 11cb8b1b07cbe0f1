"""The positions of the rows of packed sequences, as arrays on the device.

The batch sizes reach the device as arguments of launches. So nothing is copied from host memory, nothing waits, and a
CUDA graph keeps the batch sizes that it was captured with.
"""

import numpy as np

from householder._base.types import AnyArray, Array
from householder._cuda import kernels, verdicts
from householder._cuda.instances import PACKING_NAMES, PACKING_THREADS, Launch
from householder._cuda.library import KernelLibrary

_PART = np.dtype([("at", np.int64, PACKING_THREADS)])


class Packing:
    """The steps of packed sequences; arrays are made on the device of ``like``."""

    def __init__(self, library: KernelLibrary, sizes: Array, like: AnyArray):
        self._library, self._like = library, like
        self.steps, self.batch, self.rows = len(sizes), int(sizes[0]), int(sizes.sum())
        host = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self.offsets = self._empty(len(host))
        """The row at which each step begins, and the number of rows, ``(T + 1,)``."""
        for first in range(0, len(host), PACKING_THREADS):
            part = host[first : first + PACKING_THREADS]
            argument = np.zeros((), _PART)
            argument["at"][: len(part)] = part
            self._launch("offsets", 1, argument, library.pointer(self.offsets), np.int32(first), np.int32(len(part)))

    def previous(self) -> AnyArray:
        """Return, for each row of the second and later steps, the row of the same sequence one step before."""
        return self._find(self.rows - self.batch, "previous")

    def last(self) -> AnyArray:
        """Return the row in which each sequence ends, ``(B,)``."""
        return self._find(self.batch, "last")

    def reversal(self) -> AnyArray:
        """Return the row to which each row moves when every sequence is reversed within its own length."""
        return self._find(self.rows, "reversal")

    def _find(self, count: int, kind: str) -> AnyArray:
        rows = self._empty(count)
        results = (rows if name == kind else None for name in ("previous", "last", "reversal"))
        pointers = map(self._library.pointer, (self.offsets, *results))
        sizes = np.int64(self.rows), np.int32(self.steps), np.int32(self.batch)
        if count:
            self._launch("rows", -(-count // PACKING_THREADS), *pointers, *sizes)
        return rows

    def _empty(self, count: int) -> AnyArray:
        return self._library.empty((count,), self._like, self._library.xp.int64)

    def _launch(self, name: str, blocks: int, *arguments: kernels.KernelArgument) -> None:
        config, index = Launch(blocks, PACKING_THREADS, 0), self._library.device(self._like)
        verdicts.require(index, PACKING_NAMES[name], self._try)
        kernels.launch(index, "packing", PACKING_NAMES[name], config, arguments)

    def _try(self) -> None:
        """Compare the arrays of three sequences with results counted by hand."""
        packing = Packing(self._library, np.array([3, 2, 2]), self._like)
        results = packing.offsets, packing.previous(), packing.last(), packing.reversal()
        expected = [0, 3, 5, 7], [0, 1, 3, 4], [5, 6, 2], [5, 6, 2, 3, 4, 0, 1]
        for array, numbers in zip(results, expected, strict=True):
            if self._library.to_host(array).tolist() != numbers:
                raise verdicts.WrongError("rows of packed sequences are not where they should be")
