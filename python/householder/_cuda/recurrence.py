"""Whole sequences: one kernel forward, one backward, and matrix products for everything outside the recurrence.

Written once for CuPy and torch. ``Sequence`` is validated; its arrays have the shapes of
:func:`householder.rnn`, and rows ``(rows, n)`` are all steps of all sequences, one step after the other.
"""

from collections.abc import Collection
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from types import ModuleType
from typing import NamedTuple, get_args

import numpy as np

from householder._base import notices
from householder._base.spec import COMPLEX, DTYPES, NONLINEARITIES, reflection_count
from householder._base.types import AnyArray, AnyFunction, Sequence, SequenceGradients
from householder._cuda import algebra, instances, kernels, trials, verdicts
from householder._cuda.algebra import Form, Sums
from householder._cuda.device import cupy
from householder._cuda.kernels import Device, LaunchPlan
from householder._cuda.library import KernelLibrary, library_of
from householder._cuda.packing import Packing


@dataclass(frozen=True, eq=False)
class Instance:
    """The kernel for a recurrence; ``n`` and ``m`` are real sizes, twice those of complex numbers.

    Instances are equal if they are the same object, so a cache finds them without a comparison of their fields.
    """

    device: Device
    dense: bool
    tile: instances.Tile | None
    dtype: str
    nonlinearity: str
    n: int
    m: int

    @cached_property
    def names(self) -> dict[instances.Direction, tuple[str, str]]:
        """The module and the name expression of each direction."""
        directions: tuple[instances.Direction, ...] = get_args(instances.Direction)
        if self.tile is None:
            return {d: ("fallback", instances.fallback_name(d, self.dtype, self.nonlinearity)) for d in directions}
        return {d: (self.tile.kernel, self.tile.name(d, self.dtype, self.nonlinearity)) for d in directions}

    @cached_property
    def is_slower_than_steps(self) -> bool:
        """Whether torch operations, one step after the other, are preferred."""
        return self.tile is None and instances.prefers_steps(self.n, self.m, self.dtype, dense=self.dense)

    @cached_property
    def trial_key(self) -> str:
        """The key of a trial's verdict, which covers both directions, and whether W is formed."""
        name = self.names["forward"][1]
        return f"{name}, W formed" if self.tile is None and self.dense else name

    def launch_config(self, batch: int) -> tuple[instances.Launch, int]:
        """Return the launch for this number of sequences, and the size of its scratch memory in numbers."""
        multiprocessors = self.device.multiprocessors
        if self.tile is not None:
            return self.tile.launch(batch, multiprocessors), 0
        return instances.fallback_launch(self.n, 0 if self.dense else self.m, self.dtype, batch, multiprocessors)


@lru_cache(kernels.PLANS)
def _plan(instance: Instance, direction: instances.Direction, steps: int, batch: int) -> tuple[LaunchPlan, int]:
    """Return the plan of a launch, and the size of its scratch memory in numbers."""
    config, numbers = instance.launch_config(batch)
    sizes = map(np.int32, (instance.n, instance.m, steps, batch))
    return LaunchPlan(instance.names[direction][1], config, tuple(sizes)), numbers


class SavedByKernels(NamedTuple):
    """Saved by a forward pass for its backward pass."""

    z: AnyArray = None
    """``P* h_{t-1}``, ``(rows, m)``, from kernels of low rank."""
    flags: AnyArray = None
    """Whether OPLU exchanged a pair, bytes ``(rows, n / 2)``."""
    form: Form | None = None
    """The factors of W."""
    instance: Instance | None = None
    """The kernel."""


