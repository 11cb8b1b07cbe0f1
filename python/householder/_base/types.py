"""The named tuples of the package: results, and the arguments of a sequence."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Array = NDArray[Any]
AnyArray = Any
"""An array of the library at hand: NumPy's, CuPy's, JAX's, or a tensor."""
ArrayLike = Any
"""What a public function converts to an array: one of any library, lists or numbers; in the place of u also W."""
Argument = Any
"""An argument of a user's call before its check, of any type."""
AnyDtype = Any
"""A dtype of the library at hand."""
NumpyDtype = np.dtype[Any]
AnyFunction = Callable[..., Any]
"""A function whose signature is its caller's matter."""
Keywords = dict[str, Any]
"""Keyword arguments, or an object of JSON."""
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


Pull = Callable[[Array | None, Array | None], SequenceGradients]
"""A function from gradients of all states and of the last ones to those of the arguments of a sequence."""


class Sequence(NamedTuple):
    """The arguments that a sequence's forward and backward pass share, as a user gives them or checked."""

    u: AnyArray
    x: AnyArray
    h0: AnyArray
    input_weight: AnyArray
    bias: AnyArray
    phases: AnyArray
    batch_sizes: AnyArray
    nonlinearity: str
    negative_slope: float
    nonlinearity_bias: AnyArray
    transpose: bool
    reverse: bool
    method: str
    tau: AnyArray = None
    form: str = "trapezoidal"


class Backend(Protocol):
    """What computes with the arrays of one library: the module ``_base.cpu``, or an object for CuPy's arrays."""

    @property
    def xp(self) -> ModuleType:
        """The library."""

    @property
    def array(self) -> Callable[[str, ArrayLike], Array]:
        """Convert an argument to an array."""

    @property
    def operand(self) -> Callable[..., Array]:
        """Convert an argument to an array of the dtype of another one."""

    @property
    def forward(self) -> Callable[..., Array]:
        """Return ``W h`` or ``W* h``."""

    @property
    def backward(self) -> Callable[..., tuple[AnyArray, ...]]:
        """Return the gradients of one application."""

    @property
    def forward_tape(self) -> Callable[..., Array]:
        """Return the intermediate vectors of Algorithm 1."""

    @property
    def backward_tape(self) -> Callable[..., tuple[AnyArray, ...]]:
        """Return the gradients from these vectors."""

    @property
    def matrix(self) -> Callable[..., Array]:
        """Return ``W``."""

    @property
    def wy(self) -> Callable[[Array], WY]:
        """Return V, T and S."""

    @property
    def factor(self) -> Callable[[Array, int], tuple[Array, Array | None, float]]:
        """Return reflections of a matrix, phases, and how far the matrix is from their product."""

    @property
    def departure(self) -> Callable[[Array], float]:
        """Return ``max |q* q - I|``."""

    @property
    def rnn(self) -> Callable[[Sequence, int, int], Array]:
        """Return all states."""

    @property
    def rnn_vjp(self) -> Callable[[Sequence, int, int], tuple[Array, Pull]]:
        """Return all states, and the function from their gradients to those of the arguments."""


class Delta(NamedTuple):
    """Results of the delta rule, or of linear attention."""

    o: Array
    """Outputs ``(B, T, HV, V)``."""
    final_state: Array | None
    """States in which the sequences end, ``(N, HV, K, V)``, or None."""


class DeltaWithStates(NamedTuple):
    """Results of the delta rule, or of linear attention, with the states after chosen tokens."""

    o: Array
    """Outputs ``(B, T, HV, V)``."""
    final_state: Array | None
    """States in which the sequences end, ``(N, HV, K, V)``, or None."""
    states: Array
    """States after the chosen tokens, ``(B, len(states_at), HV, K, V)``, without B if sequences are packed."""


class AttentionOptions(TypedDict, Generic[T], total=False):
    """Optional arguments of linear attention, of arrays or tensors T, but for ``states_at``."""

    g: T | None
    scale: float | None
    initial_state: T | None
    output_final_state: bool
    use_qk_l2norm_in_kernel: bool
    cu_seqlens: T | None


class DeltaOptions(AttentionOptions[T], total=False):
    """Optional arguments of the delta rule."""

    num_householder: int


AttentionArgs = AttentionOptions[ArrayLike]
DeltaArgs = DeltaOptions[ArrayLike]


class DeltaGradients(NamedTuple):
    """Gradients of the delta rule, or of linear attention; None for arguments that were None."""

    q: Array
    k: Array
    v: Array
    beta: Array | None
    g: Array | None
    initial_state: Array | None
