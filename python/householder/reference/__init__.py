"""The mathematics in plain NumPy, in float64 or complex128: documentation, oracle and slow path.

One matrix at a time: ``u (n, m)``, vectors are the last axis of ``h (..., n)``. Any dtype is accepted and
computed in double precision. Every function states its equation; the names are the paper's. Sequences
follow in :mod:`householder.reference.sequence`, the delta rule and linear attention in
:mod:`householder.reference.delta`.
"""

import numpy as np

from householder._base.norms import power_of_two
from householder._base.types import Array
from householder.reference.delta import delta_rule_backward as delta_rule_backward
from householder.reference.delta import delta_rule_forward as delta_rule_forward

ReferenceGradients = tuple[Array, Array, Array | None]
"""Gradients of u, h and phases."""


def split(u: Array, phases: Array | None = None) -> tuple[Array, Array, Array]:
    """Split u into unit columns ``V (n, k)``, their norms ``(k,)`` and the diagonal ``d (n,)`` of ``W = W_1 diag(d)``.

    ``W_1 = H(v_1) .. H(v_k)``. Real ``m == n``: ``k = n - 1`` and ``d = (1, .., 1, u_1)``, else ``k = m``.
    With phases ``d = exp(i theta)``. A column of zero or subnormal norm stands for ``H = I``: ``v = 0``.
    """
    n, m = u.shape
    columns = np.tril(u).astype(np.result_type(u.dtype, np.float64))
    d = np.ones(n, columns.dtype)
    if phases is not None:
        d = np.exp(1j * np.asarray(phases, np.float64))
    elif m == n:
        d[-1] = columns[-1, -1]
        columns = columns[:, :-1]
    power = power_of_two(np, np.abs(columns).max(axis=0))
    norm = np.linalg.norm(columns * power, axis=0)
    zero = norm < power * np.finfo(u.dtype).tiny
    v = np.where(zero, 0, columns * power / np.where(zero, 1, norm))
    with np.errstate(over="ignore"):
        return v, np.where(zero, np.inf, norm / power), d


def reflection(v: Array) -> Array:
    """Return ``H(v) = I - 2 v v*`` for a unit (or zero) vector v."""
    H: Array = np.eye(len(v)) - 2 * np.outer(v, v.conj())
    return H


def matrix(u: Array, phases: Array | None = None) -> Array:
    """Return ``W = H(u_1st column) .. H(u_last column) diag(d)``, a product of explicit n x n reflections."""
    v, _, d = split(u, phases)
    w: Array = np.diag(d)
    for column in v.T[::-1]:
        w = reflection(column) @ w
    return w


def forward(u: Array, h: Array, phases: Array | None = None, transpose: bool = False) -> Array:
    """Return ``c = W h`` or ``c = W* h``, one reflection after the other."""
    v, _, d = split(u, phases)
    c = h if transpose else h * d
    for column in v.T if transpose else v.T[::-1]:
        c = c - 2 * np.multiply.outer(c @ column.conj(), column)
    return c * d.conj() if transpose else c


def tape(u: Array, h: Array, phases: Array | None = None) -> Array:
    """Forward half of Algorithm 1: ``H (k + 1, ..., n)`` with ``H[0] = c`` and ``H[k] = D h``.

    ``h~_j = 2 v_j* H_{j+1}``, ``H_j = H_{j+1} - h~_j v_j`` for ``j = k, .., 1``.
    """
    v, _, d = split(u, phases)
    H = [h * d]
    for column in v.T[::-1]:
        H.append(H[-1] - 2 * np.multiply.outer(H[-1] @ column.conj(), column))
    return np.stack(H[::-1])


def backward_algorithm_1(
    u: Array, h: Array, H: Array, grad_c: Array, phases: Array | None = None
) -> ReferenceGradients:
    """Backward half of Algorithm 1, from the stored ``H = tape(u, h)``.

    ``c~_j = 2 v_j* g``, ``g <- g - c~_j v_j``, ``dL/dv_j = -g h~_j* - H_{j+1} c~_j*`` for ``j = 1, .., k``.
    Complex: its component ``i Im(c~_j h~_j*) v_j`` is subtracted, because H does not change along it.
    """
    v, norm, d = split(u, phases)
    n, k = v.shape
    g = grad_c.reshape(-1, n)
    grad_v = np.zeros_like(v)
    for j in range(k):
        column, after = v[:, j], H[j + 1].reshape(-1, n)
        h_tilde, c_tilde = 2 * after @ column.conj(), 2 * g @ column.conj()
        g = g - np.outer(c_tilde, column)
        grad_v[:, j] = -g.T @ h_tilde.conj() - after.T @ c_tilde.conj()
        if np.iscomplexobj(v):
            grad_v[:, j] -= 1j * np.vdot(h_tilde, c_tilde).imag * column
    return _gradients(u, h, g.reshape(h.shape), grad_v / norm, d, phases)


