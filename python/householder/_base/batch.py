"""Many vectors and many matrices: the broadcasting of ``(..., n, m), (..., n) -> (..., n)`` as one native call.

Along an axis where U has size one, all vectors share a matrix and become its rows. Along any other axis, each position
has its own matrix. The native call takes ``(count, rows, n)``, so the axes with separate matrices go to the front.
"""

from types import ModuleType
from typing import NamedTuple

from householder._base.types import Array


class LeadingAxes(NamedTuple):
    """The leading axes of u and h, broadcast, and the order in which the native call takes them."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    back: tuple[int, ...]
    """The order that undoes ``order``."""
    separate: int
    """How many axes of ``order``, the first ones, have separate matrices."""

    def gather(self, h: Array, xp: ModuleType) -> Array:
        """Return ``(*shape[order], n)``, contiguous; h itself if it already has this layout."""
        full = xp.broadcast_to(h, (*self.shape, h.shape[-1]))
        gathered: Array = xp.ascontiguousarray(full.transpose(*self.order, len(self.order)))
        return gathered

    def scatter(self, c: Array, xp: ModuleType) -> Array:
        """Invert ``gather``, up to broadcasting: ``(*shape, n)``."""
        scattered: Array = xp.ascontiguousarray(c.transpose(*self.back, len(self.order)))
        return scattered


def arrange(u: tuple[int, ...], h: tuple[int, ...]) -> LeadingAxes:
    """Broadcast the leading axes of the shapes ``u (..., n, m)`` and ``h (..., n)``.

    Raises
    ------
    ValueError
        The leading axes do not broadcast.
    """
    matrices, vectors = u[:-2], h[:-1]
    axes = max(len(matrices), len(vectors))
    matrices, vectors = (1,) * (axes - len(matrices)) + matrices, (1,) * (axes - len(vectors)) + vectors
    if any(a != b and a != 1 and b != 1 for a, b in zip(matrices, vectors, strict=True)):
        raise ValueError(f"leading axes of u {u} and h {h} do not broadcast: (..., n, m) against (..., n)")
    shape = tuple(b if a == 1 else a for a, b in zip(matrices, vectors, strict=True))
    separate = [axis for axis in range(axes) if matrices[axis] != 1]
    shared = [axis for axis in range(axes) if matrices[axis] == 1]
    order = (*separate, *shared)
    return LeadingAxes(shape, order, tuple(sorted(range(axes), key=order.__getitem__)), len(separate))


def sum_to(a: Array, shape: tuple[int, ...]) -> Array:
    """Return the sum of a over the axes along which an array of this shape was broadcast."""
    extra = a.ndim - len(shape)
    repeated = [extra + axis for axis, size in enumerate(shape) if size == 1 and a.shape[extra + axis] != 1]
    return a.sum(axis=(*range(extra), *repeated)).reshape(shape) if extra or repeated else a
