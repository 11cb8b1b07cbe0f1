r"""Products of reflections: unit columns, W and its adjoint applied to vectors, W as a matrix, phases."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from householder._base import validate
from householder._base.norms import power_of_two, vanishes

if TYPE_CHECKING:
    from householder._base.types import AnyArray
    from householder._mathematics.library import Library


def unit_columns(lib: Library, u: AnyArray) -> tuple[AnyArray, AnyArray, AnyArray, AnyArray]:
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


def gram_matrix(lib: Library, v: AnyArray, tau: AnyArray | None = None) -> tuple[AnyArray, AnyArray]:
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

    v: AnyArray
    wide: AnyArray
    """V in double precision, which the triangle has, too."""
    triangle: AnyArray
    """``V* V D``, of which the part above the diagonal counts."""
    d: AnyArray
    """Diagonal of D, ``(*c, k)``."""
    last: AnyArray | None
    """Diagonal of L, ``(*c, 1, n)``: ones and ``u_1``; None for ``L = I``."""


def factors(lib: Library, u: AnyArray, tau: AnyArray | None, form: str) -> Factors:
    """Return the factors of W without phases."""
    (n, m), xp, last = u.shape[-2:], lib.xp, None
    if m == n and not lib.is_complex(u) and validate.is_default(tau, form):
        u, last = u[..., :-1], last_row(lib, u)
    if form == "trapezoidal":
        u = xp.tril(u) if tau is None else xp.tril(u, k=-1) + lib.eye(n, u)[..., :m]
    v = unit_columns(lib, u)[0] if tau is None else u
    wide = lib.cast(v, lib.wide(v))
    gram, d = gram_matrix(lib, wide, tau)
    return Factors(v, wide, gram * d[..., None, :], d, last)


def last_row(lib: Library, u: AnyArray) -> AnyArray:
    """Return the diagonal that the last column of a square ``u`` stands for, ``(*c, 1, n)``."""
    xp = lib.xp
    return xp.concat([xp.ones_like(u[..., 1:, -1]), u[..., -1:, -1]], axis=-1)[..., None, :]


def _core(lib: Library, f: Factors, projections: AnyArray, transpose: bool) -> AnyArray:
    r"""Multiply by :math:`D (I + \mathrm{striu}(V^* V) D)^{-1}`, or by its adjoint."""
    d = f.d[..., None]
    if transpose:
        return lib.solve(lib.adjoint(f.triangle), lib.conj(d) * projections, upper=False)
    return d * lib.solve(f.triangle, projections, upper=True)


def apply(
    lib: Library, u: AnyArray, h: AnyArray, transpose: bool, tau: AnyArray | None = None, form: str = "trapezoidal"
) -> AnyArray:
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


def matrix(lib: Library, u: AnyArray, tau: AnyArray | None = None, form: str = "trapezoidal") -> AnyArray:
    """Form ``W`` itself, ``(*c, n, n)``, without phases; it is rounded once, at the end."""
    f = factors(lib, u, tau, form)
    w = lib.eye(u.shape[-2], f.wide) - f.wide @ _core(lib, f, lib.adjoint(f.wide), False)
    return lib.cast(w if f.last is None else w * f.last, u.dtype)


def turn(lib: Library, h: AnyArray, phases: AnyArray) -> AnyArray:
    """Multiply the entries of ``h`` by ``exp(i phases)``."""
    return h * lib.complex(lib.xp.cos(phases), lib.xp.sin(phases))
