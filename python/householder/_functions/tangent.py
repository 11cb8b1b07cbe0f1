"""Forward mode: the derivative of ``c = W h`` along a direction of u, h and the phases."""

from types import ModuleType

from householder._base import validate
from householder._base.batch import arrange
from householder._base.linear_map import default_columns
from householder._base.norms import power_of_two
from householder._base.types import Array, ArrayLike
from householder._functions.apply import backend_and_array


def jvp(
    u: ArrayLike,
    h: ArrayLike,
    tangent_u: ArrayLike,
    tangent_h: ArrayLike,
    *,
    tangent_phases: ArrayLike = None,
) -> Array:
    """Differentiate ``forward(u, h)`` along a direction: the Jacobian times the tangents of u, h and phases.

    With unit columns V, their tangents ``V' = (U' - V Re diag(V* U')) / |u|``, ``a = D h`` and ``y = T^-1 V* a``:

    ``T' = striu(V'* V + V* V')``, ``y' = T^-1 (V'* a + V* a' - T' y)``, ``c' = a' - V' y - V y'``.

    It costs O(n m) per vector and O(n m^2) per matrix. It is the adjoint of :func:`backward`:
    ``Re <g, c'> = Re <grads.u, U'> + Re <grads.h, h'> + <grads.phases, phases'>``.

    Parameters
    ----------
    u : array, shape (..., n, m), or Reflections
        Trapezoidal columns without tau. Matrices share their phases, ``(n,)``.
    h : array, shape (..., n)
    tangent_u, tangent_h : array
        In the shapes of u and h. Entries of ``tangent_u`` above the diagonal are ignored.
    tangent_phases : array, shape (n,), optional
        It is needed if u is W with phases.

    Returns
    -------
    array, shape (..., n)
        In the shape of ``forward(u, h)``.

    Raises
    ------
    TypeError, ValueError
        As in :func:`apply`, or a tangent does not have its argument's shape, or W has phases
        and tangent_phases are missing, or the reverse.

    Examples
    --------
    W stays orthogonal when u moves, so c moves on a sphere:

    >>> import numpy as np, householder as hh
    >>> rng = np.random.default_rng(0)
    >>> u, h, tangent = rng.standard_normal((6, 4)), rng.standard_normal(6), rng.standard_normal((6, 4))
    >>> bool(abs(hh.forward(u, h) @ hh.jvp(u, h, tangent, np.zeros(6))) < 1e-14)
    True
    """
    u, phases, is_adjoint = default_columns("jvp", u)
    backend, u = backend_and_array("u", u)
    xp = backend.xp
    h, tangent_u, tangent_h = (
        backend.operand(name, value, u)
        for name, value in (("h", h), ("tangent_u", tangent_u), ("tangent_h", tangent_h))
    )
    n, _ = validate.reflections(u, h=h)
    validate.vectors("h", h, n, u)
    validate.shape("tangent_u", tangent_u, u.shape)
    validate.shape("tangent_h", tangent_h, h.shape)
    phases = validate.phases(phases, u, n, backend)
    tangent_phases = validate.optional("tangent_phases", tangent_phases, u, (n,), backend, real=True)
    if (phases is None) != (tangent_phases is None):
        raise ValueError("only one of W's phases and tangent_phases is given, expected both or neither")
    arrange(u.shape, h.shape)

    v, _, s = backend.wy(u)
    k = v.shape[-1]
    columns, directions = (xp.tril(a)[..., :k] for a in (u, tangent_u))
    power = power_of_two(xp, abs(columns).max(axis=-2, keepdims=True))
    columns, directions = columns * power, directions * power
    norm, radial = ((v.conj() * a).real.sum(axis=-2, keepdims=True) for a in (columns, directions))
    tangent_v = (directions - v * radial) / xp.where(norm == 0, xp.inf, norm)  # a zero column stays the identity
    v_adjoint, tangent_v_adjoint = (xp.swapaxes(a, -1, -2).conj() for a in (v, tangent_v))
    tangent_t = xp.triu(tangent_v_adjoint @ v + v_adjoint @ tangent_v, 1)
    if is_adjoint:
        s, tangent_t = (xp.swapaxes(a, -1, -2).conj() for a in (s, tangent_t))

    d, tangent_d = _diagonal(u, tangent_u, phases, tangent_phases, xp)
    d, tangent_d = (d.conj(), tangent_d.conj()) if is_adjoint else (d, tangent_d)
    a, tangent_a = (h, tangent_h) if is_adjoint else (d * h, d * tangent_h + tangent_d * h)
    y = _multiply(s, _multiply(v_adjoint, a))
    moved = _multiply(tangent_v_adjoint, a) + _multiply(v_adjoint, tangent_a) - _multiply(tangent_t, y)
    tangent_y = _multiply(s, moved)
    tangent_c: Array = tangent_a - _multiply(tangent_v, y) - _multiply(v, tangent_y)
    return d * tangent_c + tangent_d * (a - _multiply(v, y)) if is_adjoint else tangent_c


def _diagonal(
    u: Array, tangent_u: Array, phases: ArrayLike, tangent_phases: ArrayLike, xp: ModuleType
) -> tuple[Array, Array]:
    """Return ``D`` and its tangent, as vectors ``(..., n)``."""
    *batch, n, m = u.shape
    if phases is not None:
        d = xp.exp(1j * phases).astype(u.dtype)
        return d, (1j * tangent_phases * d).astype(u.dtype)
    d, tangent_d = xp.ones((*batch, n), u.dtype), xp.zeros((*batch, n), u.dtype)
    if m == n:
        d[..., -1], tangent_d[..., -1] = u[..., -1, -1], tangent_u[..., -1, -1]
    return d, tangent_d


def _multiply(matrix: Array, vectors: Array) -> Array:
    """Multiply ``matrix (..., i, j)`` and ``vectors (..., j)``; a single matrix takes all vectors in one product."""
    product: Array = vectors @ matrix.T if matrix.ndim == 2 else (matrix @ vectors[..., None])[..., 0]
    return product
