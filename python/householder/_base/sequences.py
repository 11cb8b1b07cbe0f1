"""Checks of the arguments of a recurrence, by shapes and numbers alone: NumPy, torch and JAX share them.

Types, devices and conversions are each library's own.
"""

from typing import NamedTuple

from householder._base import spec, validate
from householder._base.spec import Shape
from householder._base.types import Argument


class Extent(NamedTuple):
    """The sizes of sequences."""

    steps: int
    batch: int
    """The number of sequences; of packed ones, those of the first step."""
    width: int
    """The number of inputs in a step."""
    states: Shape
    """The shape of one state of every sequence."""


def options(
    nonlinearity: Argument, negative_slope: Argument, reverse: Argument, method: Argument, batch_sizes: Argument
) -> tuple[float, bool]:
    """Expect known names; return the slope, and whether time runs backwards."""
    validate.one_of("nonlinearity", nonlinearity, spec.NONLINEARITIES)
    validate.one_of("method", method, spec.SEQUENCE_METHODS)
    return validate.slope(negative_slope), validate.direction(reverse, batch_sizes)


def inputs(x: Shape, n: int, has_weight: bool, is_packed: bool, least_width: int = 1) -> int:
    """Return the width d of inputs ``x (T, B, d)``, ``(T, d)`` or, packed, ``(rows, d)``; without a weight, d is n."""
    expected = "(sum(batch_sizes), d)" if is_packed else "(T, B, d) or (T, d)"
    if len(x) not in ((2,) if is_packed else (2, 3)):
        raise ValueError(f"x has shape {x}, expected {expected}")
    if x[-1] < least_width:
        raise ValueError(f"x has shape {x}, expected {expected} with d of at least {least_width}")
    if not has_weight and x[-1] != n:
        raise ValueError(f"x has shape {x}, expected {expected} with d = n = {n} where there is no input_weight")
    return x[-1]


def rows(x: Shape, total: int) -> None:
    """Expect as many rows as the batch sizes add up to."""
    if x[0] != total:
        raise ValueError(f"x has shape {x}, expected (sum(batch_sizes), d) = ({total}, d)")


def extent(x: Shape, n: int, packed: tuple[int, int] | None) -> Extent:
    """Return the sizes of checked inputs; of packed ones, ``packed`` has the steps and the sequences."""
    if packed is not None:
        return Extent(*packed, x[-1], (packed[1], n))
    return Extent(x[0], x[1] if len(x) == 3 else 1, x[-1], (*x[1:-1], n))


def initial_state(h0: Shape, of: Extent) -> None:
    """Expect a state of every sequence, or one for all."""
    shapes = of.states, of.states[-1:]
    if h0 not in shapes:
        raise ValueError(f"h0 has shape {h0}, expected {' or '.join(map(str, dict.fromkeys(shapes)))}")


class ParameterShapes(NamedTuple):
    """The shapes of the parameters of a recurrence, each of which may be absent."""

    input_weight: Shape
    bias: Shape
    nonlinearity_bias: Shape


def parameters(n: int, width: int, nonlinearity: str, nonlinearity_bias: Argument, is_complex: bool) -> ParameterShapes:
    """Return the shapes of parameters; expect that the nonlinearity fits the state, and a bias for a modReLU only."""
    moduli = validate.bias_length(nonlinearity, nonlinearity_bias, n, is_complex)
    return ParameterShapes((n, width), (n,), (moduli,))
