"""Memory for results on the CPU.

Large results reuse the memory of earlier results. The system's allocator returns large blocks to the kernel, and new
blocks cost a page fault every 4 KiB: a quarter of the time of a long sequence. The storages are torch's own, so they
can be resized. A shelf holds a second reference to each.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from math import prod
from threading import Lock
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from householder import _resources

if TYPE_CHECKING:
    from collections.abc import Iterator

_LARGE = 1 << 18
"""Bytes from which page faults cost more than a search of the shelf."""
_MOST = 1 << 27
"""Most bytes of all storages on the shelf; the oldest are dropped first."""

_shelf: OrderedDict[int, torch.UntypedStorage] = OrderedDict()
_lock = Lock()
_CPU = torch.device("cpu")
_resources.on_release.append(_shelf.clear)


def empty(shape: torch.Size | tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Allocate an uninitialised tensor."""
    size = prod(shape) * dtype.itemsize
    if not _LARGE <= size <= _MOST:
        return torch.empty(shape, dtype=dtype, device=_CPU)  # whatever the default device
    return torch.empty(0, dtype=dtype, device="cpu").set_(_storage(size)).resize_(shape)


def empty_like(contiguous: Tensor) -> Tensor:
    """Allocate a tensor of the same shape and dtype, as fast as possible: small ones are many."""
    if contiguous.nbytes < _LARGE:
        return torch.empty_like(contiguous)
    return empty(contiguous.shape, contiguous.dtype)


def contiguous(tensor: Tensor) -> Tensor:
    """Lay a tensor out row by row, if it is not yet."""
    if tensor.is_contiguous() or tensor.nbytes < _LARGE:
        return tensor.contiguous()
    return empty(tensor.shape, tensor.dtype).copy_(tensor)


def _storage(size: int) -> torch.UntypedStorage:
    with _lock:
        for key, storage, references in _references(_shelf):
            if storage.nbytes() == size and references == _IDLE:
                _shelf.move_to_end(key)
                return storage
        storage = torch.empty(size, dtype=torch.uint8, device="cpu").untyped_storage()
        _shelf[id(storage)] = storage
        while sum(kept.nbytes() for kept in _shelf.values()) > _MOST:
            _shelf.popitem(last=False)
        return storage


def _references(
    shelf: OrderedDict[int, torch.UntypedStorage],
) -> Iterator[tuple[int, torch.UntypedStorage, tuple[int, int]]]:
    """Iterate over a shelf; count the references to each storage from C++, which include tensors, and from Python."""
    for key, storage in shelf.items():
        yield key, storage, (torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage))


_IDLE = next(_references(OrderedDict({0: torch.empty(1, device="cpu").untyped_storage()})))[2]
"""The reference counts of a storage that only a shelf refers to."""
