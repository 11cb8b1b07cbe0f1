"""Checks of shapes, names and numbers; each message has the argument, its value and the expected one."""

import operator
import re
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import accumulate, pairwise
from numbers import Real

import numpy as np

from householder._base.spec import FORMS, NONLINEARITIES, of_delta_rule, of_phases, of_tau
from householder._base.types import AnyArray, AnyDtype, Argument, Array, Backend


def reflections(
    u: AnyArray, columns: Argument = "trapezoidal", has_tau: bool = False, h: AnyArray = None
) -> tuple[int, int]:
    """Return ``n, m`` of ``u (..., n, m)``, an array or a tensor, with columns of this form.

    ``h``, the vectors of the call, may look like reflections instead; the message then says so.
    """
    one_of("columns", columns, FORMS)
    shape = tuple(u.shape)
    n, m = shape[-2:] if len(shape) >= 2 else (0, 0)
    most = "" if columns == "full" else " <= n"
    if m < 1 or n < 1 or (most and m > n):
        advice = "; Reflections(u, columns='full') take any number" if m > n > 0 else ""
        raise ValueError(f"u has shape {shape}, expected (..., n, m) with 1 <= m{most}{advice}{_are_swapped(u, h)}")
    if m == n and most and not has_tau and _is_complex(u.dtype):
        raise ValueError(f"complex u has shape {shape}, expected m <= n - 1; phases (n,) supply the rest of U(n)")
    return n, m


def _is_complex(dtype: AnyDtype) -> bool:
    """Return whether a dtype of any library is complex; NumPy's text of one takes longer than a small call."""
    return dtype.kind == "c" if isinstance(dtype, np.dtype) else "complex" in str(dtype)


def one_matrix(
    u: Array, function: str, columns: Argument = "trapezoidal", has_tau: bool = False, h: AnyArray = None
) -> tuple[int, int]:
    """Return ``n, m`` of ``u (n, m)``."""
    single(u, function)
    return reflections(u, columns, has_tau, h)


def single(u: AnyArray, function: str) -> None:
    """Expect reflections ``u (n, m)`` of one matrix, not ``(..., n, m)``."""
    if len(u.shape) != 2:
        raise ValueError(f"u has shape {tuple(u.shape)}, but {function} takes one matrix: expected (n, m)")


def vectors(name: str, a: AnyArray, n: int, u: AnyArray = None) -> None:
    """Expect a last axis of n, the size of ``u (..., n, m)``."""
    shape = tuple(a.shape)
    if not shape or shape[-1] != n:
        raise ValueError(f"{name} has shape {shape}, expected (..., {n}) to match n = {n} of u{_are_swapped(u, a)}")


def _are_swapped(u: AnyArray, h: AnyArray) -> str:
    """Return a question if ``h`` has the shape of reflections for vectors ``u``."""
    if u is None or h is None or len(h.shape) < 2 or not u.shape:
        return ""
    n, m = h.shape[-2:]
    return f"; h has shape {tuple(h.shape)}: are u and h swapped?" if 1 <= m <= n == u.shape[-1] else ""


def shape(name: str, a: Array, expected: tuple[int, ...]) -> None:
    """Expect exactly this shape."""
    if a.shape != expected:
        raise ValueError(f"{name} has shape {a.shape}, expected {expected}")


def optional(
    name: str, value: Argument, u: Array, expected: tuple[int, ...], backend: Backend, *, real: bool = False
) -> Array | None:
    """Expect None or an array of this shape."""
    if value is None:
        return None
    a: Array = backend.operand(name, value, u, real=real)
    shape(name, a, expected)
    return a


def tau(value: Argument, u: Array, columns: str, phases: Argument, backend: Backend) -> Array | None:
    """Expect None, or ``tau (..., m)`` for ``u (..., n, m)`` and no phases; full columns and tau need NumPy."""
    if value is None and columns == "trapezoidal":
        return None
    if backend.xp is not np:
        raise ValueError("full columns and tau need arrays on the CPU: move u there, or use torch")
    not_both(phases, value)
    return optional("tau", value, u, of_tau(u.shape), backend)


