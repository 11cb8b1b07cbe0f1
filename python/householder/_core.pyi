"""The compiled core: raw kernels over C-contiguous memory, nothing allocated but workspace.

Arrays are NumPy arrays or torch's tensors, checked here for dtype, shape, contiguity and writability. Outputs are
allocated by the caller and fully overwritten. Functions that may return ``NotImplemented`` do so where a tensor is
for torch's dispatcher to handle: a subclass, one of another device, lazily negated or conjugated, or not row after
row.

``shape`` is ``"trapezoidal"`` or ``"full"``; with ``tau (.., m)``, for ``u (.., n, m)``, trapezoidal columns
begin with a one that is not read.

``phases`` and their gradients are real, of the matching precision, and only for complex dtypes. ``method`` is one of
``"auto"``, ``"reflections"``, ``"wy"``, ``"dense"``.

The interpreter lock is released; signals are polled, so a long call ends with ``KeyboardInterrupt``.
Raises ``MemoryError`` when the workspace cannot be allocated, ``ValueError`` for impossible arguments.
"""

from collections.abc import Sequence
from types import NotImplementedType
from typing import Any, Self, TypeAlias, final

from numpy.typing import NDArray
from torch import Tensor

Array: TypeAlias = NDArray[Any] | Tensor
# u (.., n, m), x (.., T, B, d) or (.., rows, d), h0, input_weight, bias, phases, nonlinearity_bias, tau and
# batch_sizes; x (T, B, d) and its like may lie at any distances between steps and between sequences
RnnInputs: TypeAlias = Sequence[Array | None]
RnnOptions: TypeAlias = Sequence[Any]  # a tuple: nonlinearity, slope, transpose, reverse, shape, method
# q (tokens, H, K), k (steps, H, K), v (steps, HV, V), beta (steps, HV) or None: nothing is erased, g (tokens, HV) or
# (tokens, HV, K), the initial states (N, HV, K, V), and skip (HV,), which torch has; steps = tokens * reflections
DeltaOperands: TypeAlias = Sequence[Array | None]
# (H, HV, K, V, reflections), N + 1 offsets of the sequences, whether g is by channel, scale, whether q and k are
# normalised
DeltaOptions: TypeAlias = tuple[tuple[int, int, int, int, int], list[int], bool, float, bool]

__version__: str

def instruction_set() -> str: ...
def cuda_sources() -> dict[str, str]: ...  # text of each file of cuda/ by name
def plan(
    n: int, m: int, rows: int, sequence: bool, is_complex: bool
) -> tuple[str, list[float]]: ...  # reflections, wy, dense: us
def set_num_threads(k: int) -> None: ...
def get_num_threads() -> int: ...
def share_torch_threads(path: str) -> bool: ...  # of a loaded library that has torch's functions
def share_tensor_types(tensor: type[Tensor], parameter: type[Tensor]) -> None: ...  # tensors are read from then on
def release_memory() -> None: ...  # what is kept for the next calls
def xla_handlers() -> dict[str, Any]: ...  # a capsule for each handler of XLA's foreign function interface, by name

@final
class Kept:
    """What ``forward``, ``matrix`` and ``rnn_forward`` leave to their backward passes: factors or W, and the tape."""

    is_matrix: bool

    def __reduce__(self) -> tuple[type[None], tuple[()]]: ...

def forward(
    u: Array,  # (.., n, m)
    h: Array,  # (.., n)
    out: Array,  # like h
    phases: Array | None,  # (n,), shared by all matrices
    transpose: bool,
    method: str,
    keep: bool = False,  # give what ``backward`` can use, if the method leaves anything
    shape: str = "trapezoidal",
    tau: Array | None = None,
) -> Kept | NotImplementedType | None: ...
def backward(
    u: Array,
    h: Array,
    grad_c: Array,  # like h
    gradients: Sequence[Array | None],  # out, of u, h, phases and tau; None: not wanted
    phases: Array | None,
    transpose: bool,
    method: str,
    kept: Kept | None = None,  # of the forward call with the same u
    shape: str = "trapezoidal",
    tau: Array | None = None,
) -> NotImplementedType | None: ...
def backward_in_place(
    u: Array,
    h: Array,
    grad: Array,  # like h: the gradient of W h, which becomes that of h
    grad_u: Array,
    kept: Kept | None,
) -> NotImplementedType | None: ...
def forward_tape(
    u: Array,  # (n, m)
    h: Array,
    tape: Array,  # (rows, m + 1, n): tape[:, k] is the paper's H_{*,k+1}; tape[:, 0] is c, tape[:, m] is h
    phases: Array | None,
    transpose: bool,
) -> None: ...
def backward_tape(
    u: Array,
    tape: Array,
    grad_c: Array,
    gradients: Sequence[Array | None],  # out, of u, h and phases; None: not wanted
    phases: Array | None,
    transpose: bool,
) -> None: ...
def constrain(
    u: Array,  # (.., n, n), real: its latent u_1 is replaced
    soft: bool,
) -> NotImplementedType | None: ...
def matrix(
    u: Array,
    out: Array,  # (.., n, n)
    phases: Array | None,
    keep: bool = False,  # for the backward call with the same u
    shape: str = "trapezoidal",
    tau: Array | None = None,
) -> Kept | NotImplementedType | None: ...
def matrix_backward(
    u: Array,
    grad_w: Array,
    grad_u: Array,
    kept: Kept | None,  # of the forward call with the same u
) -> NotImplementedType | None: ...
def wy(
    u: Array,  # (n, m)
    v: Array,  # (n, k) unit columns, k = m, or n - 1 when m == n (u_1 left out)
    t: Array,  # (k, k) upper triangular T of the unit columns
    s: Array,  # (k, k) S = T^-1
) -> None: ...
def factor(
    q: Array,  # (n, n)
    u: Array,  # (n, m)
    phases: Array | None,  # (n,)
    by_columns: bool = False,  # the first m columns of q, whatever the others are
) -> float: ...  # the part of q that m reflections leave: max |q - matrix(u)|
def departure(q: Array) -> float: ...  # max |q* q - I|

