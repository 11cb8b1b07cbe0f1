"""Whether results are right: within the rounding of their type, or within what rounding can do to this problem.

The first bound is a priori: some roundings times the square root of the number of operations in a row, relative to the
largest expected number. Subnormal numbers may vanish. Where terms cancel or errors grow this is too strict. Then the
oracle runs again with noise of the size of a rounding in every intermediate result, and the second bound is what this
moves.
"""

import math
from dataclasses import dataclass, field

import oracle
import torch

ROUNDINGS = 16
"""Factor of the first bound, in roundings."""
RUNS, LEVEL, FACTOR = 12, 4, 4
"""Of the second: disturbed runs, the noise in roundings, and how far beyond the farthest run a result may be."""


class DefectError(Exception):
    """A result is wrong."""


@dataclass
class Record:
    """The result of one case, or of all cases of a kind."""

    cases: int = 0
    results: int = 0
    """Tensors compared."""
    disturbed: int = 0
    """Comparisons that needed the second bound."""
    worst: float = 0.0
    """Largest error, relative to its bound."""
    moments: dict = field(default_factory=dict)
    """Count, sum and sum of squares of each statistic of random matrices."""

    def add(self, other):
        self.cases += other.cases
        self.results += other.results
        self.disturbed += other.disturbed
        self.worst = max(self.worst, other.worst)
        for name, sums in other.moments.items():
            mine = self.moments.get(name, (0, 0.0, 0.0))
            self.moments[name] = tuple(a + b for a, b in zip(mine, sums, strict=True))


@dataclass
class Result:
    """A tensor, what it is called, and what it counts with: gradients of long columns are small."""

    name: str
    value: torch.Tensor
    weight: torch.Tensor | float = 1.0


def column_lengths(u):
    """Lengths ``(..., 1, m)`` of the columns, 1 for ``u_1`` and for columns that are zero."""
    columns = oracle.wide(u).tril()
    size = columns.abs().amax(-2, keepdim=True)
    size = torch.where(size == 0, 1.0, size)
    length = size * torch.linalg.vector_norm(columns / size, dim=-2, keepdim=True)
    length = torch.where(length == 0, 1.0, length)
    if u.shape[-1] == u.shape[-2] and not u.is_complex():
        length[..., -1] = 1
    return length


def check(record, found, expected, again, eps, operations, reach=1.0):
    """Compare results with expected ones; ``again()`` gives the expected ones anew, while the oracle is disturbed.

    ``reach`` is what numbers that vanish because they are subnormal may be multiplied by afterwards.

    Raises
    ------
    DefectError
        A result has another shape, is not finite where it should be, or is wrong.
    """
    bound = ROUNDINGS * eps * math.sqrt(max(operations, 1))
    overflows = any(_overflows(mine, right) for mine, right in zip(found, expected, strict=True))
    far = []
    for i, (mine, right) in enumerate(zip(found, expected, strict=True)):
        if mine.value.shape != right.value.shape:
            raise DefectError(f"{mine.name} has shape {tuple(mine.value.shape)}, expected {tuple(right.value.shape)}")
        error, scale = _distance(mine, right)
        record.results += 1
        allowed = bound * scale + ROUNDINGS * torch.finfo(mine.value.dtype).tiny * _largest(right.weight) * reach
        if math.isnan(error) and overflows:
            continue  # infinities on the way there
        if not error <= allowed:
            far.append((i, error, scale))
        else:
            record.worst = max(record.worst, error / allowed)
    if not far:
        return
    moved = [0.0] * len(expected)
    for seed in range(RUNS):
        with oracle.disturbed(LEVEL * eps * math.sqrt(max(operations, 1)), seed):
            for i, other in enumerate(again()):
                distance = _distance(other, expected[i])[0]
                # An infinite argument and noise make NaN of what is finite without noise: rounding may as well.
                moved[i] = math.inf if math.isnan(distance) else max(moved[i], distance)
    for i, error, scale in far:
        record.disturbed += 1
        explained = FACTOR * moved[i]
        if scale + explained > torch.finfo(found[i].value.dtype).max / 8:  # numbers overflow if rounding is unlucky
            continue
        if not error <= explained:
            raise DefectError(
                f"{found[i].name} is off by {error:.3g} where numbers are up to {scale:.3g}; rounding explains "
                f"{max(bound * scale, explained):.3g}"
            )
        record.worst = max(record.worst, error / explained)


def _overflows(mine, right):
    """Return whether a number is expected that the type does not have."""
    return bool((right.value.detach().abs() > torch.finfo(mine.value.dtype).max).any())


def _largest(weight):
    return float(weight.max()) if isinstance(weight, torch.Tensor) and weight.numel() else 1.0


def _distance(mine, right):
    """The largest difference and the largest expected number, where a number is expected that the type has."""
    if not right.value.numel():
        return 0.0, 0.0
    expected = right.value.detach()
    difference = (oracle.wide(mine.value) - expected).abs() * right.weight
    size = expected.abs() * right.weight
    finite = expected.isfinite() & (expected.abs() < torch.finfo(mine.value.dtype).max / 8)
    if not finite.all():
        difference, size = difference[finite], size[finite]
        if not difference.numel():
            return 0.0, 0.0
    return float(difference.max()), float(size.max())
