"""Recurrences for the kernels to run: random problems, what float64 reflections make of them, and the launches."""

from typing import Any, NamedTuple

import numpy as np

from householder import reference
from householder._base.spec import DTYPES, NONLINEARITIES
from householder._cuda import instances
from householder._cuda.instances import Tile
from householder.reference import sequence

SCHEDULES = (0, 1, 2, 3)
"""Forward, in reverse, block by block, random."""

TOLERANCE = {
    "float32": 3e-6,
    "complex64": 3e-6,
    "float64": 3e-14,
    "complex128": 3e-14,
    "float16": 2e-3,
    "bfloat16": 2e-2,
}
"""Largest error, relative to the largest entry: a few roundings of the arrays' type at each of the few steps.

modReLU's is ten times as large: its derivative takes the direction ``h / |h|`` of states close to zero.
"""


class Case(NamedTuple):
    """A recurrence and the kernel for it; ``tile`` None: the fallback. ``dtype`` may be complex."""

    tile: Tile | None
    n: int
    m: int
    dtype: str = "float32"
    nonlinearity: str = "tanh"
    batch_sizes: tuple[int, ...] = (3, 3, 2, 1, 1)
    packed: bool = True
    dense: bool = False
    scratch: bool = False  # fallback: shared memory too small
    sparse: bool = False  # leave out every argument that may be left out

    @property
    def is_complex(self) -> bool:
        return self.dtype.startswith("complex")

    @property
    def stored(self) -> str:
        """Type of the real arrays."""
        return DTYPES[self.dtype].real

    @property
    def code(self) -> str:
        """The kernels' name of the nonlinearity."""
        return instances.NEIGHBOURS if self.is_complex and self.nonlinearity == "modrelu" else self.nonlinearity

    def name(self, direction: instances.Direction) -> str:
        if self.tile is None:
            return instances.fallback_name(direction, self.stored, self.code)
        return self.tile.name(direction, self.stored, self.code)

    @property
    def names(self) -> list[str]:
        return [self.name("forward"), self.name("backward")]

    def __str__(self) -> str:
        kernel = "fallback" if self.tile is None else f"{self.tile.kernel}-{self.tile.n}x{self.tile.m}"
        options = [word for word in ("dense", "scratch", "sparse") if getattr(self, word)]
        return "-".join([kernel, f"{self.n}x{self.m}", self.dtype, self.nonlinearity, *options])


class Outputs(NamedTuple):
    """Everything that the two kernels of a case write."""

    h: Any
    z: Any
    delta: Any
    q: Any
    grad_h0: Any
    grad_phi_bias: Any


