"""The method for a shape, and its expected cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from householder import _core
from householder._base.cpu import dtype_of
from householder._base.spec import METHODS, MOST
from householder._base.validate import integer

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


@dataclass(frozen=True)
class Plan:
    """The result of :func:`householder.plan`.

    Attributes
    ----------
    method : {"reflections", "wy", "dense"}
        The method that ``"auto"`` chooses.
    costs : dict of str to float
        Expected time of each method, forward and backward, in microseconds. They are for one thread of the processor
        on which the cost model was measured; only their ratios matter.
    reason : str
        One sentence.
    """

    method: str
    costs: dict[str, float]
    reason: str


_REASONS = {
    "reflections": "few vectors: one reflection after the other needs no factors",
    "wy": "compact WY: O(n m) a vector, W is never formed",
    "dense": "many vectors and many reflections: forming W pays",
}


def plan(n: int, m: int, batch: int = 1, steps: int | None = None, dtype: DTypeLike = "float32") -> Plan:
    """Return the method that "auto" chooses for a shape, and the reason.

    The choice depends on the shape, on whether numbers are complex and on the processor's instruction set. It never
    depends on the number of threads, so a processor's results are always the same. Costs of an application are those
    of a forward and a backward pass. A forward pass without gradients still takes single reflections for a few vectors
    more than these costs suggest.

    Parameters
    ----------
    n, m : int
        Size of the vectors and number of reflections, ``1 <= m <= n``.
    batch : int
        Vectors of an application, or sequences of a recurrence.
    steps : int, optional
        Steps of a recurrence; without it, one application.
    dtype : dtype
        float32, float64, complex64 or complex128. Costs are those of single precision.

    Returns
    -------
    Plan

    Raises
    ------
    TypeError
        A size is not an integer, or the dtype is not one of the four.
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
    n = integer("n", n, 1, MOST)
    m = integer("m", m, 1, n)
    rows = integer("batch", batch, 1, MOST)
    if steps is not None:
        rows *= integer("steps", steps, 1, MOST)
    is_complex = dtype_of(dtype).kind == "c"
    if is_complex and m == n:
        raise ValueError(
            f"m is {m}, expected at most n - 1 = {n - 1} for complex reflections: phases supply the rest of U(n)"
        )
    method, times = _core.plan(n, m, rows, steps is not None, is_complex)
    costs = dict(zip(METHODS[1:], times, strict=True))
    if steps is not None:
        del costs["reflections"]  # not offered
    return Plan(method, costs, _REASONS[method])
