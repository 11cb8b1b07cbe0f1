"""The compiled core: raw kernels over C-contiguous memory, nothing allocated but workspace.

Arrays are NumPy arrays or torch's tensors, checked here for dtype, shape, contiguity and writability. Outputs are
allocated by the caller and fully overwritten. Functions that may return ``NotImplemented`` do so where a tensor is
for torch's dispatcher to handle: a subclass, one of another device, lazily negated or conjugated, or not row after
row.

``form`` is ``"trapezoidal"`` or ``"full"``; with ``tau (.., m)``, for ``u (.., n, m)``, trapezoidal columns
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

ArrayOrTensor: TypeAlias = NDArray[Any] | Tensor
# u (.., n, m), x (.., T, B, d) or (.., rows, d), h0, input_weight, bias, phases, nonlinearity_bias, tau and
# batch_sizes; x (T, B, d) and its like may lie at any distances between steps and between sequences
RnnOperands: TypeAlias = Sequence[ArrayOrTensor | None]
NativeRnnOptions: TypeAlias = Sequence[Any]  # a tuple: nonlinearity, slope, transpose, reverse, form, method
# q (tokens, H, K), k (steps, H, K), v (steps, HV, V), beta (steps, HV) or None: nothing is erased, g (tokens, HV) or
# (tokens, HV, K), the initial states (N, HV, K, V), and skip (HV,), which torch has; steps = tokens * reflections
DeltaOperands: TypeAlias = Sequence[ArrayOrTensor | None]
# (H, HV, K, V, reflections), N + 1 offsets of the sequences, whether g is by channel, scale, whether q and k are
# normalised
NativeDeltaOptions: TypeAlias = tuple[tuple[int, int, int, int, int], list[int], bool, float, bool]

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
class Saved:
    """What ``forward``, ``matrix`` and ``rnn_forward`` leave to their backward passes."""

    has_factors: bool

    def __reduce__(self) -> tuple[type[None], tuple[()]]: ...

def forward(
    u: ArrayOrTensor,  # (.., n, m)
    h: ArrayOrTensor,  # (.., n)
    out: ArrayOrTensor,  # like h
    phases: ArrayOrTensor | None,  # (n,), shared by all matrices
    transpose: bool,
    method: str,
    save: bool = False,  # return what ``backward`` can use, if the method saves anything
    form: str = "trapezoidal",
    tau: ArrayOrTensor | None = None,
) -> Saved | NotImplementedType | None: ...
def backward(
    u: ArrayOrTensor,
    h: ArrayOrTensor,
    grad_c: ArrayOrTensor,  # like h
    gradients: Sequence[ArrayOrTensor | None],  # out, of u, h, phases and tau; None: not needed
    phases: ArrayOrTensor | None,
    transpose: bool,
    method: str,
    saved: Saved | None = None,  # of the forward call with the same u
    form: str = "trapezoidal",
    tau: ArrayOrTensor | None = None,
) -> NotImplementedType | None: ...
def backward_in_place(
    u: ArrayOrTensor,
    h: ArrayOrTensor,
    grad: ArrayOrTensor,  # like h: the gradient of W h, which becomes that of h
    grad_u: ArrayOrTensor,
    saved: Saved | None,
) -> NotImplementedType | None: ...
def forward_tape(
    u: ArrayOrTensor,  # (n, m)
    h: ArrayOrTensor,
    tape: ArrayOrTensor,  # (rows, m + 1, n): tape[:, k] is the paper's H_{*,k+1}; tape[:, 0] is c, tape[:, m] is h
    phases: ArrayOrTensor | None,
    transpose: bool,
) -> None: ...
def backward_tape(
    u: ArrayOrTensor,
    tape: ArrayOrTensor,
    grad_c: ArrayOrTensor,
    gradients: Sequence[ArrayOrTensor | None],  # out, of u, h and phases; None: not needed
    phases: ArrayOrTensor | None,
    transpose: bool,
) -> None: ...
def constrain(
    u: ArrayOrTensor,  # (.., n, n), real: its latent u_1 is replaced
    soft: bool,
) -> NotImplementedType | None: ...
def matrix(
    u: ArrayOrTensor,
    out: ArrayOrTensor,  # (.., n, n)
    phases: ArrayOrTensor | None,
    save: bool = False,  # for the backward call with the same u
    form: str = "trapezoidal",
    tau: ArrayOrTensor | None = None,
) -> Saved | NotImplementedType | None: ...
def matrix_backward(
    u: ArrayOrTensor,
    grad_w: ArrayOrTensor,
    grad_u: ArrayOrTensor,
    saved: Saved | None,  # of the forward call with the same u
) -> NotImplementedType | None: ...
def wy(
    u: ArrayOrTensor,  # (n, m)
    v: ArrayOrTensor,  # (n, k) unit columns, k = m, or n - 1 when m == n (u_1 left out)
    t: ArrayOrTensor,  # (k, k) upper triangular T of the unit columns
    s: ArrayOrTensor,  # (k, k) S = T^-1
) -> None: ...
def factor(
    q: ArrayOrTensor,  # (n, n)
    u: ArrayOrTensor,  # (n, m)
    phases: ArrayOrTensor | None,  # (n,)
    by_columns: bool = False,  # the first m columns of q, whatever the others are
) -> float: ...  # the part of q that m reflections leave: max |q - matrix(u)|
def departure(q: ArrayOrTensor) -> float: ...  # max |q* q - I|

@final
class Recurrence:
    """A recurrence whose weights are prepared at the first call. It owns copies of its parameters."""

    def __new__(
        cls,
        inputs: RnnOperands,  # x of no steps; x and h0 play no other part
        options: NativeRnnOptions,
        latent: ArrayOrTensor | None = None,  # like u, which was made of it
    ) -> Self: ...
    def step(
        self,
        x: ArrayOrTensor,  # (B, d) or (d,)
        h: ArrayOrTensor,  # (B, n) or (n,)
        out: ArrayOrTensor,  # like h
    ) -> NotImplementedType | None: ...
    def step_of(
        self,
        inputs: RnnOperands,  # its parameters bit for bit, latent in the place of u; else nothing is written
        out: ArrayOrTensor,
    ) -> NotImplementedType | bool: ...
    def run_of(
        self,
        inputs: RnnOperands,  # as those of step_of, with x of any steps
        options: NativeRnnOptions,  # its own
        h: ArrayOrTensor,  # out, as of rnn_forward
        last: ArrayOrTensor,
    ) -> NotImplementedType | bool: ...

def rnn_tape_width(
    dtype: str, n: int, m: int, rows: int, has_phases: bool, has_tau: bool, nonlinearity: str, method: str
) -> int: ...  # 0: no tape is used
def rnn_forward(
    inputs: RnnOperands,
    options: NativeRnnOptions,
    h: ArrayOrTensor,  # out (.., rows, n)
    last: ArrayOrTensor | None,  # out (.., batch, n), the state in which each sequence ends
    save: bool,  # return what rnn_backward need not form again, and the tape: OPLU needs it, others are faster with it
) -> Saved | NotImplementedType | None: ...
def rnn_backward(
    inputs: RnnOperands,
    options: NativeRnnOptions,
    h: ArrayOrTensor,
    grad_h: ArrayOrTensor | None,  # None: zero
    grad_last: ArrayOrTensor | None,
    gradients: Sequence[ArrayOrTensor | None],  # out, of the inputs but batch_sizes; None: not needed
    saved: Saved | None,  # of the same forward call
) -> NotImplementedType | None: ...
def convolution_forward(
    inputs: Sequence[ArrayOrTensor | None],  # x (B, T, C), weight (C, taps), bias (C,)
    shape: Sequence[int],  # B, T, C, taps
    silu: bool,
    out: ArrayOrTensor,  # (B, T, C)
) -> NotImplementedType | None: ...
def convolution_backward(
    inputs: Sequence[ArrayOrTensor | None],
    shape: Sequence[int],
    silu: bool,
    grad_out: ArrayOrTensor,
    gradients: Sequence[ArrayOrTensor | None],  # out, of the inputs; None: not needed
) -> NotImplementedType | None: ...
def gated_norm_forward(
    inputs: Sequence[ArrayOrTensor | None],  # x (N, W), z (N, W), weight (W,)
    options: tuple[list[int], float, bool],  # N and W, epsilon, whether gates pass through SiLU
    out: ArrayOrTensor,  # (N, W)
) -> NotImplementedType | None: ...
def gated_norm_backward(
    inputs: Sequence[ArrayOrTensor | None],
    options: tuple[list[int], float, bool],
    grad_out: ArrayOrTensor,
    gradients: Sequence[ArrayOrTensor | None],  # out, of the inputs; None: not needed
) -> NotImplementedType | None: ...
def delta_interval(key_width: int, value_width: int) -> int: ...  # steps from one saved state to the next
def delta_forward(
    operands: DeltaOperands,
    options: NativeDeltaOptions,
    out: ArrayOrTensor | None,  # (tokens, HV, V)
    last: ArrayOrTensor | None,  # (N, HV, K, V)
    saved: ArrayOrTensor | None,  # (steps // interval, HV, K, V), for delta_backward
    in_place: bool,  # last holds the initial states
) -> NotImplementedType | None: ...
def delta_backward(
    operands: DeltaOperands,
    options: NativeDeltaOptions,
    saved: ArrayOrTensor | None,  # None: found again
    grad_out: ArrayOrTensor | None,  # None: zero
    grad_last: ArrayOrTensor | None,
    gradients: DeltaOperands,  # out; None: not needed
) -> NotImplementedType | None: ...