class Problem:
    """Random inputs in the case's types, and the same in double precision."""

    def __init__(self, case: Case):
        self.case = case
        self.rng = np.random.default_rng([case.n, case.m])
        n, m, sizes = case.n, case.m, case.batch_sizes
        rows, batch = sum(sizes), sizes[0]
        self.u = np.tril(self.numbers((n, m)))
        if m == n:
            self.u[-1, -1] = -0.5
        self.x, self.h0, self.grad_h, self.grad_last = (
            self.rounded(self.numbers(shape)) for shape in ((rows, n), (batch, n), (rows, n), (batch, n))
        )
        self.phi_bias = None
        phi = NONLINEARITIES[case.nonlinearity]
        if phi.has_bias:
            self.phi_bias = (
                self.rng.uniform(-0.5, 0.1, phi.moduli(n, case.is_complex)).astype(np.float32).astype(np.float64)
            )
        if case.sparse:
            self.h0, self.grad_h = np.zeros_like(self.h0), np.zeros_like(self.grad_h)

    def numbers(self, shape: tuple[int, ...]) -> Any:
        real = self.rng.standard_normal(shape)
        return real + 1j * self.rng.standard_normal(shape) if self.case.is_complex else real

    def rounded(self, a: Any) -> Any:
        """To the precision of the arrays, still in double."""
        return widen(store(a, self.case.stored), self.case.stored).view(a.dtype)

    def factors(self) -> tuple[Any, Any]:
        """``P`` and ``Q`` of ``W = I - Q P*``, with a column for u_1 if there is one."""
        v, _, s = reference.wy(self.u)
        if self.case.m < self.case.n:
            return v, v @ s
        last = np.eye(self.case.n)[:, -1:]
        scaled = np.where(last, self.u[-1, -1], 1) * v
        return np.hstack([scaled, last]), np.hstack([v @ s, (1 - self.u[-1, -1]) * last])

    def expected(self) -> Outputs:
        case, sizes = self.case, self.case.batch_sizes
        phi = sequence.ReferenceNonlinearity(case.nonlinearity, 0.1, self.phi_bias)
        h = sequence.rnn_forward(self.u, self.x, self.h0, sizes, phi)
        grads = sequence.rnn_backward(self.u, self.x, self.h0, h, self.grad_h, self.grad_last, sizes, phi)
        starts = np.cumsum([0, *sizes])
        before = np.concatenate(
            [self.h0 if t == 0 else h[starts[t - 1] : starts[t - 1] + size] for t, size in enumerate(sizes)]
        )
        p, q = self.factors()
        return Outputs(h, before @ p.conj(), grads.x, grads.x @ q.conj(), grads.h0, grads.nonlinearity_bias)

    def run(self, library: Any, schedule: int) -> Outputs:
        """Both kernels, the second on what the first has left."""
        case = self.case
        library.set_schedule(schedule)
        sizes = np.array(case.batch_sizes)
        rows, batch = int(sizes.sum()), int(sizes[0])
        offsets = np.concatenate([[0], np.cumsum(sizes)]) if case.packed else None
        arithmetic = np.float64 if case.stored == "float64" else np.float32
        scale = 2 if case.is_complex else 1
        n, columns = case.n * scale, 0 if case.dense else case.m * scale
        launch, scratch_size = self.launch(n, columns, batch)
        scratch = [] if case.tile else [np.full(scratch_size, np.nan, arithmetic) if scratch_size else None]
        sizes_of_call = [np.int32(k) for k in (n, columns, len(sizes), batch)]
        phi_bias = None if self.phi_bias is None else self.phi_bias.astype(arithmetic)
        forward, backward = self.matrices(arithmetic)

        def output(*shape: int, dtype: Any = case.stored) -> Any:
            return poisoned(shape, dtype)

        h, delta = output(rows, n), output(rows, n)
        z, q = (output(rows, columns) if columns and not case.sparse else None for _ in range(2))
        grad_h0 = None if case.sparse else output(batch, n)
        pairs = n // 2
        grad_phi_bias = None if phi_bias is None else output(batch, len(phi_bias), dtype=np.dtype(arithmetic).name)
        flags = np.full((rows, pairs), 255, np.uint8) if NONLINEARITIES[case.nonlinearity].has_flags else None
        x, h0, grad_h, grad_last = (
            np.ascontiguousarray(store(a, case.stored)) for a in (self.x, self.h0, self.grad_h, self.grad_last)
        )
        if case.sparse:
            h0 = grad_h = None
        slope = np.float64(0.1)
        arguments = [*forward, x, h0, phi_bias, slope, offsets, h, z, flags, *sizes_of_call, *scratch]
        library.launch(case.name("forward"), launch, arguments)
        arguments = [*backward, h, flags, phi_bias, slope, offsets, grad_h, grad_last, delta, q, grad_h0, grad_phi_bias]
        library.launch(case.name("backward"), launch, [*arguments, *sizes_of_call, *scratch])
        return Outputs(h, z, delta, q, grad_h0, grad_phi_bias)

    def launch(self, n: int, m: int, batch: int) -> tuple[instances.Launch, int]:
        """Fewer blocks than sequences, so that each takes several."""
        if self.case.tile is not None:
            return self.case.tile.launch(batch - 1, 1000), 0
        launch, _ = instances.fallback_launch(n, m, self.case.stored, batch - 1, 1000)
        if self.case.scratch:
            numbers = launch.grid * (2 * n + m + launch.block)
            return launch._replace(shared_bytes=0), numbers
        return launch, 0

    def matrices(self, arithmetic: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """``P`` and ``Q`` of the two directions."""
        if self.case.dense:
            w = reference.matrix(self.u)
            return (self.real(w, arithmetic), None), (self.real(w.conj().T, arithmetic), None)
        p, q = (self.real(a, arithmetic) for a in self.factors())
        return (p, q), (q, p)

    def real(self, a: Any, arithmetic: Any) -> Any:
        """A complex matrix as a real one that acts on interleaved parts."""
        if self.case.is_complex:
            blocks = np.array([[a.real, -a.imag], [a.imag, a.real]])
            a = blocks.transpose(2, 0, 3, 1).reshape(2 * a.shape[0], 2 * a.shape[1])
        return np.ascontiguousarray(a, arithmetic)

    def errors(self, got: Outputs, expected: Outputs) -> dict[str, float]:
        """Relative errors of what was written, infinite for NaN."""
        errors = {}
        for name, a, b in zip(Outputs._fields, got, expected, strict=True):
            if a is None:
                continue
            if name == "grad_phi_bias":
                value = a.astype(np.float64).sum(axis=0)
            else:
                value = widen(a, self.case.stored).view(b.dtype)
            error = np.abs(value - b).max() / np.abs(b).max()
            errors[name] = float(error) if np.isfinite(error) else np.inf
        return errors


def check(case: Case, library: Any, schedules: tuple[int, ...] = SCHEDULES) -> str:
    """Run the case under every schedule; a description of what is wrong, empty if nothing is."""
    problem = Problem(case)
    expected = problem.expected()
    results = [problem.run(library, schedule) for schedule in schedules]
    errors = problem.errors(results[0], expected)
    tolerance = TOLERANCE[case.dtype] * (10 if case.nonlinearity == "modrelu" else 1)
    wrong = {name: error for name, error in errors.items() if not error <= tolerance}
    if wrong:
        return f"{case}: {wrong}"
    for result in results[1:]:
        for name, a, b in zip(Outputs._fields, results[0], result, strict=True):
            if a is not None and a.tobytes() != b.tobytes():
                return f"{case}: {name} depends on the order of the threads"
    return ""


def poisoned(shape: tuple[int, ...], dtype: str) -> Any:
    """An array of NaN."""
    if dtype == "bfloat16":
        return np.full(shape, 0xFFFF, np.uint16)
    return np.full(shape, np.nan, dtype)


def store(a: Any, dtype: str) -> Any:
    """An array of doubles, complex ones as pairs, in the type of the kernels' arrays; bfloat16 as its bits."""
    a = np.ascontiguousarray(a).view(np.float64)
    if dtype != "bfloat16":
        return a.astype(dtype)
    bits = a.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def widen(a: Any, dtype: str) -> Any:
    """Back to doubles."""
    if dtype == "bfloat16":
        a = (a.astype(np.uint32) << 16).view(np.float32)
    return a.astype(np.float64)
