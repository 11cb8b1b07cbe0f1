"""Array libraries under one set of names: the array API standard, and the few operations that it lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from householder._base.types import AnyArray, AnyDtype

if TYPE_CHECKING:
    from types import ModuleType

Step = Callable[..., tuple[AnyArray, AnyArray]]
"""A function of a state and of parts of arrays, which returns a state and a result."""


@dataclass(frozen=True)
class Library:
    """The operations that the standard lacks, written in those that it has, for NumPy, CuPy and exported programs."""

    xp: ModuleType
    """Namespace of the standard, ``array_api_compat.numpy`` for example."""

    def is_complex(self, a: AnyArray) -> bool:
        """Return whether the numbers of an array are complex."""
        return bool(self.xp.isdtype(a.dtype, "complex floating"))

    def conj(self, a: AnyArray) -> AnyArray:
        """Conjugate; return real numbers as they are."""
        return self.xp.conj(a) if self.is_complex(a) else a

    def adjoint(self, a: AnyArray) -> AnyArray:
        """Conjugate, and exchange the last two axes."""
        return self.conj(self.xp.matrix_transpose(a))

    def wide(self, a: AnyArray) -> AnyDtype:
        """Return the dtype of double precision."""
        return self.xp.complex128 if self.is_complex(a) else self.xp.float64

    def cast(self, a: AnyArray, dtype: AnyDtype) -> AnyArray:
        """Convert to a dtype; return the same array if it already has it."""
        return self.xp.astype(a, dtype, copy=False)

    def zeros(self, shape: Sequence[int], like: AnyArray) -> AnyArray:
        """Allocate zeros of the dtype of another array, on its device."""
        return self.xp.zeros(tuple(shape), dtype=like.dtype)

    def eye(self, k: int, like: AnyArray) -> AnyArray:
        """Return the identity in the dtype of another array, on its device."""
        return self.xp.eye(k, dtype=like.dtype)

    def constant(self, a: AnyArray) -> AnyArray:
        """Return the array as a constant: no derivative flows through it."""
        return a

    def complex(self, re: AnyArray, im: AnyArray) -> AnyArray:
        """Join real and imaginary parts, which are finite."""
        return re + 1j * im

    def sign(self, a: AnyArray) -> AnyArray:
        """Return the signs of real numbers."""
        return self.xp.sign(a)

    def leaky_relu(self, a: AnyArray, slope: float) -> AnyArray:
        """Multiply numbers that are not positive by ``slope``."""
        return self.xp.where(a <= 0, slope * a, a)

    def unstack(self, a: AnyArray, axis: int) -> Sequence[AnyArray]:
        """Return the parts along an axis."""
        parts: Sequence[AnyArray] = self.xp.unstack(a, axis=axis)
        return parts

    def split(self, a: AnyArray, sizes: Sequence[int], axis: int) -> Sequence[AnyArray]:
        """Cut an axis into parts of these sizes."""
        rows = self.xp.moveaxis(a, axis, 0)
        ends = pairwise(accumulate(sizes, initial=0))
        return [self.xp.moveaxis(rows[begin:end, ...], 0, axis) for begin, end in ends]

    def scan(
        self, step: Step, state: AnyArray, arrays: Sequence[AnyArray], axis: int, reverse: bool
    ) -> tuple[AnyArray, AnyArray]:
        """Run ``state, result = step(state, *parts)`` along an axis; return the last state and all results."""
        steps = list(zip(*(self.unstack(a, axis) for a in arrays), strict=True))
        results = []
        for parts in reversed(steps) if reverse else steps:
            state, result = step(state, *parts)
            results.append(result)
        return state, self.xp.stack(results[::-1] if reverse else results, axis=axis)

    def scan_packed(
        self, step: Step, state: AnyArray, rows: AnyArray, batch_sizes: AnyArray
    ) -> tuple[AnyArray, AnyArray]:
        """Run ``state, result = step(state, a)`` over packed sequences ``rows (.., rows, d)``, each to its own end.

        Return the state in which each sequence ends, and all results.
        """
        ended: list[AnyArray] = []
        results = [rows[..., :0, :]]
        for a in self.split(rows, batch_sizes.tolist(), -2):
            running = a.shape[-2]
            ended.append(state[..., running:, :])
            state, result = step(state[..., :running, :], a)
            results.append(result)
        return self.xp.concat([state, *reversed(ended)], axis=-2), self.xp.concat(results, axis=-2)

    def add_product(self, a: AnyArray, first: AnyArray, second: AnyArray) -> AnyArray:
        """Return ``a + first @ second`` for matrices in stacks of the same shape."""
        return a + first @ second

    def inverse(self, triangle: AnyArray) -> AnyArray:
        """Invert ``striu(triangle) + I``: blocks along the diagonal, of twice the size in each round.

        ``[[A, B], [0, D]]^-1 = [[A^-1, -A^-1 B D^-1], [0, D^-1]]``
        """
        xp, (*batch, k, _) = self.xp, triangle.shape
        rounds = max(k - 1, 0).bit_length()
        size = 1 << rounds
        beside, below = self.zeros((*batch, k, size - k), triangle), self.zeros((*batch, size - k, size), triangle)
        padded = xp.concat([xp.concat([triangle, beside], axis=-1), below], axis=-2)
        inverse = self.zeros((*batch, size, 1, 1), triangle) + 1
        for level in range(rounds):
            block, pairs = 1 << level, size >> (level + 1)
            split = xp.reshape(padded, (*batch, pairs, 2, block, pairs, 2, block))[..., :, 0, :, :, 1, :]
            above = xp.moveaxis(xp.linalg.diagonal(xp.moveaxis(split, (-4, -2), (-2, -1))), -1, -3)  # B of every pair
            halves = xp.reshape(inverse, (*batch, pairs, 2, block, block))
            first, second = halves[..., 0, :, :], halves[..., 1, :, :]
            corner = -(first @ above @ second)
            upper = xp.concat([first, corner], axis=-1)
            lower = xp.concat([xp.zeros_like(corner), second], axis=-1)
            inverse = xp.concat([upper, lower], axis=-2)
        return inverse[..., 0, :k, :k]

    def solve(self, triangle: AnyArray, right: AnyArray, upper: bool) -> AnyArray:
        """Solve triangular systems whose diagonal is one; the diagonal and the other triangle are not read."""
        if upper:
            return self.inverse(triangle) @ right
        transpose = self.xp.matrix_transpose
        return transpose(self.inverse(transpose(triangle))) @ right


class TorchLibrary(Library):
    """torch."""

    def zeros(self, shape: Sequence[int], like: AnyArray) -> AnyArray:
        return like.new_zeros(shape)

    def eye(self, k: int, like: AnyArray) -> AnyArray:
        return self.xp.diag_embed(like.new_ones(k))

    def constant(self, a: AnyArray) -> AnyArray:
        return a.detach()

    def complex(self, re: AnyArray, im: AnyArray) -> AnyArray:
        return self.xp.complex(re, im)

    def sign(self, a: AnyArray) -> AnyArray:
        return a.sign()

    def leaky_relu(self, a: AnyArray, slope: float) -> AnyArray:
        return self.xp.nn.functional.leaky_relu(a, slope)

    def unstack(self, a: AnyArray, axis: int) -> Sequence[AnyArray]:
        parts: Sequence[AnyArray] = a.unbind(axis)
        return parts

    def split(self, a: AnyArray, sizes: Sequence[int], axis: int) -> Sequence[AnyArray]:
        parts: Sequence[AnyArray] = a.split(sizes, axis)
        return parts

    def add_product(self, a: AnyArray, first: AnyArray, second: AnyArray) -> AnyArray:
        stacks = (x.flatten(0, -3) for x in (a, first, second))
        return self.xp.baddbmm(*stacks).view(a.shape)

    def solve(self, triangle: AnyArray, right: AnyArray, upper: bool) -> AnyArray:
        return self.xp.linalg.solve_triangular(triangle, right, upper=upper, unitriangular=True)