def not_both(phases: Argument, tau: Argument) -> None:
    """Expect phases or tau, or neither."""
    if phases is not None and tau is not None:
        raise ValueError("phases and tau are both given, but tau has its own phases: leave one of them out")


def takes_phases(dtype: AnyDtype) -> None:
    """Expect the dtype of a complex u."""
    if "complex" not in str(dtype):
        raise ValueError(f"phases are for complex u, but u has dtype {dtype}; a real u has u_1 when m == n")


def phases(value: Argument, u: Array, n: int, backend: Backend) -> Array | None:
    """Expect None, or ``theta (n,)`` with a complex u."""
    if value is None:
        return None
    takes_phases(u.dtype)
    return optional("phases", value, u, (n,), backend, real=True)


def matrix_phases(value: Argument, u: Array, n: int, backend: Backend) -> Array | None:
    """Expect None, or ``theta (n,)`` or a row for each of the matrices ``u (..., n, m)``."""
    if value is None or u.dtype.kind != "c":
        return phases(value, u, n, backend)
    a: Array = backend.operand("phases", value, u, real=True)
    shape("phases", a, of_phases(u.shape[:-2], n, a.ndim))
    return a


def all_of_columns(
    u: Array, columns: Argument, of_tau: Argument, of_phases: Argument, backend: Backend, h: AnyArray = None
) -> tuple[int, Array | None, Array | None]:
    """Return n, tau and phases of ``u (..., n, m)`` with columns of this form."""
    n, _ = reflections(u, columns, of_tau is not None, h)
    theta = None
    if of_phases is not None:
        not_both(of_phases, of_tau)
        theta = matrix_phases(of_phases, u, n, backend)
    return n, tau(of_tau, u, columns, theta, backend), theta


def kind_of(value: Argument, known: Collection[str] = ("builtins",)) -> str:
    """Return the type of a value as messages say it: "None", "a list", "a numpy.ndarray".

    The types of the packages ``known`` go without the package: "an LSTM".
    """
    if value is None:
        return "None"
    kind = type(value)
    root = kind.__module__.partition(".")[0]
    name = kind.__qualname__ if root in known else f"{root}.{kind.__qualname__}"
    article = "an" if re.match("[AEIOaeio]|[FHLMNRSX][A-Z]", name) else "a"
    return f"{article} {name}"


def no_mask(name: str, value: Argument) -> None:
    """Expect no masked array, nor a list that contains one: NumPy would drop the mask."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a numpy.MaskedArray, expected a numpy.ndarray: fill or select its entries first")
    if isinstance(value, (list, tuple)):
        for kind in set(map(type, value)):
            if issubclass(kind, np.ma.MaskedArray):
                raise TypeError(f"{name} contains a numpy.MaskedArray: fill or select its entries first")
            if issubclass(kind, (list, tuple)):
                for entry in value:
                    no_mask(name, entry)


def is_default(tau: Argument, form: str) -> bool:
    """Return whether columns are those that layers have: trapezoidal, without ``tau``."""
    return tau is None and form == "trapezoidal"


def one_of(name: str, value: Argument, known: Collection[str]) -> str:
    """Expect a known name."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, known))}")
    return value