@final
class Recurrence:
    """A recurrence for single steps. It owns copies of its parameters, and prepares weights at the first step."""

    def __new__(
        cls,
        inputs: RnnInputs,  # x of no steps; x and h0 play no other part
        options: RnnOptions,
        latent: Array | None = None,  # like u, which was made of it
    ) -> Self: ...
    def step(
        self,
        x: Array,  # (B, d) or (d,)
        h: Array,  # (B, n) or (n,)
        out: Array,  # like h
    ) -> NotImplementedType | None: ...
    def step_of(
        self,
        inputs: RnnInputs,  # its parameters bit for bit, latent in the place of u; else nothing is written
        out: Array,
    ) -> NotImplementedType | bool: ...

def rnn_tape_width(
    dtype: str, n: int, m: int, rows: int, has_phases: bool, has_tau: bool, nonlinearity: str, method: str
) -> int: ...  # 0: no tape is used
def rnn_forward(
    inputs: RnnInputs,
    options: RnnOptions,
    h: Array,  # out (.., rows, n)
    last: Array | None,  # out (.., batch, n), the state in which each sequence ends
    keep: bool,  # return what rnn_backward need not form again, and the tape: OPLU needs it, others are faster with it
) -> Kept | NotImplementedType | None: ...
def rnn_backward(
    inputs: RnnInputs,
    options: RnnOptions,
    h: Array,
    grad_h: Array | None,  # None: zero
    grad_last: Array | None,
    gradients: Sequence[Array | None],  # out, of the inputs but batch_sizes; None: not wanted
    kept: Kept | None,  # of the same forward call
) -> NotImplementedType | None: ...
def convolution_forward(
    inputs: Sequence[Array | None],  # x (B, T, C), weight (C, taps), bias (C,)
    shape: Sequence[int],  # B, T, C, taps
    silu: bool,
    out: Array,  # (B, T, C)
) -> NotImplementedType | None: ...
def convolution_backward(
    inputs: Sequence[Array | None],
    shape: Sequence[int],
    silu: bool,
    grad_out: Array,
    gradients: Sequence[Array | None],  # out, of the inputs; None: not wanted
) -> NotImplementedType | None: ...
def gated_norm_forward(
    inputs: Sequence[Array | None],  # x (N, W), z (N, W), weight (W,)
    options: tuple[list[int], float, bool],  # N and W, epsilon, whether gates pass through SiLU
    out: Array,  # (N, W)
) -> NotImplementedType | None: ...
def gated_norm_backward(
    inputs: Sequence[Array | None],
    options: tuple[list[int], float, bool],
    grad_out: Array,
    gradients: Sequence[Array | None],  # out, of the inputs; None: not wanted
) -> NotImplementedType | None: ...
def delta_interval(key_width: int, value_width: int) -> int: ...  # steps from one kept state to the next
def delta_forward(
    operands: DeltaOperands,
    options: DeltaOptions,
    out: Array,  # (tokens, HV, V)
    last: Array | None,  # (N, HV, K, V)
    kept: Array | None,  # (steps // interval, HV, K, V), for delta_backward
    in_place: bool,  # last holds the initial states
) -> NotImplementedType | None: ...
def delta_backward(
    operands: DeltaOperands,
    options: DeltaOptions,
    kept: Array | None,  # None: found again
    grad_out: Array | None,  # None: zero
    grad_last: Array | None,
    gradients: DeltaOperands,  # out; None: not wanted
) -> NotImplementedType | None: ...
