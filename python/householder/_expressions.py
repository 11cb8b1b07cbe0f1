r"""The mathematics in the array API standard: every derivative exists, no native code runs.

Forward mode, second derivatives, devices without kernels and exported programs compute by it, and it documents what
the operators compute. Every function takes the array library first, and is differentiated by that library.

Leading axes ``*c`` are independent problems: ``u (*c, n, m)``, ``tau (*c, m)``.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from householder import _validate
from householder._norms import power_of_two, vanishes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from householder._library import Array, Library

_CHUNK = 64
"""Most steps of the delta rule that are taken together."""


def unit_columns(lib: Library, u: Array) -> tuple[Array, Array, Array, Array]:
    """Scale columns to norm one, in double precision where there is one, and round them.

    Return the unit columns; norms multiplied by powers of two, ``(..., 1, m)``; the powers; and which columns are zero,
    because their norm is zero or subnormal.
    """
    xp = lib.xp
    wide = lib.cast(u, lib.wide(u))
    size = xp.max(xp.abs(lib.constant(wide)), axis=-2, keepdims=True)
    power = power_of_two(xp, size)
    scaled = wide * power
    norm = xp.linalg.vector_norm(xp.where(size == 0, 1.0, scaled), axis=-2, keepdims=True)  # no derivative at 0
    gone = (size == 0) | vanishes(xp, norm, power, u.dtype)
    unit = xp.where(gone, 0.0, scaled / norm)
    return lib.cast(unit, u.dtype), norm, power, gone


def gram_matrix(lib: Library, v: Array, tau: Array | None = None) -> tuple[Array, Array]:
    """Return ``V* V`` and ``D``, which is ``tau``, or ``2 / |v|^2`` where there is none."""
    xp = lib.xp
    gram = lib.adjoint(v) @ v
    if tau is None:
        squares = xp.real(xp.linalg.diagonal(gram))
        tau = 2 / xp.where(squares == 0, 1.0, squares)
    return gram, lib.cast(tau, v.dtype)


class Factors(NamedTuple):
    r"""The factors of :math:`W = (I - V D (I + \mathrm{striu}(V^* V) D)^{-1} V^*) L`.

    Without ``tau``, V has unit columns, and ``D`` is computed from the rounded ones.
    """

    v: Array
    wide: Array
    """V in double precision, which the triangle has, too."""
    triangle: Array
    """``V* V D``, of which the part above the diagonal counts."""
    d: Array
    """Diagonal of D, ``(*c, k)``."""
    last: Array | None
    """Diagonal of L, ``(*c, 1, n)``: ones and ``u_1``; None for ``L = I``."""


def factors(lib: Library, u: Array, tau: Array | None, form: str) -> Factors:
    """Return the factors of W without phases."""
    (n, m), xp, last = u.shape[-2:], lib.xp, None
    if m == n and not lib.is_complex(u) and _validate.is_default(tau, form):
        u, last = u[..., :-1], last_row(lib, u)
    if form == "trapezoidal":
        u = xp.tril(u) if tau is None else xp.tril(u, k=-1) + lib.eye(n, u)[..., :m]
    v = unit_columns(lib, u)[0] if tau is None else u
    wide = lib.cast(v, lib.wide(v))
    gram, d = gram_matrix(lib, wide, tau)
    return Factors(v, wide, gram * d[..., None, :], d, last)


def last_row(lib: Library, u: Array) -> Array:
    """Return the diagonal that the last column of a square ``u`` stands for, ``(*c, 1, n)``."""
    xp = lib.xp
    return xp.concat([xp.ones_like(u[..., 1:, -1]), u[..., -1:, -1]], axis=-1)[..., None, :]


def _core(lib: Library, f: Factors, projections: Array, transpose: bool) -> Array:
    r"""Multiply by :math:`D (I + \mathrm{striu}(V^* V) D)^{-1}`, or by its adjoint."""
    d = f.d[..., None]
    if transpose:
        return lib.solve(lib.adjoint(f.triangle), lib.conj(d) * projections, upper=False)
    return d * lib.solve(f.triangle, projections, upper=True)


def apply(
    lib: Library, u: Array, h: Array, transpose: bool, tau: Array | None = None, form: str = "trapezoidal"
) -> Array:
    """Compute ``W h`` or ``W* h`` for ``h (*c, *r, n)``."""
    f, xp, lead, n = factors(lib, u, tau, form), lib.xp, u.ndim - 2, h.shape[-1]
    rows = xp.reshape(h, (*h.shape[:lead], prod(h.shape[lead:-1]), n))
    if f.last is not None and not transpose:
        rows = rows * f.last
    projections = lib.cast(xp.matrix_transpose(rows @ lib.conj(f.v)), f.d.dtype)
    turned = xp.matrix_transpose(_core(lib, f, projections, transpose))
    rows = rows - lib.cast(turned, f.v.dtype) @ xp.matrix_transpose(f.v)
    if f.last is not None and transpose:
        rows = rows * f.last
    return xp.reshape(rows, h.shape)


def matrix(lib: Library, u: Array, tau: Array | None = None, form: str = "trapezoidal") -> Array:
    """Form ``W`` itself, ``(*c, n, n)``, without phases; it is rounded once, at the end."""
    f = factors(lib, u, tau, form)
    w = lib.eye(u.shape[-2], f.wide) - f.wide @ _core(lib, f, lib.adjoint(f.wide), False)
    return lib.cast(w if f.last is None else w * f.last, u.dtype)


def turn(lib: Library, h: Array, phases: Array) -> Array:
    """Multiply the entries of ``h`` by ``exp(i phases)``."""
    return h * lib.complex(lib.xp.cos(phases), lib.xp.sin(phases))


def activate(lib: Library, a: Array, nonlinearity: str, negative_slope: float, bias: Array | None) -> Array:
    """Apply one of the named nonlinearities; those of one real number act on real and imaginary parts."""
    xp = lib.xp
    if nonlinearity == "identity":
        return a
    if nonlinearity == "modrelu":
        return modrelu(lib, a, bias)
    if nonlinearity == "real_modrelu":
        return real_modrelu(lib, a, bias)
    if lib.is_complex(a):
        return lib.complex(
            *(activate(lib, part, nonlinearity, negative_slope, None) for part in (xp.real(a), xp.imag(a)))
        )
    if nonlinearity == "tanh":
        return xp.tanh(a)
    if nonlinearity == "oplu":
        return oplu(lib, a)
    if nonlinearity == "relu":
        return xp.where(a <= 0, 0.0, a)
    if nonlinearity == "leaky_relu":
        return lib.leaky_relu(a, negative_slope)
    raise NotImplementedError(f"nonlinearity: no expression for {nonlinearity!r}")


def _halves(lib: Library, a: Array) -> tuple[Array, Array]:
    half = a.shape[-1] // 2
    first, second = lib.split(a, (half, half), -1)
    return first, second


def oplu(lib: Library, a: Array) -> Array:
    """Sort the pairs ``(a_i, a_{i+n/2})``: the greater first."""
    xp, (first, second) = lib.xp, _halves(lib, a)
    swapped = first < second  # maximum and minimum would share a tie's gradient between both
    return xp.concat([xp.where(swapped, second, first), xp.where(swapped, first, second)], axis=-1)


def modrelu(lib: Library, a: Array, bias: Array) -> Array:
    """Add ``bias`` to the moduli of ``a``, cut off at zero; real ``a`` holds ``[Re; Im]`` of half as many numbers."""
    xp, is_complex = lib.xp, lib.is_complex(a)
    re, im = (xp.real(a), xp.imag(a)) if is_complex else _halves(lib, a)
    # The direction is that of a / size, whose squares neither overflow nor vanish.
    size = xp.maximum(xp.abs(lib.constant(re)), xp.abs(lib.constant(im)))
    zero = size == 0
    size = xp.where(zero, 1.0, size)
    x, y = xp.where(zero, 1.0, re / size), im / size
    length = xp.sqrt(xp.square(x) + xp.square(y))
    dead = zero | (size * lib.constant(length) + lib.constant(bias) <= 0)  # NaN is neither
    re, im = (xp.where(dead, 0.0, part + bias * (unit / length)) for part, unit in ((re, x), (im, y)))
    return lib.complex(re, im) if is_complex else xp.concat([re, im], axis=-1)


def real_modrelu(lib: Library, a: Array, bias: Array) -> Array:
    """Add ``bias`` to the magnitudes of real numbers, cut off at zero."""
    xp = lib.xp
    size = xp.abs(a) + bias
    return lib.sign(a) * xp.where(size <= 0, 0.0, size)


def rnn(
    lib: Library,
    u: Array,
    x: Array,
    h0: Array | None,
    input_weight: Array | None,
    bias: Array | None,
    phases: Array | None,
    nonlinearity_bias: Array | None,
    tau: Array | None,
    batch_sizes: Array | None,
    nonlinearity: str,
    negative_slope: float,
    transpose: bool,
    reverse: bool,
    form: str,
) -> tuple[Array, Array]:
    """Run the recurrence step by step with ``W`` formed once: all states and each sequence's last one.

    ``x`` is ``(*c, T, B, d)`` or, with ``batch_sizes``, ``(*c, rows, d)``. Every other array has the same leading axes.
    """
    w, xp, kind, many = matrix(lib, u, tau, form), lib.xp, x.dtype, u.ndim - 2
    w = w if phases is None else turn(lib, w, phases[..., None, :])
    w = lib.adjoint(w) if transpose else w
    x = lib.cast(x, w.dtype)
    if input_weight is not None:
        rows = xp.reshape(x, (*x.shape[:many], prod(x.shape[many:-1]), x.shape[-1]))
        x = xp.reshape(rows @ xp.matrix_transpose(input_weight), (*x.shape[:-1], w.shape[-1]))
    if bias is not None:
        x = x + (bias[..., None, None, :] if batch_sizes is None else bias[..., None, :])
    state = lib.zeros((*x.shape[:-3], *x.shape[-2:]), x) if h0 is None else lib.cast(h0, w.dtype)
    by, phi_bias = xp.matrix_transpose(w), None if nonlinearity_bias is None else nonlinearity_bias[..., None, :]

    def step(state: Array, a: Array) -> tuple[Array, Array]:
        state = activate(lib, state @ by + a, nonlinearity, negative_slope, phi_bias)
        return state, state

    if batch_sizes is not None:
        state, h = lib.scan_packed(step, state, x, batch_sizes)
    elif x.shape[-3]:
        state, h = lib.scan(step, state, (x,), -3, reverse)
    else:
        h = xp.zeros_like(x)
    return lib.cast(h, kind), lib.cast(state, kind)


def delta_rule(
    lib: Library,
    q: Array,
    k: Array,
    v: Array,
    beta: Array | None,
    g: Array | None,
    initial_state: Array | None,
    cu_seqlens: Array | None,
    scale: float,
    reflections: int,
    normalize: bool,
    skip: Array | None = None,
) -> tuple[Array, Array]:
    """Run the delta rule chunk by chunk: outputs and final states, in the shapes of the operator.

    Without ``beta`` nothing is erased: it is linear attention. With ``skip``, too: ``beta`` multiplies the values, and
    the outputs get the values times ``skip``.
    """
    xp = lib.xp
    if skip is not None:
        written = v if beta is None else beta[..., None] * v
        given = initial_state, cu_seqlens, scale, reflections, normalize
        o, states = delta_rule(lib, q, k, written, None, g, *given)
        return o + skip[:, None] * v, states
    if normalize:
        q, k = (x / xp.sqrt(xp.sum(xp.square(x), axis=-1, keepdims=True) + 1e-6) for x in (q, k))
    group = v.shape[2] // q.shape[2]
    q, k = (xp.repeat(xp.permute_dims(x, (0, 2, 1, 3)), group, axis=1) for x in (scale * q, k))
    v = xp.permute_dims(v, (0, 2, 1, 3))
    betas = () if beta is None else (xp.permute_dims(beta, (0, 2, 1))[..., None],)
    g = lib.zeros(q.shape[:-1], q) if g is None else xp.permute_dims(g, (0, 2, 1, *range(3, g.ndim)))
    g = g if g.ndim == 4 else g[..., None]
    if initial_state is None:
        count = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        initial_state = lib.zeros((count, *q.shape[1:2], k.shape[-1], v.shape[-1]), q)
    if reflections > 1:  # a gate at the first step of a token, a query at the last
        g = xp.reshape(_padded(lib, g[..., None, :], 0, reflections - 1), (*v.shape[:-1], g.shape[-1]))
        q = xp.reshape(_padded(lib, q[..., None, :], reflections - 1, 0), k.shape)
    if cu_seqlens is None:
        o, states = _sequence(lib, (q, k, v, g, *betas), initial_state)
    else:
        found = []
        for i, (begin, end) in enumerate(pairwise(cu_seqlens.tolist())):
            steps = [x[:, :, begin * reflections : end * reflections, :] for x in (q, k, v, g, *betas)]
            found.append(_sequence(lib, steps, initial_state[i : i + 1, ...]))
        outputs, each = zip(*found, strict=True)
        o, states = xp.concat(outputs, axis=2), xp.concat(each, axis=0)
    return xp.permute_dims(o[:, :, reflections - 1 :: reflections, :], (0, 2, 1, 3)), states


def causal_convolution(lib: Library, x: Array, weight: Array, bias: Array | None, silu: bool) -> Array:
    """Convolve each channel of ``(B, T, C)`` along time, in the dtype of ``weight (C, taps)``."""
    (batch, tokens, channels), taps = x.shape, weight.shape[1]
    wide = lib.cast(x, weight.dtype)
    padded = lib.xp.concat([lib.zeros((batch, taps - 1, channels), wide), wide], axis=1)
    a = sum(weight[:, j] * padded[:, j : j + tokens, :] for j in range(taps))
    a = a if bias is None else a + bias
    return lib.cast(a * _sigmoid(lib, a) if silu else a, x.dtype)


def gated_norm(lib: Library, x: Array, z: Array, weight: Array, epsilon: float, silu: bool) -> Array:
    """Normalise rows, times weights and the logistic function of gates, or their SiLU, in the dtype of ``weight``."""
    wide, gate = lib.cast(x, weight.dtype), lib.cast(z, weight.dtype)
    mean = lib.xp.mean(lib.xp.square(wide), axis=-1, keepdims=True)
    phi = gate * _sigmoid(lib, gate) if silu else _sigmoid(lib, gate)
    return lib.cast(weight * (wide / lib.xp.sqrt(mean + epsilon)) * phi, x.dtype)


def _sigmoid(lib: Library, a: Array) -> Array:
    """Return the logistic function, by tanh, whose derivatives do not overflow."""
    return 0.5 * (1 + lib.xp.tanh(0.5 * a))


def _sequence(lib: Library, operands: Sequence[Array], state: Array) -> tuple[Array, Array]:
    """Run q, k, v, g and perhaps beta of ``(B, heads, steps, ..)``: whole chunks, then what is left."""
    v, steps = operands[2], operands[2].shape[2]
    whole = steps - steps % _CHUNK
    outputs = [v[:, :, :0, :]]
    if whole:
        chunks = [
            lib.xp.reshape(x[:, :, :whole, :], (*x.shape[:2], whole // _CHUNK, _CHUNK, x.shape[-1])) for x in operands
        ]
        state, o = lib.scan(lambda state, *parts: _chunk(lib, state, *parts), state, chunks, 2, False)
        outputs.append(lib.xp.reshape(o, (*v.shape[:2], whole, v.shape[-1])))
    if whole < steps:
        # Steps beyond the end have zero keys and no gate: they change nothing.
        beyond = (1 << (steps - whole - 1).bit_length()) - (steps - whole)
        state, o = _chunk(lib, state, *(_padded(lib, x[:, :, whole:, :], 0, beyond) for x in operands))
        outputs.append(o[:, :, : steps - whole, :])
    return lib.xp.concat(outputs, axis=2), state


def _chunk(
    lib: Library, state: Array, q: Array, k: Array, v: Array, g: Array, beta: Array | None = None
) -> tuple[Array, Array]:
    """Run ``2^i`` steps, pairing the halves of blocks of 2, 4, .. steps; return the state and the outputs.

    Decays from one half to the other are sums of gates, never differences. No product has terms of later steps, which
    a zero would not remove if they were infinity or NaN; neither have derivatives of any order.
    """
    xp, size, pairs, steps = lib.xp, 1, [], q.shape[-2]

    def halves(x: Array, size: int) -> tuple[Array, Array]:
        """Cut rows into blocks of ``2 size``; return the first and the second halves of all blocks."""
        blocks = *q.shape[:-2], steps // (2 * size), 2, size, x.shape[-1]
        first, second = lib.unstack(xp.reshape(x, blocks), -3)
        return first, second

    since, after = g[..., None, :], xp.zeros_like(g)[..., None, :]  # sums of gates to each step, and after it
    system = xp.zeros_like(since[..., :1])  # ones on the diagonal go without saying
    while size < steps:
        k1, k2 = halves(k, size)
        (since1, since2), (after1, after2) = halves(since, size), halves(after, size)
        earlier, decay = xp.matrix_transpose(k1 * xp.exp(after1)), xp.exp(since2)
        pairs.append((halves(q, size)[1] * decay) @ earlier)
        if beta is not None:
            of_keys = (halves(beta, size)[1] * decay * k2) @ earlier
            first, second = halves(system, size)
            above, below = xp.concat([first, xp.zeros_like(first)], axis=-1), xp.concat([of_keys, second], axis=-1)
            system = xp.concat([above, below], axis=-2)
        after = xp.concat([after1 + since2[..., -1:, :], after2], axis=-2)
        since = xp.concat([since1, since1[..., -1:, :] + since2], axis=-2)
        size *= 2
    from_start, to_end = xp.exp(since[..., 0, :, :]), xp.exp(after[..., 0, :, :])
    d = v
    if beta is not None:
        d = lib.solve(system[..., 0, :, :], beta * (v - (k * from_start) @ state), upper=False)
    o = (q * from_start) @ state + xp.sum(q * k, axis=-1, keepdims=True) * d
    for i, of_queries in enumerate(pairs):
        o = o + xp.reshape(_padded(lib, of_queries @ halves(d, 2**i)[0], 2**i, 0), o.shape)
    return xp.matrix_transpose(from_start[..., -1:, :]) * state + xp.matrix_transpose(k * to_end) @ d, o


def _padded(lib: Library, x: Array, before: int, after: int) -> Array:
    """Put rows of zeros before or after those of ``x``."""
    if not before and not after:
        return x
    zeros = lib.zeros((*x.shape[:-2], before + after, x.shape[-1]), x)
    return lib.xp.concat([zeros, x] if before else [x, zeros], axis=-2)
