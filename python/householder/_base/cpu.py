"""The NumPy backend: checks the types of arrays, lays them out, and calls the compiled core once.

Operands are C-contiguous arrays of one dtype; outputs are allocated here.
"""

import numpy as np

from householder import _core
from householder._base import linear_map, spec, validate
from householder._base.types import WY, AnyArray, Argument, Array, NumpyDtype, Pull, Sequence, SequenceGradients

xp = np
NAMES = {np.dtype(name): name for name in spec.CORE}
DOUBLE = np.dtype(np.float64)
REAL = {dtype: np.dtype(spec.DTYPES[name].real) for dtype, name in NAMES.items()}


def array(name: str, value: Argument, integers: NumpyDtype = DOUBLE) -> Array:
    """Return ``value`` as the core needs it: C-contiguous, aligned, native byte order. NumPy converts lists.

    Integers and booleans become numbers of the dtype ``integers``, float16 becomes float32. Arrays of other libraries
    are read in place if they are in CPU memory.

    Raises
    ------
    TypeError
        No array, one that NumPy cannot read without a copy, or a dtype that is not one of the four.
    """
    if type(value) is np.ndarray and value.flags.carray and value.dtype in NAMES:
        return value
    validate.no_mask(name, value)
    linear_map.refuse(name, value)
    try:
        a = _shared(name, value) if hasattr(value, "__dlpack__") else np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} does not make an array: {error}") from error
    if a.dtype == object and not a.ndim and a is not value:
        raise TypeError(f"{name} is {validate.kind_of(value)}, expected an array")
    native = a.dtype if a.dtype.isnative else a.dtype.newbyteorder("=")
    if native.kind in "iub":
        native = integers
    elif native == np.float16:
        native = np.dtype(np.float32)
    if native not in NAMES:
        raise TypeError(f"{name} has dtype {a.dtype}, expected one of {', '.join(NAMES.values())}")
    return np.require(a, native, ("C", "A", "E"))


def _shared(name: str, value: Argument) -> Array:
    """Return a NumPy array that shares the memory of another library's array."""
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.from_dlpack(value)
    except Exception as error:  # of any kind, by the library
        kind = validate.kind_of(value)
        raise TypeError(
            f"{name} is {kind} that NumPy cannot read without a copy, expected a numpy.ndarray: {error}"
        ) from error


def dtype_of(value: Argument) -> NumpyDtype:
    """Return one of the four dtypes from anything that NumPy accepts as a dtype."""
    try:
        dtype: NumpyDtype = np.dtype(value)
    except TypeError:
        raise TypeError(f"dtype is {value!r}, expected one of {', '.join(NAMES.values())}") from None
    if dtype not in NAMES:
        raise TypeError(f"dtype is {dtype}, expected one of {', '.join(NAMES.values())}")
    return dtype


def operand(name: str, value: Argument, u: Array, *, real: bool = False, like: str = "u") -> Array:
    """Return an array of the dtype of u, or the real dtype of its precision; ``like`` names u."""
    expected = REAL[u.dtype] if real else u.dtype
    a = array(name, value, expected)
    if a.dtype != expected:
        raise TypeError(f"{name} has dtype {a.dtype} but {like} has dtype {u.dtype}: expected {name} of {expected}")
    return a


def forward(
    u: Array,
    h: Array,
    phases: Array | None,
    transpose: bool,
    method: str,
    tau: Array | None = None,
    form: str = "trapezoidal",
) -> Array:
    """Return ``W h`` or ``W* h`` for ``u (..., n, m)`` and ``h (..., r, n)``, a matrix for each leading index of u."""
    out = np.empty(h.shape, h.dtype)
    _core.forward(u, h, out, phases, transpose, method, False, form, tau)
    return out


def backward(
    u: Array,
    h: Array,
    grad_c: Array,
    phases: Array | None,
    transpose: bool,
    method: str,
    tau: Array | None = None,
    form: str = "trapezoidal",
) -> tuple[Array, Array, Array | None, Array | None]:
    """Return the gradients of u, h, phases and tau."""
    gradients = np.empty(u.shape, u.dtype), np.empty(h.shape, h.dtype), _like(phases), _like(tau)
    _core.backward(u, h, grad_c, gradients, phases, transpose, method, None, form, tau)
    return gradients