def flag(name: str, value: Argument) -> bool:
    """Expect True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r}, expected True or False")
    return bool(value)


def _integers(name: str, value: Argument, expected: str) -> Array:
    """Return a list of integers, which may be empty, as an array."""
    no_mask(name, value)
    try:
        integers = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} is {value!r}, expected {expected}") from error
    if integers.size and integers.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {integers.dtype}, expected integers")
    return integers


def batch_sizes(batch_sizes: Argument) -> Array:
    """Return the numbers of sequences in each step of packed sequences."""
    sizes = _integers("batch_sizes", batch_sizes, "one axis of integers")
    if sizes.ndim != 1 or np.any(sizes < 1) or np.any(sizes[1:] > sizes[:-1]):
        raise ValueError(f"batch_sizes is {batch_sizes!r}, expected one axis of positive integers that never increase")
    if sizes.size and sizes[0] > np.iinfo(np.int64).max:
        raise ValueError(f"batch_sizes is {batch_sizes!r}, expected numbers of at most 64 bits with a sign")
    return np.ascontiguousarray(sizes, np.int64)


def direction(reverse: Argument, batch_sizes: Argument) -> bool:
    """Expect a flag, which must be False for sequences of different lengths."""
    backwards = flag("reverse", reverse)
    if backwards and batch_sizes is not None:
        raise ValueError("reverse is for sequences of one length, but batch_sizes is given: leave one of them out")
    return backwards


def number(name: str, value: Argument) -> float:
    """Expect a real number; a boolean in its place is a mistake."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r}, expected a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is {value!r}, expected a finite number") from None


def slope(value: Argument) -> float:
    """Expect a finite number that is not negative."""
    factor = number("negative_slope", value)
    if not 0 <= factor < float("inf"):
        raise ValueError(f"negative_slope is {value!r}, expected a finite number >= 0")
    return factor


def integer(name: str, value: Argument, least: int, most: int | None = None) -> int:
    """Expect an integer in a range."""
    k = _index(name, value)
    if k < least or (most is not None and k > most):
        raise ValueError(
            f"{name} is {k}, expected at least {least}" + (f" and at most {most}" if most is not None else "")
        )
    return k


def _index(name: str, value: Argument) -> int:
    try:
        if isinstance(value, (bool, np.bool_, np.ma.MaskedArray)):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, expected an integer") from None


def seed(value: Argument, generator: str) -> int:
    """Expect an integer of at least 0, in the place of None or a generator."""
    try:
        return integer("rng", value, 0)
    except TypeError:
        raise TypeError(f"rng is {value!r}, expected None, an integer or a {generator}") from None


def delta_sizes(
    q: tuple[int, ...],
    needed: Mapping[str, tuple[int, ...]],
    g: tuple[int, ...] | None,
    reflections: Argument,
    of: str = "q",
) -> tuple[int, int, int, int, int]:
    """Return ``H, HV, K, V`` and the steps of a token, from the shapes of the delta rule's operands.

    ``needed`` has the shapes of k and v, and, for the delta rule, that of beta. ``of`` is what messages call the shape
    of q.
    """
    v = needed["v"]
    reflections = integer("num_householder", reflections, 1)
    if len(q) != 4 or 0 in q[2:]:
        raise ValueError(f"q has shape {tuple(q)}, expected (B, T, H, K) with H and K at least 1")
    if len(v) != 4 or v[2] == 0 or v[2] % q[2] or v[3] == 0:
        raise ValueError(
            f"v has shape {tuple(v)}, expected (B, T, HV, V) with HV a multiple of H = {q[2]} and V at least 1"
        )
    operands = of_delta_rule(q, v, reflections)
    for name, shape in needed.items():
        if tuple(shape) not in operands[name]:
            also = f" and num_householder = {reflections}" if reflections > 1 else ""
            raise ValueError(f"{name} has shape {tuple(shape)}, expected {operands[name][0]} for {of} {tuple(q)}{also}")
    if g is not None and tuple(g) not in operands["g"]:
        by_head, by_channel = operands["g"]
        raise ValueError(f"g has shape {tuple(g)}, expected {by_head}, one per head, or {by_channel}, one per channel")
    return q[2], v[2], q[3], v[3], reflections


def delta_offsets(q: tuple[int, ...], cu_seqlens: Argument) -> list[int]:
    """Return where the sequences begin and end, counted in tokens of all rows."""
    batch, tokens = q[:2]
    if cu_seqlens is None:
        return list(range(0, batch * tokens + 1, tokens)) if tokens else [0] * (batch + 1)
    offsets = _integers("cu_seqlens", cu_seqlens, "one axis of N + 1 integers")
    if offsets.ndim != 1 or not offsets.size:
        raise ValueError(f"cu_seqlens is {cu_seqlens!r}, expected one axis of N + 1 integers")
    one_row(q)
    listed: list[int] = offsets.tolist()
    ends_of_sequences(listed, tokens)
    return listed