def wy(u: Array) -> tuple[Array, Array, Array]:
    """Return V, T and S (Proposition 1): ``W_1 = I - V S V*``, ``T = striu(V* V) + I / 2``, ``S = T^-1``.

    The diagonal of T is 1/2 for a zero column too, where it has no effect, so that T has an inverse.
    """
    v, _, _ = split(u)
    t = np.triu(v.conj().T @ v, 1) + np.eye(v.shape[1]) / 2
    return v, t, np.linalg.inv(t)


def forward_wy(u: Array, h: Array, phases: Array | None = None, transpose: bool = False) -> Array:
    """Return ``W h = (I - V S V*) D h`` and ``W* h = D* (I - V S* V*) h``."""
    v, _, s = wy(u)
    d = split(u, phases)[2]
    a = v @ (s.conj().T if transpose else s)
    c: Array = h if transpose else h * d
    c = c - c @ v.conj() @ a.T
    return c * d.conj() if transpose else c


def backward(
    u: Array, h: Array, grad_c: Array, phases: Array | None = None, transpose: bool = False
) -> ReferenceGradients:
    """Return the gradients by Theorem 2, summed over all vectors.

    With ``h~ = S V* D h``, ``c~ = S* V* g``, ``L = (h~ c~*) o B'`` and ``B = striu(J) + I / 2``:
    ``dL/dV = V (L + L*) - g h~* - D h c~*``, ``dL/d(D h) = q = g - V c~``, ``dL/du = dL/dv / |u|``.
    Since ``<g, W* h> = <h, W g>``, the transposed product has the gradients of W with h and g exchanged.
    """
    if transpose:
        grad_u, _, grad_phases = backward(u, grad_c, h, phases)
        return grad_u, forward(u, grad_c, phases), grad_phases
    v, _, s = wy(u)
    _, norm, d = split(u, phases)
    n, k = v.shape
    g, dh = grad_c.reshape(-1, n), (h * d).reshape(-1, n)
    h_tilde, c_tilde = dh @ v.conj() @ s.T, g @ v.conj() @ s.conj()
    lower = (h_tilde.T @ c_tilde.conj()) * (np.tri(k, k, -1) + np.eye(k) / 2)
    grad_v = v @ (lower + lower.conj().T) - g.T @ h_tilde.conj() - dh.T @ c_tilde.conj()
    return _gradients(u, h, (g - c_tilde @ v.T).reshape(h.shape), grad_v / norm, d, phases)


def _gradients(u: Array, h: Array, q: Array, grad_columns: Array, d: Array, phases: Array | None) -> ReferenceGradients:
    """Return, by ``q = W_1* g``, ``dL/dh = D* q``, ``dL/du_1 = sum q_n h_n``, ``dL/dtheta = -Im sum conj(q) d h``."""
    n, k = grad_columns.shape
    grad_u = np.zeros(u.shape, grad_columns.dtype)
    grad_u[:, :k] = np.tril(grad_columns)
    if k < u.shape[1]:
        grad_u[-1, -1] = np.sum(q[..., -1] * h[..., -1])
    grad_phases = None if phases is None else -np.imag(q.conj() * d * h).reshape(-1, n).sum(axis=0)
    return grad_u, q * d.conj(), grad_phases


def factor(q: Array, m: int | None = None) -> tuple[Array, Array]:
    """Return ``U (n, m)`` and the diagonal left over, with ``q = W_1 diag(d)`` (Theorem 1, Algorithm 2).

    Reflect each column of what is left onto a multiple of ``e_1``. Real: that multiple is positive, so d is 1
    but for the last sign, which becomes ``u_1`` when m == n. Complex: the phases are the arguments of d.
    """
    n = len(q)
    m = m or (n - 1 if np.iscomplexobj(q) else n)
    r = q.astype(np.result_type(q.dtype, np.float64))
    u = np.zeros((n, m), r.dtype)
    for j in range(min(m, n - 1)):
        v = eliminator(r[j:, j])
        u[j:, j] = v
        r[j:] -= 2 * np.outer(v, v.conj() @ r[j:])
    if m == n:
        u[-1, -1] = np.sign(r[-1, -1])
    return u, np.diagonal(r).copy()


def eliminator(x: Array) -> Array:
    """Find the unit vector ``u`` with ``H(u) x`` a multiple of ``e_1``.

    Real: ``u = x - |x| e_1``, its first entry as ``-|x_2..|^2 / (x_1 + |x|)`` where the difference would cancel,
    and the paper's ``e_last`` where nothing is to be reflected. Complex: ``u = x + exp(i arg x_1) |x| e_1``.
    """
    u: Array = x.copy()
    norm, tail = np.linalg.norm(x), np.linalg.norm(x[1:])
    if np.iscomplexobj(x):
        u[0] += np.exp(1j * np.angle(x[0])) * norm
    elif x[0] <= 0:
        u[0] -= norm
    elif tail > 0:
        u[0] = -tail * (tail / (x[0] + norm))
    else:
        u[:] = np.eye(len(x))[-1]
    u /= np.linalg.norm(u)
    return u
