"""The named tuples of the package: results, and the arguments of a sequence."""

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
AnyArray = Any
"""An array of any library."""
RealType = type[np.floating[Any] | float] | np.dtype[np.floating[Any]] | Literal["float32", "float64"]
ComplexType = (
    type[np.complexfloating[Any, Any] | complex]
    | np.dtype[np.complexfloating[Any, Any]]
    | Literal["complex64", "complex128"]
)


class WY(NamedTuple):
    """Compact WY form ``W = (I - V S V*) D`` on unit columns; ``D = diag(1, .., 1, u_1)`` if m == n, else I."""

    v: Array
    """Unit columns ``(..., n, k)``, ``k = m`` or, when m == n, ``n - 1``."""
    t: Array
    """``T = striu(V* V) + I / 2``, ``(..., k, k)``."""
    s: Array
    """``S = T^-1``, upper triangular, ``|S_ij| <= 4``."""


class Gradients(NamedTuple):
    """Gradients of one application."""

    u: Array
    h: Array


class PhaseGradients(NamedTuple):
    """Gradients of one application with phases."""

    u: Array
    h: Array
    phases: Array


class TauGradients(NamedTuple):
    """Gradients of one application with a given tau."""

    u: Array
    h: Array
    tau: Array


class SequenceGradients(NamedTuple):
    """Gradients of a sequence, None for arguments that were None."""

    u: Array
    x: Array
    h0: Array | None
    input_weight: Array | None
    bias: Array | None
    phases: Array | None
    nonlinearity_bias: Array | None
    tau: Array | None = None


class Sequence(NamedTuple):
    """The arguments that a sequence's forward and backward pass share."""

    u: Any
    x: Any
    h0: Any
    input_weight: Any
    bias: Any
    phases: Any
    batch_sizes: Any
    nonlinearity: str
    negative_slope: float
    nonlinearity_bias: Any
    transpose: bool
    reverse: bool
    method: str
    tau: Any = None
    form: str = "trapezoidal"


class Delta(NamedTuple):
    """Results of the delta rule, or of linear attention."""

    o: Array
    """Outputs ``(B, T, HV, V)``."""
    final_state: Array | None
    """States in which the sequences end, ``(N, HV, K, V)``, or None."""


class DeltaGradients(NamedTuple):
    """Gradients of the delta rule, or of linear attention; None for arguments that were None."""

    q: Array
    k: Array
    v: Array
    beta: Array | None
    g: Array | None
    initial_state: Array | None
