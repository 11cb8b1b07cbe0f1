"""Compact WY in matrix products, written once for NumPy, CuPy and torch: ``W = (I - V S V*) D``.

Shapes: one matrix ``u (n, m)`` with rows ``(r, n)``, or many, ``u (c, n, m)`` with rows ``(c, r, n)``. Nothing here
waits for a device or reads a number back. The formulas are derived in ``docs/derivation.md``; the names are those of
:mod:`householder.reference`.
"""

from typing import NamedTuple

from householder._base.spec import reflection_count
from householder._base.types import AnyArray
from householder._cuda import factors
from householder._cuda.library import KernelLibrary, library_of
from householder._mathematics import reflections


class Form(NamedTuple):
    """The factors of W that every use of ``u`` needs."""

    library: KernelLibrary
    v: AnyArray
    """Unit columns ``(..., n, k)``; a column that stands for the identity is zero."""
    t: AnyArray
    """``T = striu(V* V) + diag(V* V) / 2`` in double precision, or None where nobody asked for it."""
    s: AnyArray
    """``S = T^-1``, ``(..., k, k)``, in double precision like T."""
    a: AnyArray
    """``A = V S``, in u's precision."""
    norm: AnyArray
    """Norms of u's columns, ``(..., 1, k)``, infinite where v is zero."""
    d: AnyArray
    """Diagonal of D, ``(..., 1, n)``, or None for ``D = I``."""
    w: AnyArray = None
    """W, if it has been formed."""


class Sums(NamedTuple):
    """Sums over vectors p and gradients g of ``W p``, from which the gradients of parameters follow."""

    c1: AnyArray
    """``sum g z*``, ``z = V* D p``; ``(..., n, k)``."""
    c2: AnyArray
    """``sum p w*``, ``w = S* V* g``; ``(..., n, k)``."""
    overlap: AnyArray
    """``sum g_i conj(p_i)``, ``(..., n)``, or None where ``D = I``."""

    def plus(self, other: "Sums") -> "Sums":
        """Add."""
        overlap = None if self.overlap is None else self.overlap + other.overlap
        return Sums(self.c1 + other.c1, self.c2 + other.c2, overlap)


def form(u: AnyArray, phases: AnyArray = None, with_t: bool = False) -> Form:
    """Normalise columns and form S, and T if asked.

    Norms, the Gram matrix and S have double precision. V is the rounded one, so ``T + T* = V* V`` holds for the same V
    that is applied.
    """
    library = library_of(u)
    xp = library.xp
    n, m = u.shape[-2:]
    k = reflection_count(n, m, ends_in_sign=not library.is_complex(u))
    if (by_kernel := factors.form(library, u, k, with_t)) is not None:
        v, t, s, a, norm = by_kernel
        return Form(library, v, t, s, a, norm, diagonal(library, u, phases))
    v, length, power, gone = reflections.unit_columns(library, xp.tril(u)[..., :k])
    norm = library.cast(xp.where(gone, float("inf"), length / power), v.real.dtype)

    wide_v = library.cast(v, library.wide(v))
    gram, d = reflections.gram_matrix(library, wide_v)
    t = xp.triu(gram, k=1) + library.eye(k, gram) / d[..., None] if with_t else None
    s = d[..., None] * library.inverse(gram * d[..., None, :])
    return Form(library, v, t, s, library.cast(wide_v @ s, u.dtype), norm, diagonal(library, u, phases))


def diagonal(library: KernelLibrary, u: AnyArray, phases: AnyArray) -> AnyArray:
    """Return D, ``(..., 1, n)``, or None for ``D = I``."""
    n, m = u.shape[-2:]
    if phases is not None:
        return library.cast(library.xp.exp(1j * phases), u.dtype)[None]
    return None if m < n or library.is_complex(u) else reflections.last_row(library, u)


def apply(f: Form, rows: AnyArray, transpose: bool) -> AnyArray:
    """Return ``W h`` or ``W* h`` for each row h."""
    xp = f.library.xp
    if transpose:
        c = f.library.minus_product(rows, rows @ f.a.conj(), xp.swapaxes(f.v, -1, -2))
        return c if f.d is None else c * f.d.conj()
    rows = rows if f.d is None else rows * f.d
    return f.library.minus_product(rows, rows @ f.v.conj(), xp.swapaxes(f.a, -1, -2))


def matrix(f: Form) -> AnyArray:
    """Form W in double precision, then round it."""
    if f.w is not None:
        return f.w
    wide_v = f.library.cast(f.v, f.s.dtype)
    w = f.library.eye(f.v.shape[-2], wide_v) - wide_v @ f.s @ f.library.adjoint(wide_v)
    w = f.library.cast(w, f.v.dtype)
    return w if f.d is None else w * f.d


