"""The CuPy backend: the functions of :mod:`householder._base.cpu`, with arrays on a device.

Factorisation runs on the CPU, because it is sequential and happens once.
"""

from types import ModuleType

from householder._base import cpu, validate
from householder._base.cpu import NAMES, REAL
from householder._base.types import WY, Argument, Array, Pull, Sequence, SequenceGradients
from householder._cuda import algebra, application, device, recurrence
from householder._cuda.library import library_of

STATES = ("x", "h0", "grad_h", "grad_last")
"""Arguments of a sequence that may be float16 when u is float32."""


class Arrays:
    """A backend on the arrays of a library with NumPy's names; ``xp`` is that library."""

    def __init__(self, xp: ModuleType):
        self.xp = xp

    def array(self, name: str, value: Argument) -> Array:
        """Return ``value``, laid out as kernels need it.

        Raises
        ------
        TypeError
            An array of another library, or a dtype that is not one of the four.
        """
        if not isinstance(value, self.xp.ndarray):
            expected = f"a {self.xp.__name__}.ndarray like the other arguments"
            raise TypeError(f"{name} is {validate.kind_of(value)}, expected {expected}")
        if value.dtype not in NAMES and not (name in STATES and value.dtype == "float16"):
            raise TypeError(f"{name} has dtype {value.dtype}, expected one of {', '.join(NAMES.values())}")
        a: Array = library_of(value).contiguous(value)
        return a

    def operand(self, name: str, value: Argument, u: Array, *, real: bool = False) -> Array:
        """Return an array on u's device, of its dtype or real dtype; states may be float16 if u is float32."""
        a = self.array(name, value)
        expected = REAL[u.dtype] if real else u.dtype
        if a.dtype != expected and not (a.dtype == "float16" and u.dtype == "float32"):
            raise TypeError(f"{name} has dtype {a.dtype} but u has dtype {u.dtype}: expected {name} of {expected}")
        device = library_of(u).device
        if device(a) != device(u):
            raise TypeError(f"{name} is on device {device(a)} but u is on device {device(u)}")
        return a

    def forward(self, u: Array, h: Array, phases: Array | None, transpose: bool, method: str) -> Array:
        """Return ``W h`` or ``W* h``."""
        with library_of(u).current(u):
            u, rows = application.canonical(u, h)
            c: Array = application.forward(u, rows, phases, transpose, method)[0]
            return c.reshape(h.shape)

    def backward(
        self, u: Array, h: Array, grad_c: Array, phases: Array | None, transpose: bool, method: str
    ) -> tuple[Array, Array, Array | None]:
        """Return the gradients of u, h and phases."""
        with library_of(u).current(u):
            canonical, rows, grads = application.canonical(u, h, grad_c)
            grad_u, grad_h, grad_phases = application.backward(canonical, rows, grads, phases, transpose, method)
            return grad_u.reshape(u.shape), grad_h.reshape(h.shape), grad_phases

    def forward_tape(self, u: Array, h: Array, phases: Array | None, transpose: bool) -> Array:
        """Return Algorithm 1's intermediate vectors ``(..., m + 1, n)`` for one matrix."""
        with library_of(u).current(u):
            states = algebra.states(algebra.form(u, phases, True), h.reshape(-1, len(u)), transpose)
            tape: Array = self.xp.stack(states[::-1], axis=1)
            return tape.reshape(*h.shape[:-1], *tape.shape[1:])

    def backward_tape(
        self, u: Array, tape: Array, grad_c: Array, phases: Array | None, transpose: bool
    ) -> tuple[Array, Array, Array | None]:
        """Return the gradients of u, h and phases from the stored vectors, of which only the last is needed."""
        h = self.xp.ascontiguousarray(tape[..., -1, :])
        return self.backward(u, h, grad_c, phases, transpose, "auto")

    def matrix(self, u: Array, phases: Array | None) -> Array:
        """Return ``W (..., n, n)``."""
        with library_of(u).current(u):
            w: Array = algebra.matrix(algebra.form(u, phases))
            return w

    def wy(self, u: Array) -> WY:
        """Return V, T and S."""
        with library_of(u).current(u):
            f = algebra.form(u, with_t=True)
            return WY(f.v, *(self.xp.asarray(a, u.dtype) for a in (f.t, f.s)))

    def factor(self, q: Array, m: int) -> tuple[Array, Array | None, float]:
        """Return ``U``, the phases of a complex q, and how far q is from their product."""
        with library_of(q).current(q):
            u, phases, remainder = cpu.factor(library_of(q).to_host(q), m)
            return self.xp.asarray(u), None if phases is None else self.xp.asarray(phases), remainder

    def departure(self, q: Array) -> float:
        """Return ``max |q* q - I|``."""
        return cpu.departure(library_of(q).to_host(q))

    def rnn(self, sequence: Sequence, steps: int, batch: int) -> Array:
        """Return all states, in the shape of x except for the last axis."""
        _of_one_type(x=sequence.x, h0=sequence.h0)
        with library_of(sequence.u).current(sequence.u):
            h: Array = recurrence.forward(sequence, steps, batch, recurrence.SavedByKernels())[0]
            return h

    def rnn_vjp(self, sequence: Sequence, steps: int, batch: int) -> tuple[Array, Pull]:
        """Return all states, and a function from their gradients to those of the array arguments that are not None."""
        _of_one_type(x=sequence.x, h0=sequence.h0)
        library = library_of(sequence.u)
        with library.current(sequence.u):
            h, _, saved = recurrence.forward(sequence, steps, batch)

        def pull(grad_h: Array | None, grad_last: Array | None) -> SequenceGradients:
            _of_one_type(h=h, grad_h=grad_h, grad_last=grad_last)
            with library.current(sequence.u):
                return recurrence.backward(sequence, steps, batch, h, saved, grad_h, grad_last)

        return h, pull


def cupy_arrays() -> Arrays:
    """Return the backend of CuPy arrays, if there are a CuPy and a device."""
    return Arrays(device.cupy())


def _of_one_type(**arrays: Array | None) -> None:
    (first, a), *others = arrays.items()
    assert a is not None
    for name, b in others:
        if b is not None and b.dtype != a.dtype:
            raise TypeError(f"{name} has dtype {b.dtype} but {first} has dtype {a.dtype}")