def forward_tape(u: Array, h: Array, phases: Array | None, transpose: bool) -> Array:
    """Return Algorithm 1's intermediate vectors ``(..., m + 1, n)`` for one matrix."""
    n, m = u.shape
    tape = np.empty((*h.shape[:-1], m + 1, n), h.dtype)
    _core.forward_tape(u, h, tape, phases, transpose)
    return tape


def backward_tape(
    u: Array, tape: Array, grad_c: Array, phases: Array | None, transpose: bool
) -> tuple[Array, Array, Array | None]:
    """Return the gradients of u, h and phases from the stored vectors."""
    gradients = np.empty(u.shape, u.dtype), np.empty(grad_c.shape, grad_c.dtype), _like(phases)
    _core.backward_tape(u, tape, grad_c, gradients, phases, transpose)
    return gradients


def matrix(u: Array, phases: Array | None, tau: Array | None = None, form: str = "trapezoidal") -> Array:
    """Return ``W (..., n, n)``."""
    out = np.empty((*u.shape[:-1], u.shape[-2]), u.dtype)
    _core.matrix(u, out, phases, False, form, tau)
    return out


def wy(u: Array) -> WY:
    """Return V, T and S."""
    *batch, n, m = u.shape
    k = m - (m == n)
    form = WY(*(np.empty((*batch, rows, k), u.dtype) for rows in (n, k, k)))
    for i in np.ndindex(*batch):
        _core.wy(u[i], form.v[i], form.t[i], form.s[i])
    return form


def factor(q: Array, m: int) -> tuple[Array, Array | None, float]:
    """Return ``U``, the phases of a complex q, and how far q is from their product."""
    n = len(q)
    u = np.empty((n, m), q.dtype)
    phases = np.empty(n, REAL[q.dtype]) if q.dtype.kind == "c" else None
    return u, phases, _core.factor(q, u, phases)


departure = _core.departure


def rnn(sequence: Sequence, steps: int, batch: int) -> Array:
    """Return all states, in the shape of x except for the last axis."""
    h = _states(sequence)
    _core.rnn_forward(*native_arguments(sequence, steps, batch), h, None, False)
    return h


def rnn_vjp(sequence: Sequence, steps: int, batch: int) -> tuple[Array, Pull]:
    """Return all states, and a function from their gradients to those of the array arguments that are not None."""
    arguments, h = native_arguments(sequence, steps, batch), _states(sequence)
    saved = _core.rnn_forward(*arguments, h, None, True)
    h.flags.writeable = False  # the gradients are computed from it

    def pull(grad_h: Array | None, grad_last: Array | None) -> SequenceGradients:
        if grad_h is not None and sequence.batch_sizes is None:
            grad_h = grad_h.reshape(steps, batch, grad_h.shape[-1])
        gradients = SequenceGradients._make(_like(getattr(sequence, name)) for name in SequenceGradients._fields)
        _core.rnn_backward(*arguments, h, grad_h, grad_last, gradients, saved)
        return gradients

    return h, pull


def _states(sequence: Sequence) -> Array:
    return np.empty((*sequence.x.shape[:-1], len(sequence.u)), sequence.u.dtype)


def native_arguments(
    sequence: Sequence, steps: int, batch: int
) -> tuple[tuple[AnyArray, ...], tuple[str | float | bool, ...]]:
    """Return the arrays, in the order of their gradients, with ``batch_sizes`` last, and the options."""
    if sequence.batch_sizes is None:
        sequence = sequence._replace(x=sequence.x.reshape(steps, batch, sequence.x.shape[-1]))
    inputs = *(getattr(sequence, name) for name in SequenceGradients._fields), sequence.batch_sizes
    names = "nonlinearity", "negative_slope", "transpose", "reverse", "form", "method"
    return inputs, tuple(getattr(sequence, name) for name in names)


def _like(a: Array | None) -> AnyArray:
    return None if a is None else np.empty(a.shape, a.dtype)
