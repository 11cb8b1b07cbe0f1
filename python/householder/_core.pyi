"""The compiled core: raw kernels over C-contiguous memory, nothing allocated but workspace.

Each array argument is an ``Operand``: either a NumPy array, checked here for dtype, element count,
contiguity and writability, or the address (``int``) of such memory, trusted (``householder.torch``
passes ``Tensor.data_ptr()``). Functions whose names end with ``_tensors`` read torch's tensors themselves and check
them. Outputs are allocated by the caller and fully overwritten.

``dtype`` is one of ``"float32"``, ``"float64"``, ``"complex64"``, ``"complex128"``. ``phases`` and
their gradients are real, of the matching precision, and only for complex dtypes. ``method`` is one
of ``"auto"``, ``"reflections"``, ``"wy"``, ``"dense"``.

The interpreter lock is released; signals are polled, so a long call ends with ``KeyboardInterrupt``.
Raises ``MemoryError`` when the workspace cannot be allocated, ``ValueError`` for impossible arguments.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias, final

from numpy.typing import NDArray
from torch import Tensor

Operand: TypeAlias = NDArray[Any] | int
# u (.., n, m), x (.., steps, batch, d) or (.., rows, d), h0, input_weight, bias, phases, nonlinearity_bias and
# batch_sizes; contiguous, but x (steps, batch, d) and its like may lie at any distances between steps and sequences
RnnInputs: TypeAlias = Sequence[Tensor | None]
# q (tokens, H, K), k (steps, H, K), v (steps, HV, V), beta (steps, HV), g (tokens, HV) or (tokens, HV, K), and the
# initial states (N, HV, K, V); steps = tokens * reflections
DeltaOperands: TypeAlias = tuple[
    Operand | None, Operand | None, Operand | None, Operand | None, Operand | None, Operand | None
]
# (H, HV, K, V, reflections), N + 1 offsets of the sequences, whether g is by channel, scale, whether q and k are
# normalised
DeltaOptions: TypeAlias = tuple[tuple[int, int, int, int, int], list[int], bool, float, bool]
RnnOptions: TypeAlias = tuple[str, float, bool, bool, str]  # nonlinearity, slope, transpose, reverse, method

__version__: str

def instruction_set() -> str: ...
def cuda_sources() -> dict[str, str]: ...  # text of each file of cuda/ by name
def plan(
    n: int, m: int, rows: int, sequence: bool, is_complex: bool
) -> tuple[str, list[float]]: ...  # reflections, wy, dense: us
def set_num_threads(k: int) -> None: ...
def get_num_threads() -> int: ...
def share_openmp(parallel: int, max_threads: int) -> None: ...  # addresses of GOMP_parallel and omp_get_max_threads
def release_memory() -> None: ...  # what is kept for the next calls
def xla_handlers() -> dict[str, Any]: ...  # a capsule for each handler of XLA's foreign function interface, by name

@final
class Kept:
    """What ``forward``, ``matrix`` and ``rnn_forward`` leave to their backward passes: factors, or W itself."""

    is_matrix: bool

    def __reduce__(self) -> tuple[type[None], tuple[()]]: ...

def forward(
    dtype: str,
    count: int,
    n: int,
    m: int,
    rows: int,
    u: Operand,  # (count, n, m)
    h: Operand,  # (count, rows, n)
    out: Operand,  # (count, rows, n)
    phases: Operand | None,  # (n,), shared by all matrices
    transpose: bool,
    method: str,
    keep: bool = False,  # give what ``backward`` can use, if the method leaves anything
) -> Kept | None: ...
def backward(
    dtype: str,
    count: int,
    n: int,
    m: int,
    rows: int,
    u: Operand,
    h: Operand,
    grad_c: Operand,  # (count, rows, n)
    grad_u: Operand | None,  # (count, n, m); None: not wanted
    grad_h: Operand | None,  # (count, rows, n); None: not wanted
    phases: Operand | None,
    grad_phases: Operand | None,  # (n,)
    transpose: bool,
    method: str,
    kept: Kept | None = None,  # of the forward call with the same u
) -> None: ...
def forward_tensors(  # ``forward`` of torch's tensors, contiguous on the CPU
    u: Tensor,  # (.., n, m)
    h: Tensor,  # (.., n)
    out: Tensor,  # like h
    transpose: bool,
    method: str,
    keep: bool,
) -> Kept | None: ...
def backward_tensors(
    u: Tensor,
    h: Tensor,
    grad_c: Tensor,
    grad_u: Tensor,
    grad_h: Tensor | None,  # None: not wanted
    transpose: bool,
    method: str,
    kept: Kept | None,
) -> None: ...
def share_tensor_types(tensor: type[Tensor], parameter: type[Tensor]) -> None: ...  # before the others here are used
def are_plain(*tensors: Tensor | None) -> bool: ...  # on the CPU, of just these types, real, not lazily negated
def is_plain_application(u: Any, h: Any) -> bool: ...  # moreover u (n, m) and h (.., n) of one type
def backward_in_place(
    dtype: str,
    n: int,
    m: int,  # less than n
    rows: int,
    u: Operand,
    h: Operand,
    grad: Operand,  # (rows, n): the gradient of W h, which becomes that of h
    grad_u: Operand,
    kept: Kept | None,
) -> None: ...
def forward_tape(
    dtype: str,
    n: int,
    m: int,
    rows: int,
    u: Operand,
    h: Operand,
    tape: Operand,  # (rows, m + 1, n): tape[:, k] is the paper's H_{*,k+1}; tape[:, 0] is c, tape[:, m] is h
    phases: Operand | None,
    transpose: bool,
) -> None: ...
def backward_tape(
    dtype: str,
    n: int,
    m: int,
    rows: int,
    u: Operand,
    tape: Operand,
    grad_c: Operand,
    grad_u: Operand,
    grad_h: Operand,
    phases: Operand | None,
    grad_phases: Operand | None,
    transpose: bool,
) -> None: ...
def matrix(
    dtype: str,
    count: int,
    n: int,
    m: int,
    u: Operand,
    out: Operand,
    phases: Operand | None,
    keep: bool = False,  # for the backward call with the same u
) -> Kept | None: ...
def matrix_backward(
    dtype: str,
    count: int,
    n: int,
    m: int,
    u: Operand,
    grad_w: Operand,
    grad_u: Operand,
    kept: Kept | None = None,  # of the forward call with the same u
) -> None: ...
def wy(
    dtype: str,
    n: int,
    m: int,
    u: Operand,
    v: Operand,  # (n, k) unit columns, k = m, or n - 1 when m == n (u_1 left out)
    t: Operand,  # (k, k) upper triangular T of the unit columns
    s: Operand,  # (k, k) S = T^-1
) -> None: ...
def factor(
    dtype: str,
    n: int,
    m: int,
    q: Operand,  # (n, n)
    u: Operand,  # (n, m)
    phases: Operand | None,  # (n,)
    by_columns: bool = False,  # the first m columns of q, whatever the others are
) -> float: ...  # the part of q that m reflections leave: max |q - matrix(u)|
def departure(dtype: str, n: int, q: Operand) -> float: ...  # max |q* q - I|
def rnn_tape_width(
    dtype: str, n: int, m: int, rows: int, has_phases: bool, nonlinearity: str, method: str
) -> int: ...  # 0: no tape is used
def rnn_forward(
    dtype: str,
    n: int,
    m: int,
    d: int,  # width of x; n when input_weight is None
    steps: int,
    batch: int,
    u: Operand,  # (n, m)
    x: Operand,  # (rows, d); rows = steps * batch, or sum(batch_sizes)
    h0: Operand | None,  # (batch, n); None: zeros
    input_weight: Operand | None,  # (n, d)
    bias: Operand | None,  # (n,)
    phases: Operand | None,
    batch_sizes: NDArray[Any] | None,  # (steps,) int64, decreasing, batch_sizes[0] == batch
    nonlinearity: str,
    negative_slope: float,
    nonlinearity_bias: Operand | None,  # modReLU's b
    transpose: bool,
    reverse: bool,  # from the last step to the first; not with batch_sizes
    method: str,
    h: Operand,  # out (rows, n)
    tape: Operand | None,  # out (rows, rnn_tape_width), for rnn_backward, which needs it for OPLU and is faster with it
) -> None: ...
def rnn_backward(
    dtype: str,
    n: int,
    m: int,
    d: int,
    steps: int,
    batch: int,
    u: Operand,
    x: Operand,
    h0: Operand | None,
    input_weight: Operand | None,
    bias: Operand | None,
    phases: Operand | None,
    batch_sizes: NDArray[Any] | None,
    nonlinearity: str,
    negative_slope: float,
    nonlinearity_bias: Operand | None,
    transpose: bool,
    reverse: bool,
    method: str,
    h: Operand,
    tape: Operand | None,
    grad_h: Operand | None,  # (rows, n); None: zero
    grad_last: Operand | None,  # (batch, n), gradient of each sequence's last state; None: zero
    grad_u: Operand | None,  # from here on outputs; None: not wanted
    grad_x: Operand | None,  # (rows, d)
    grad_h0: Operand | None,  # (batch, n)
    grad_input_weight: Operand | None,
    grad_bias: Operand | None,
    grad_phases: Operand | None,
    grad_nonlinearity_bias: Operand | None,
) -> None: ...
def plain_rnn_tape_width(  # None: there is something to check or to lay out
    inputs: RnnInputs, options: RnnOptions
) -> int | None: ...
def rnn_forward_tensors(
    inputs: RnnInputs,
    options: RnnOptions,
    h: Tensor,  # out (.., rows, n)
    tape: Tensor | None,  # out (.., rows, rnn_tape_width)
    last: Tensor,  # out (.., batch, n), the state in which each sequence ends
    keep: bool,  # return what rnn_backward_tensors need not form again
) -> Kept | None: ...
def rnn_backward_tensors(
    inputs: RnnInputs,
    options: RnnOptions,
    h: Tensor,
    tape: Tensor | None,
    grad_h: Tensor | None,  # None: zero
    grad_last: Tensor | None,
    gradients: Sequence[Tensor | None],  # out, of the inputs but batch_sizes; None: not wanted
    kept: Kept | None,  # of the forward call with the same u
) -> None: ...
def delta_interval(key_width: int, value_width: int) -> int: ...  # steps from one kept state to the next
def delta_forward(
    dtype: str,  # float32 or float64
    operands: DeltaOperands,
    options: DeltaOptions,
    out: Operand,  # (tokens, HV, V)
    last: Operand | None,  # (N, HV, K, V)
    kept: Operand | None,  # (steps // interval, HV, K, V), for delta_backward
) -> None: ...
def delta_backward(
    dtype: str,
    operands: DeltaOperands,
    options: DeltaOptions,
    kept: Operand | None,  # None: found again
    grad_out: Operand | None,  # None: zero
    grad_last: Operand | None,
    gradients: DeltaOperands,  # out; None: not wanted
) -> None: ...