@cache
def candidates(
    device: Device, n: int, m: int, dtype: str, nonlinearity: str, *, phases: bool = False, method: str = "auto"
) -> tuple[Instance, ...]:
    """Return the kernels for ``u (n, m)``, the best first. Phases need W, because no low-rank product contains them.

    A tile with clusters is followed by one without. The fallback, which serves every shape, ends the list.
    """
    if dtype in COMPLEX:
        n, m, dtype = 2 * n, 2 * m, DTYPES[dtype].real
        nonlinearity = instances.NEIGHBOURS if nonlinearity == "modrelu" else nonlinearity
    method = "dense" if phases else method
    dense, tile = instances.plan(n, m, dtype, device.capability, method=method)
    plans = [(dense, tile)]
    if tile is not None and tile.cluster > 1:
        without = instances.plan(n, m, dtype, instances.CLUSTER_CAPABILITY - 1, method=method)
        plans = [*(plans if kernels.takes_clusters(device.number) else ()), without]
    plans.append((instances.prefers_dense(n, m) if method == "auto" else method == "dense", None))
    return tuple(Instance(device, dense, tile, dtype, nonlinearity, n, m) for dense, tile in dict.fromkeys(plans))


def choose(kernels_in_order: Many[Instance], library: KernelLibrary, like: AnyArray, packed: bool) -> Instance:
    """Choose the first kernel that the device of ``like`` can use. Packed sequences have their own loop and trial.

    Raises
    ------
    UnusableError
        There is none.
    """

    def on_trial(instance: Instance) -> tuple[int, str, AnyFunction, Instance, KernelLibrary, AnyArray, bool]:
        key = f"{instance.trial_key}, packed" if packed else instance.trial_key
        return instance.device.number, key, _try, instance, library, like, packed

    *others, last = kernels_in_order
    for instance in others:
        if verdicts.usable(*on_trial(instance)):
            return instance
    verdicts.require(*on_trial(last))
    return last