def sums(f: Form, p: AnyArray, g: AnyArray, z: AnyArray = None, w: AnyArray = None) -> Sums:
    """Sum over the rows of p and g by the cheaper of two methods.

    One takes four products with n x k matrices, two of which give ``z = V* D p`` and
    ``w = S* V* g`` unless the kernels of a sequence saved these. The other forms ``G = sum g p*`` (n x n).
    """
    xp = f.library.xp
    n, k = f.v.shape[-2:]
    g_transposed = xp.swapaxes(g, -1, -2)
    turned = f.v if f.d is None else f.v * xp.swapaxes(f.d, -1, -2).conj()  # D* V
    if z is None and w is None and 4 * k > n and p.shape[-2] > n:
        outer = g_transposed @ p.conj()
        overlap = None if f.d is None else xp.diagonal(outer, 0, -2, -1)
        return Sums(outer @ turned, f.library.adjoint(outer) @ f.a, overlap)
    z = p @ turned.conj() if z is None else z
    w = g @ f.a.conj() if w is None else w
    overlap = None if f.d is None else xp.sum(g * p.conj(), axis=-2)
    return Sums(g_transposed @ z.conj(), xp.swapaxes(p, -1, -2) @ w.conj(), overlap)


def parameter_gradients(f: Form, total: Sums, with_phases: bool) -> tuple[AnyArray, AnyArray]:
    """Turn sums into the gradients of u and the phases (Theorem 2).

    With ``C2 = sum (D p) w*``, ``L = (S V* C2) o B'`` and ``B = striu(J) + I / 2``:
    ``dL/dV = V (L + L*) - C1 S* - C2``, and with ``q = W_1* g``: ``dL/du_1 = sum q_n p_n``,
    ``dL/dtheta_i = -Im sum conj(q_i) d_i p_i``.
    """
    xp = f.library.xp
    s = f.library.cast(f.s, f.v.dtype)
    c2 = total.c2 if f.d is None else xp.swapaxes(f.d, -1, -2) * total.c2
    grad_u = factors.gradient(f.library, f.v, s, total.c1, c2, f.norm)
    if grad_u is None:
        lower = xp.tril(s @ (f.library.adjoint(f.v) @ c2))
        half = xp.diagonal(lower, 0, -2, -1)[..., None] * f.library.eye(s.shape[-1], s) / 2
        lower = lower - half
        grad_u = f.v @ (lower + f.library.adjoint(lower)) - total.c1 @ f.library.adjoint(s) - c2
        grad_u = xp.tril(grad_u) / f.norm
    if f.d is None:
        return grad_u, None
    q_p = total.overlap - xp.sum(f.v * total.c2.conj(), axis=-1)  # sum q_i conj(p_i)
    if with_phases:
        grad_phases = -(q_p.conj() * f.d[..., 0, :]).imag
        return grad_u, grad_phases if grad_phases.ndim == 1 else xp.sum(grad_phases, axis=0)
    last = f.library.zeros((*grad_u.shape[:-1], 1), grad_u)
    last[..., -1, 0] = q_p[..., -1]
    return xp.concatenate([grad_u, last], axis=-1), None


def gradients(
    f: Form, h: AnyArray, g: AnyArray, transpose: bool, with_phases: bool = False
) -> tuple[AnyArray, AnyArray]:
    """Return the gradients of u and phases; ``g`` is the gradient of ``apply(f, h, transpose)``.

    Since ``<g, W* h> = <h, W g>``, the adjoint has the parameter gradients of W with h and g exchanged. The gradient of
    h is ``apply(f, g, not transpose)``.
    """
    p, q = (g, h) if transpose else (h, g)
    return parameter_gradients(f, sums(f, p, q), with_phases)


def states(f: Form, rows: AnyArray, transpose: bool) -> list[AnyArray]:
    """Apply one factor after the other (Algorithm 1), and return the rows before and after each.

    ``u_1`` is a factor too. Phases act together with the first reflection, or, transposed, with the last.
    """
    counts = f.d is not None and not f.library.is_complex(f.v)
    vectors = [rows]
    if f.d is not None and not transpose:
        rows = rows * f.d
        vectors += [rows] * counts
    columns = range(f.v.shape[-1])
    for j in columns if transpose else reversed(columns):
        column = slice(j, j + 1)
        v, tau = f.v[..., column], f.library.cast(1 / f.t[..., column, column].real, f.norm.dtype)
        rows = f.library.minus_product(rows, tau * (rows @ v.conj()), f.library.xp.swapaxes(v, -1, -2))
        vectors.append(rows)
    if f.d is not None and transpose:
        vectors[len(vectors) - 1 + counts :] = [rows * f.d.conj()]
    return vectors


def form_for(u: AnyArray, phases: AnyArray, count: int, method: str) -> Form:
    """Form u as a method needs it for this number of rows; ``"auto"`` forms W where that saves multiplications."""
    f = form(u, phases, method == "reflections")
    n, k = f.v.shape[-2:]
    if method == "dense" or (method == "auto" and count * (2 * k - n) > n * k):
        return f._replace(w=matrix(f))
    return f


def by_method(f: Form, rows: AnyArray, transpose: bool, method: str) -> AnyArray:
    """Apply a form that ``form_for`` returned for the same method."""
    if method == "reflections":
        return states(f, rows, transpose)[-1]
    if f.w is not None:
        return rows @ (f.w.conj() if transpose else f.library.xp.swapaxes(f.w, -1, -2))
    return apply(f, rows, transpose)
