"""Which method for which shape."""

from __future__ import annotations

from dataclasses import dataclass

from householder import _core
from householder._validate import integer


@dataclass(frozen=True)
class Plan:
    """What :func:`plan` tells.

    Attributes
    ----------
    method : {"reflections", "wy", "dense"}
        What ``method="auto"`` takes.
    costs : dict of str to float
        Expected time of each method, forward and backward, in microseconds on one thread of the processor on which the
        model was measured. Their ratios matter.
    reason : str
        One sentence.
    """

    method: str
    costs: dict[str, float]
    reason: str


_MOST = 2**31  # of anything: products fit an address

_REASONS = {
    "reflections": "few vectors: one reflection after the other needs no factors",
    "wy": "compact WY: O(n m) a vector, W is never formed",
    "dense": "many vectors and many reflections: forming W pays",
}


def plan(n: int, m: int, batch: int = 1, steps: int | None = None) -> Plan:
    """Tell which method the shape of a problem leads to, and why.

    The choice depends on the shape alone, never on the number of threads, so results are the same everywhere.

    Parameters
    ----------
    n, m : int
        Size of the vectors and number of reflections, ``1 <= m <= n``.
    batch : int
        Vectors of an application, or sequences of a recurrence.
    steps : int, optional
        Steps of a recurrence; without it, one application.

    Returns
    -------
    Plan

    Raises
    ------
    TypeError
        An argument is not an integer.
    ValueError
        An argument is out of range.

    Examples
    --------
    >>> import householder as hh
    >>> hh.plan(512, 64, batch=64).method
    'wy'
    >>> hh.plan(512, 64, batch=1).method
    'reflections'
    >>> hh.plan(256, 256, batch=50, steps=784).method
    'dense'
    """
    n = integer("n", n, 1, _MOST)
    m = integer("m", m, 1, n)
    rows = integer("batch", batch, 1, _MOST)
    if steps is not None:
        rows *= integer("steps", steps, 1, _MOST)
    method, times = _core.plan(n, m, rows, steps is not None)
    costs = dict(zip(("reflections", "wy", "dense"), times, strict=True))
    if steps is not None:
        del costs["reflections"]  # not offered
    return Plan(method, costs, _REASONS[method])
