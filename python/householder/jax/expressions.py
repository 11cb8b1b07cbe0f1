r"""The mathematics in ``jax.numpy``: every derivative exists, on every device.

Arrays have a leading axis of independent problems: ``u (c, n, m)``, ``h (c, rows, n)``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from householder import _norms


def unit_columns(u: Array) -> Array:
    """Scale the columns of the lower-trapezoidal ``u`` to norm one; a vanishing column becomes exactly zero."""
    u = jnp.tril(u)
    size = lax.stop_gradient(jnp.abs(u).max(-2, keepdims=True))
    power = _norms.power_of_two(jnp, size)
    scaled = u * power
    squares = (jnp.real(scaled) ** 2 + jnp.imag(scaled) ** 2).sum(-2, keepdims=True)
    norm = jnp.sqrt(jnp.where(size == 0, 1.0, squares))  # 1 instead of 0, because sqrt has no derivative at 0
    gone = _norms.vanishes(jnp, norm, power) | (size == 0)
    return jnp.where(gone, 0.0, scaled / norm)


def apply(u: Array, h: Array, transpose: bool) -> Array:
    r"""Compute ``W h`` by :math:`W = I - V T^{-1} V^*`, :math:`T = \mathrm{striu}(V^* V) + I / 2`, unit columns V."""
    n, m = u.shape[-2:]
    last = None
    if m == n and not jnp.iscomplexobj(u):
        last = jnp.ones_like(u[:, :, -1]).at[:, -1].set(u[:, -1, -1])[:, None, :]
        u = u[..., :-1]
    with jax.default_matmul_precision("highest"):  # W stays orthogonal
        v = unit_columns(u)
        t = jnp.triu(adjoint(v) @ v, 1) + 0.5 * jnp.eye(v.shape[-1], dtype=v.dtype)
        if last is not None and not transpose:
            h = h * last
        projections = jnp.swapaxes(h @ jnp.conj(v), -1, -2)
        t = adjoint(t) if transpose else t
        solved = lax.linalg.triangular_solve(t, projections, left_side=True, lower=transpose)
        h = h - jnp.swapaxes(v @ solved, -1, -2)
    return h * last if last is not None and transpose else h


def adjoint(a: Array) -> Array:
    """Transpose and conjugate matrices."""
    return jnp.conj(jnp.swapaxes(a, -1, -2))


def matrix(u: Array) -> Array:
    """Form ``W (c, n, n)``."""
    count, n, _ = u.shape
    eye = jnp.broadcast_to(jnp.eye(n, dtype=u.dtype), (count, n, n))
    return jnp.swapaxes(apply(u, eye, False), -1, -2)


def turn(h: Array, phases: Array) -> Array:
    """Multiply the entries of ``h`` by ``exp(i phases)``."""
    return h * lax.complex(jnp.cos(phases), jnp.sin(phases))


def activate(a: Array, nonlinearity: str, negative_slope: float, nonlinearity_bias: Array | None) -> Array:
    """Apply a nonlinearity by name; those of one real number act separately on real and imaginary parts."""
    if nonlinearity == "identity":
        return a
    if nonlinearity in ("modrelu", "real_modrelu"):
        assert nonlinearity_bias is not None
        function = modrelu if nonlinearity == "modrelu" else real_modrelu
        return function(a, nonlinearity_bias)
    if jnp.iscomplexobj(a):
        return lax.complex(*(activate(x, nonlinearity, negative_slope, None) for x in (jnp.real(a), jnp.imag(a))))
    if nonlinearity == "tanh":
        return jnp.tanh(a)
    if nonlinearity == "oplu":
        return oplu(a)
    slope = 0.0 if nonlinearity == "relu" else negative_slope
    return jnp.where(a > 0, a, slope * a)


def oplu(a: Array) -> Array:
    """Sort the pairs ``(a_i, a_{i+n/2})``: the greater first."""
    first, second = jnp.split(a, 2, -1)
    swapped = first < second  # maximum and minimum would share a tie's gradient between both
    return jnp.concatenate([jnp.where(swapped, second, first), jnp.where(swapped, first, second)], -1)


def modrelu(a: Array, bias: Array) -> Array:
    """Add ``bias`` to the moduli of ``a``, cut off at zero; real ``a`` holds ``[Re; Im]`` of half as many numbers."""
    re, im = (jnp.real(a), jnp.imag(a)) if jnp.iscomplexobj(a) else jnp.split(a, 2, -1)
    # The direction is that of a / size, whose squares neither overflow nor vanish.
    size = lax.stop_gradient(jnp.maximum(jnp.abs(re), jnp.abs(im)))
    zero = size == 0
    size = jnp.where(zero, 1.0, size)
    x, y = jnp.where(zero, 1.0, re / size), im / size
    length = jnp.sqrt(x**2 + y**2)
    dead = zero | (lax.stop_gradient(size * length + bias) <= 0)  # False for NaN, which passes through
    re, im = (jnp.where(dead, 0.0, part + bias * (unit / length)) for part, unit in ((re, x), (im, y)))
    return lax.complex(re, im) if jnp.iscomplexobj(a) else jnp.concatenate([re, im], -1)


def real_modrelu(a: Array, bias: Array) -> Array:
    """Add ``bias`` to the magnitudes of real numbers, cut off at zero."""
    return jnp.sign(a) * jnp.maximum(jnp.abs(a) + bias, 0.0)


def rnn(
    u: Array,
    x: Array,
    h0: Array | None,
    input_weight: Array | None,
    bias: Array | None,
    phases: Array | None,
    nonlinearity_bias: Array | None,
    nonlinearity: str,
    negative_slope: float,
    transpose: bool,
    reverse: bool,
) -> tuple[Array, Array]:
    """Run the recurrence with ``W`` formed once: all states ``(c, T, B, n)`` and the last ones ``(c, B, n)``."""
    (count, n, _), batch = u.shape, x.shape[2]
    w = matrix(u)
    w = w if phases is None else turn(w, phases[:, None, :])
    by = jnp.conj(w) if transpose else jnp.swapaxes(w, -1, -2)
    x = x if input_weight is None else jnp.einsum("ctbd,cnd->ctbn", x, input_weight)
    x = x if bias is None else x + bias[:, None, None, :]
    moduli = None if nonlinearity_bias is None else nonlinearity_bias[:, None, :]

    def step(h: Array, a: Array) -> tuple[Array, Array]:
        with jax.default_matmul_precision("highest"):
            h = activate(h @ by + a, nonlinearity, negative_slope, moduli)
        return h, h

    first = jnp.zeros((count, batch, n), x.dtype) if h0 is None else h0
    last, h = lax.scan(step, first, jnp.swapaxes(x, 0, 1), reverse=reverse)
    return jnp.swapaxes(h, 0, 1), last
