"""Statistics over a whole run: means that the uniform distribution on a group must have."""

import math

SIGMAS = 6
"""Standard errors by which a mean may be off: once in 500 million by chance."""


def judge(moments):
    """A line for each statistic ``(name, expected) -> (count, sum, sum of squares)``, and whether it is right."""
    for (name, expected), (count, total, squares) in sorted(moments.items()):
        mean = total / count
        error = math.sqrt(max(squares / count - mean**2, 0) / count)
        right = count < 100 or abs(mean - expected) <= SIGMAS * error + 1e-12
        yield f"    {name}: mean {mean:.5f}, expected {expected:.5f}, standard error {error:.5f}, {count} draws", right