def ends_of_sequences(cu_seqlens: list[int], tokens: int) -> None:
    """Expect where sequences begin and end that have so many tokens in one row."""
    never_decrease = all(map(operator.le, cu_seqlens, cu_seqlens[1:]))
    if cu_seqlens[0] != 0 or cu_seqlens[-1] != tokens or not never_decrease:
        are_lengths = min(cu_seqlens) >= 0 and sum(cu_seqlens) == tokens
        ends = [0, *accumulate(cu_seqlens)]
        raise ValueError(
            f"cu_seqlens is {cu_seqlens}, expected numbers that begin with 0, never decrease and end with T = {tokens}"
            + (f"; these are lengths, whose sequences end at {ends}" if are_lengths else "")
        )


def states_at(value: Argument, tokens: int) -> list[int]:
    """Expect increasing numbers of tokens."""
    positions = _indices("states_at", value)
    is_increasing = all(first < second for first, second in pairwise(positions))
    if not positions or positions[0] < 0 or positions[-1] > tokens or not is_increasing:
        raise ValueError(f"states_at is {positions}, expected increasing numbers of tokens from 0 to T = {tokens}")
    return positions


def accepted(value: Argument, count: int, tokens: int) -> list[int]:
    """Expect a number of tokens for each sequence."""
    numbers = _indices("accepted", value)
    if len(numbers) != count or any(number < 0 or number > tokens for number in numbers):
        expected = f"a number of tokens from 0 to T = {tokens} for each of the B = {count} sequences"
        raise ValueError(f"accepted is {numbers}, expected {expected}")
    return numbers


def _indices(name: str, value: Argument) -> list[int]:
    """Expect integers one after the other: a sequence, or an array or tensor of one axis."""
    no_mask(name, value)
    entries = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(entries, (Mapping, AbstractSet)) or not isinstance(entries, Iterable):
        raise TypeError(f"{name} is {value!r}, expected a sequence of integers")
    return [_index(name, entry) for entry in entries]


def one_row(q: tuple[int, ...]) -> None:
    """Expect packed sequences in one row."""
    if q[0] != 1:
        raise ValueError(f"q has shape {tuple(q)}, but with cu_seqlens sequences are packed in one row: expected B = 1")


def scale(value: Argument, keys: int) -> float:
    """Expect a number, or None for ``keys**-0.5``."""
    return keys**-0.5 if value is None else number("scale", value)


def moduli(nonlinearity: str, n: int, is_complex: bool) -> int:
    """Expect a state that the nonlinearity acts on; return the number of its moduli."""
    phi = NONLINEARITIES[nonlinearity]
    if is_complex and phi.is_real:
        advice = ": use 'modrelu'" if phi.has_bias else ""
        raise ValueError(f"nonlinearity {nonlinearity!r} acts on real numbers, but the state is complex{advice}")
    if not phi.acts_on(n, is_complex):
        raise ValueError(f"nonlinearity {nonlinearity!r} acts on pairs (i, i + n/2), but n = {n} is odd")
    return phi.moduli(n, is_complex)


def bias_length(nonlinearity: str, bias: Argument, n: int, is_complex: bool) -> int:
    """Expect a state that the nonlinearity acts on, and a bias for a modReLU only; return the length of the bias."""
    length = moduli(nonlinearity, n, is_complex)
    has_bias = NONLINEARITIES[nonlinearity].has_bias
    if has_bias and bias is None:
        raise ValueError(f"nonlinearity {nonlinearity!r} needs a nonlinearity_bias of shape ({length},)")
    if bias is not None and not has_bias:
        raise ValueError(
            f"nonlinearity_bias is given with nonlinearity {nonlinearity!r}, but only a modReLU takes one: leave it out"
        )
    return length
