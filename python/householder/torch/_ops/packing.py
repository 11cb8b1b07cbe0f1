"""Packed sequences on CUDA devices."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from householder.torch._ops.devices import cuda_has_kernels

if TYPE_CHECKING:
    from torch import Tensor


def packed_reversal(batch_sizes: Tensor, like: Tensor) -> Tensor | None:
    """Return the row that each packed row becomes when every sequence is reversed in its own length.

    None where there are no kernels for it.
    """
    from householder._cuda.library import library_of
    from householder._cuda.packing import Packing
    from householder._cuda.verdicts import UnusableError

    if cuda_has_kernels(like.device):
        library = library_of(like)
        with suppress(UnusableError), library.current(like):
            rows: Tensor = Packing(library, batch_sizes.numpy(), like).reversal()
            return rows
    return None