def _try(instance: Instance, library: KernelLibrary, like: AnyArray, packed: bool) -> None:
    """Compare at least two sequences per block or cluster, and their gradients, with the core."""
    tile, dtype, nonlinearity = instance.tile, instance.dtype, instance.nonlinearity
    n, m = (50, 6) if tile is None else (tile.n - 2, 6 if instance.dense else tile.m - 2)
    one = replace(instance, device=instance.device._replace(multiprocessors=1), n=n, m=m)
    config = one.launch_config(1 << 30)[0]
    if nonlinearity == instances.NEIGHBOURS:  # the same kernels in complex numbers
        dtype = next(name for name in COMPLEX if DTYPES[name].real == dtype)
        n, m, nonlinearity = n // 2, m // 2, "modrelu"
    method = "dense" if instance.dense else "wy"
    case = trials.TrialSequence(n, m, 2 * config.grid // config.cluster + 1, dtype, nonlinearity, method, packed=packed)
    s, compute = case.sequence, DTYPES[dtype].compute
    parameters, states, real = (getattr(library.xp, name) for name in (compute, dtype, DTYPES[compute].real))
    dtypes = {"u": parameters, "x": states, "h0": states, "nonlinearity_bias": real}
    arrays = {
        name: library.from_host(getattr(s, name), like, kind)
        for name, kind in dtypes.items()
        if getattr(s, name) is not None
    }
    recurrence = KernelRun(s._replace(**arrays), trials.STEPS, case.batch, SavedByKernels(instance=one))
    saved = recurrence.room()
    h = recurrence.run_forward(saved)
    grad_h, grad_last = (library.from_host(a, like, states) for a in (case.grad_h, case.grad_last))
    names = [name for name in SequenceGradients._fields if name in arrays]
    gradients = recurrence.run_backward(h, saved, grad_h, grad_last, names)
    expected_h, expected = case.expected()
    on_device = [gradients[name].reshape(-1) for name in names]
    on_host = [getattr(expected, name).reshape(-1) for name in names]
    trials.compare(library, [h.reshape(-1), *on_device], [expected_h.reshape(-1), *on_host], dtype)


def warm_up(
    n: int,
    m: int,
    dtype: str = "float32",
    nonlinearity: str = "leaky_relu",
    *,
    phases: bool = False,
    method: str = "auto",
    packed: bool = False,
    device: int = 0,
) -> None:
    """Compile the kernels of a recurrence, forward and backward, before a CUDA graph is captured or a clock started.

    Parameters
    ----------
    n, m : int
        Shape of u.
    dtype : {"float32", "float64", "complex64", "complex128", "bfloat16", "float16"}
        The dtype of the states; ``u`` is float32 for half types.
    nonlinearity, method : str
        As in :func:`householder.rnn`.
    phases : bool
        Whether there will be phases.
    packed : bool
        Whether there will be sequences of different lengths.
    device : int
        Its number.

    Raises
    ------
    ImportError, RuntimeError
        There is no CuPy, or no device.
    """
    fitting = candidates(kernels.device_of(device), n, m, dtype, nonlinearity, phases=phases, method=method)
    with cupy().cuda.Device(device):
        like = cupy().empty(0)
        instance = choose(fitting, library_of(like), like, packed)
    config = instance.launch_config(1)[0]
    names = [(*kernel_and_name, config) for kernel_and_name in instance.names.values()]
    k = reflection_count(n, m, ends_in_sign=dtype not in COMPLEX)
    for kernel in get_args(instances.SquareKernel):
        of_squares = instances.square(kernel, n, k, 1, DTYPES[dtype].compute, instance.device.capability)
        names += [(kernel, *of_squares)] if of_squares else []
    of_packing = instances.Launch(1, instances.PACKING_THREADS, 0)
    names += [("packing", name, of_packing) for name in instances.PACKING_NAMES.values() if packed]
    with cupy().cuda.Device(device):
        for kernel, name, launch in names:
            kernels.get(device, kernel, name, launch)


class KernelRun:
    """A sequence on the device: the parts that both directions need, read from ``saved`` where it has them."""

    def __init__(self, sequence: Sequence, steps: int, batch: int, saved: SavedByKernels):
        self.sequence, self.steps, self.batch = sequence, steps, batch
        u = sequence.u
        self.library = library = library_of(u)
        sizes = sequence.batch_sizes
        self.rows = steps * batch if sizes is None else len(sequence.x)
        self.packing = None if sizes is None else Packing(library, sizes, u)
        self.offsets = None if self.packing is None else self.packing.offsets
        self.instance = self._instance() if saved.instance is None else saved.instance
        form = saved.form
        if form is None or (form.w is not None) != self.instance.dense:
            form = algebra.form(u, sequence.phases)
            form = form._replace(w=algebra.matrix(form)) if self.instance.dense else form
        self.form = form

    def _instance(self) -> Instance:
        s, library, mode = self.sequence, self.library, notices.kernel_mode()
        if mode == "off":
            raise verdicts.UnusableError(f"{notices.VARIABLE} is 'off'")
        device = kernels.device_of(library.device(s.u))
        properties = *s.u.shape, library.name(s.x.dtype), s.nonlinearity
        fitting = candidates(device, *properties, phases=s.phases is not None, method=s.method)
        if library.has_steps and mode != "require":
            fitting = tuple(instance for instance in fitting if not instance.is_slower_than_steps)
            if not fitting:
                raise verdicts.UnusableError("torch operations are faster")
        return choose(fitting, library, s.u, self.packing is not None)

    def launch(self, direction: instances.Direction, before: Many[AnyArray], after: Many[AnyArray]) -> None:
        """Launch with pointers to the arrays before and after the slope and the offsets; sizes and scratch follow."""
        instance, library, s = self.instance, self.library, self.sequence
        plan, numbers = _plan(instance, direction, self.steps, self.batch)
        pointers, slope = library.pointers, np.float64(s.negative_slope)
        arguments = (*pointers(*before), slope, *pointers(self.offsets, *after), *plan.sizes)
        if instance.tile is None:
            scratch = library.empty((numbers,), s.u, s.u.real.dtype) if numbers else None
            arguments += (library.pointer(scratch),)
        kernels.launch(instance.device.number, instance.names[direction][0], plan.name, plan.config, arguments)

    def matrices(self, adjoint: bool) -> tuple[AnyArray, AnyArray]:
        """Return ``P`` and ``Q`` of ``I - Q P*``, or W and None; of ``W*`` if adjoint. Complex ones have real form."""
        f, library = self.form, self.library
        if self.instance.dense:
            w = algebra.matrix(f)
            pair = [library.adjoint(w) if adjoint else w]
        else:
            pair = [f.v, f.a] if f.d is None else self._with_last_column()
            pair = pair[::-1] if adjoint else pair
        if library.is_complex(f.v):
            pair = [_real_form(a, library.xp) for a in pair]
        p, q = (*(library.contiguous(a) for a in pair), None)[:2]
        return p, q

    def _with_last_column(self) -> list[AnyArray]:
        """Return ``u_1`` as one more column: ``W_1 D = I - [A | (1 - u_1) e_n] [D V | e_n]*``."""
        f, xp = self.form, self.library.xp
        last = self.library.eye(f.v.shape[0], f.v)[:, -1:]
        d = f.d.T
        return [xp.concatenate([d * f.v, last], axis=-1), xp.concatenate([f.a, (1 - d) * last], axis=-1)]

    def room(self) -> SavedByKernels:
        """Allocate the arrays that the forward pass fills for the backward pass, and save what both need."""
        s, empty = self.sequence, self.library.empty
        n, m = s.u.shape
        flags = NONLINEARITIES[s.nonlinearity].has_flags
        return SavedByKernels(
            z=None if self.instance.dense else empty((self.rows, m), s.x),
            flags=empty((self.rows, n // 2), s.x, self.library.xp.uint8) if flags else None,
            form=self.form,
            instance=self.instance,
        )

    def run_forward(self, saved: SavedByKernels) -> AnyArray:
        """Return all states ``(rows, n)``."""
        s, library = self.sequence, self.library
        x = s.x.reshape(self.rows, s.x.shape[-1])
        driven = library.contiguous(library.linear(x, self._as_states(s.input_weight), self._as_states(s.bias)))
        h = library.empty((self.rows, s.u.shape[0]), x)
        z = None if self.instance.dense else saved.z
        before = *self.matrices(s.transpose), driven, s.h0, s.nonlinearity_bias
        self.launch("forward", before, (h, z, saved.flags))
        return h

    def run_backward(
        self, h: AnyArray, saved: SavedByKernels, grad_h: AnyArray, grad_last: AnyArray, names: Collection[str]
    ) -> dict[str, AnyArray]:
        """Return the gradients by name."""
        s, library = self.sequence, self.library
        n, m = s.u.shape
        h = h.reshape(self.rows, n)
        delta = library.empty((self.rows, n), h)
        q = None if self.instance.dense else library.empty((self.rows, m), h)
        grad_h0 = library.empty((self.batch, n), h) if "h0" in names else None
        b = s.nonlinearity_bias
        grad_b = None if b is None else library.empty((self.batch, len(b)), b)
        before = *self.matrices(not s.transpose), h, saved.flags, b
        self.launch("backward", before, (grad_h, grad_last, delta, q, grad_h0, grad_b))

        gradients = {"h0": grad_h0}
        if "u" in names or "phases" in names:
            total = self._sums(h, delta, None if self.instance.dense else saved.z, q)
            gradients["u"], gradients["phases"] = algebra.parameter_gradients(self.form, total, s.phases is not None)
        if "x" in names:
            grad_x = delta if s.input_weight is None else delta @ self._as_states(s.input_weight).conj()
            gradients["x"] = grad_x.reshape(s.x.shape)
        delta = library.cast(delta, s.u.dtype)
        if "input_weight" in names:
            gradients["input_weight"] = delta.T @ library.cast(s.x.reshape(self.rows, -1), s.u.dtype).conj()
        if "bias" in names:
            gradients["bias"] = delta.sum(axis=0)
        if "nonlinearity_bias" in names:
            assert grad_b is not None
            gradients["nonlinearity_bias"] = grad_b.sum(axis=0)
        return gradients

    def _as_states(self, a: AnyArray) -> AnyArray:
        """Convert a parameter, or None, to the type of the states, half types among them."""
        return None if a is None else self.library.cast(a, self.sequence.x.dtype)

    def _sums(self, h: AnyArray, delta: AnyArray, z: AnyArray, q: AnyArray) -> Sums:
        """Sum over all steps, in u's type; the first step's previous states are h0, the others' are rows of h.

        Transposed, ``<g, W* p> = <p, W g>``: p and g are exchanged, and with them z and q.
        """
        s, f = self.sequence, self.form
        before = h[: self.rows - self.batch] if self.packing is None else h[self.packing.previous()]
        pairs = [(before, slice(self.batch, self.rows))]
        if s.h0 is not None:
            pairs.append((s.h0, slice(self.batch)))
        k = f.v.shape[-1]
        cast, dtype = self.library.cast, f.v.dtype
        total: Sums | None = None
        for p, rows in pairs:
            p, step = cast(p, dtype), cast(delta[rows], dtype)
            z_rows, q_rows = (None if a is None else cast(a[rows, :k], dtype) for a in (z, q))
            part = algebra.sums(f, *((step, p, q_rows, z_rows) if s.transpose else (p, step, z_rows, q_rows)))
            total = part if total is None else total.plus(part)
        assert total is not None
        return total


def _real_form(a: AnyArray, xp: ModuleType) -> AnyArray:
    """Return each entry c as ``[[re c, -im c], [im c, re c]]``."""
    first, second = xp.stack([a.real, -a.imag], axis=-1), xp.stack([a.imag, a.real], axis=-1)
    return xp.stack([first, second], axis=-3).reshape(2 * a.shape[0], 2 * a.shape[1])


def forward(
    sequence: Sequence, steps: int, batch: int, saved: SavedByKernels | None = None
) -> tuple[AnyArray, KernelRun | None, SavedByKernels]:
    """Return all states, in x's shape except for the last axis, the run, and what it saved for the backward pass.

    Without ``saved``, whose arrays are filled, these are new. Kernels run from the first row to the last: with
    ``reverse`` they see inputs and states in the order of time.
    """
    library, shape = library_of(sequence.u), (*sequence.x.shape[:-1], sequence.u.shape[0])
    if not steps or not batch:
        return library.empty(shape, sequence.x), None, SavedByKernels()
    if sequence.reverse:
        sequence = sequence._replace(x=_flipped(sequence.x, library))
    recurrence = KernelRun(sequence, steps, batch, SavedByKernels())
    saved = recurrence.room() if saved is None else saved
    h = recurrence.run_forward(saved).reshape(shape)
    return _flipped(h, library) if sequence.reverse else h, recurrence, saved


def backward(
    sequence: Sequence,
    steps: int,
    batch: int,
    h: AnyArray,
    saved: SavedByKernels,
    grad_h: AnyArray,
    grad_last: AnyArray,
    names: Collection[str] = SequenceGradients._fields,
) -> SequenceGradients:
    """Return the gradients of the arguments in ``names`` that are not None, computing again what ``saved`` lacks."""
    library = library_of(sequence.u)
    arguments = {name: a for name in names if (a := getattr(sequence, name)) is not None}
    if not steps or not batch:
        none = {name: library.zeros(a.shape, a) for name, a in arguments.items()}
        if "h0" in none and grad_last is not None:
            none["h0"] += grad_last  # no step: the last state is h0
        return _NO_GRADIENTS._replace(**none)
    if sequence.reverse:
        x, h, grad_h = (_flipped(a, library) for a in (sequence.x, h, grad_h))
        sequence = sequence._replace(x=x)
    recurrence = KernelRun(sequence, steps, batch, saved)
    if NONLINEARITIES[sequence.nonlinearity].has_flags and saved.flags is None:
        saved = recurrence.room()
        recurrence.run_forward(saved)
    gradients = recurrence.run_backward(h, saved, grad_h, grad_last, arguments)
    if sequence.reverse:
        gradients["x"] = _flipped(gradients.get("x"), library)
    return _NO_GRADIENTS._replace(**gradients)


_NO_GRADIENTS = SequenceGradients._make([None] * len(SequenceGradients._fields))


def _flipped(a: AnyArray, library: KernelLibrary) -> AnyArray:
    return None if a is None else library.contiguous(library.xp.flip(a, axis=0))
