"""Everything random of a case, a pure function of its seed and index."""

import numpy as np
import torch

REAL, COMPLEX = (torch.float32, torch.float64), (torch.complex64, torch.complex128)
HALF = (torch.bfloat16, torch.float16)


class Source:
    """Draws choices, numbers and reflections."""

    def __init__(self, seed, index):
        self.rng = np.random.default_rng((seed, index))

    def one_in(self, k):
        return bool(self.rng.integers(k) == 0)

    def flag(self):
        return self.one_in(2)

    def among(self, first, last):
        """An integer, both ends included."""
        return int(self.rng.integers(first, last + 1))

    def choose(self, options):
        return options[int(self.rng.integers(len(options)))]

    def some(self, options):
        """A subset, in order."""
        return tuple(option for option in options if self.flag())

    def near(self, edges, least=1, spread=2):
        """A size within a few of one of the sizes at which a path changes."""
        return max(least, int(self.choose(edges)) + self.among(-spread, spread))

    def numbers(self, shape, dtype):
        """A tensor of normal numbers: ordinary, small, large, sparse, or the same ones along an axis."""
        a = self.rng.standard_normal(shape)
        if dtype.is_complex:
            a = a + 1j * self.rng.standard_normal(shape)
        temper = self.among(0, 15)
        if dtype in HALF:
            a = a / 2  # their range is small
        elif temper in (0, 1):
            a = a * (1e-3, 1e3)[temper]
        if temper == 2:
            a = a * (self.rng.random(shape) < 0.5)
        elif temper == 3 and a.ndim and a.size:
            a = np.broadcast_to(a.take([0], self.among(0, a.ndim - 1)), shape)
        return torch.from_numpy(np.array(a)).to(dtype)

    def reflections(self, shape, dtype):
        """``u (..., n, m)``: columns of any length, zero ones, and anything above the diagonal, which is ignored."""
        n, m = shape[-2:]
        u = self.rng.standard_normal(shape)
        if dtype.is_complex:
            u = u + 1j * self.rng.standard_normal(shape)
        columns = m - (m == n and not dtype.is_complex)
        if self.one_in(4):
            reach = 1 if dtype in HALF else 8
            u[..., :columns] *= 10.0 ** self.rng.uniform(-reach, reach, columns)
        if self.one_in(8) and columns:
            u[..., self.among(0, columns - 1)] = 0
        if columns < m and self.flag():
            u[..., -1, -1] = self.choose((1, -1, 0.5, 0))
        u = u.swapaxes(-1, -2).copy()
        if self.one_in(4):
            u[..., ~np.tri(n, m, dtype=bool).T] = self.choose((np.nan, np.inf, 7))
        return torch.from_numpy(u).mT.contiguous().to(dtype)
