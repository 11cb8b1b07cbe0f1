"""One application: validate once, choose the backend by type, make one native call."""

from typing import Any, overload

import numpy as np

from householder import _core
from householder._base import cpu, spec, validate
from householder._base.batch import arrange, sum_to
from householder._base.linear_map import DEFAULT, Columns, LinearMap, columns_of, default_columns
from householder._base.types import (
    WY,
    Argument,
    Array,
    ArrayLike,
    Backend,
    Gradients,
    Keywords,
    PhaseGradients,
    TauGradients,
)

_BACKENDS: dict[type, Backend] = {np.ndarray: cpu}


def backend_and_array(name: str, value: Argument) -> tuple[Backend, Array]:
    """Return the backend for the type of a first operand, and the operand as its array; others become NumPy's."""
    backend = _BACKENDS.get(type(value))
    if backend is None and type(value).__module__.partition(".")[0] == "cupy":
        from householder._cuda.arrays import cupy_arrays

        backend = _BACKENDS[type(value)] = cupy_arrays()
    backend = cpu if backend is None else backend
    return backend, backend.array(name, value)


def apply(
    u: ArrayLike,
    h: ArrayLike,
    *,
    method: str = "auto",
) -> Array:
    r"""Apply W to vectors: ``c = W h``.

    .. math:: W = H(u_n) \cdots H(u_{n-m+1}), \qquad H(v) = I - 2 v v^* / |v|^2

    Column j (from 1) of ``u`` is ``j - 1`` zeros and then the reflection vector ``u_{n-j+1}``; entries above the
    diagonal are ignored. The scale of a column has no effect, and a zero column is the identity. If ``m == n``, the
    last column is the number ``u_1``, a factor on the last coordinate: ``W = W_1 diag(1, .., 1, u_1)``, which is
    orthogonal for ``u_1 = 1`` and ``-1``. :class:`Reflections` describe other columns, phases, and the adjoint.

    Parameters
    ----------
    u : array, shape (..., n, m), or Reflections
        Reflections, ``1 <= m <= n`` (complex: ``m <= n - 1``); float32, float64, complex64 or complex128. NumPy's
        integers become float64 and its float16 becomes float32. Arrays of other libraries are read in place if they
        are on the CPU; the result is a NumPy array. CuPy's have one of the four types.
    h : array, shape (..., n)
        Vectors, of u's dtype; integers are converted. Leading axes of u and h broadcast as in a generalised ufunc
        ``(n, m), (n) -> (n)``.
    method : {"auto", "reflections", "wy", "dense"}
        One reflection after the other, two products with n x m matrices, or one product with W; "auto" takes the
        fastest. With ``tau`` it never forms W, because the gradient of ``u`` would lose digits if ``tau`` is far from
        ``2 / |v|^2``.

    Returns
    -------
    array, shape (..., n)
        A new array; the inputs are never changed.

    Raises
    ------
    TypeError
        An unsupported dtype, or arguments of different dtypes, devices or libraries.
    ValueError
        Shapes that do not fit, or an unknown method.

    Examples
    --------
    A reflection along the first axis:

    >>> import numpy as np, householder as hh
    >>> hh.apply(np.array([[1.0], [0.0]]), np.array([3.0, 4.0]))
    array([-3.,  4.])

    Ten vectors of length 6 keep their norms:

    >>> rng = np.random.default_rng(0)
    >>> u, h = rng.standard_normal((6, 4)), rng.standard_normal((10, 6))
    >>> np.allclose(np.linalg.norm(hh.apply(u, h), axis=1), np.linalg.norm(h, axis=1))
    True

    The adjoint is the inverse:

    >>> np.allclose(hh.apply(hh.Reflections(u).H, hh.apply(u, h)), h)
    True
    """
    is_object = isinstance(u, (LinearMap, Columns))
    u, tau, phases, form, is_adjoint = columns_of(u) if is_object else (u, *DEFAULT)
    if phases is None and type(u) is type(h) and _BACKENDS.get(type(u)) is cpu and u.ndim == 2:
        try:
            c: Array = np.empty(h.shape, h.dtype)
            _core.forward(u, h, c, None, is_adjoint, method, False, form, tau)
        except (TypeError, ValueError, RuntimeError):
            pass  # the checks convert the arguments, or say what is wrong
        else:
            return c
    backend, u = backend_and_array("u", u)
    h = backend.operand("h", h, u)
    n, tau, phases = validate.all_of_columns(u, form, tau, phases, backend, h)
    validate.vectors("h", h, n, u)
    columns = _not_default(tau, form)
    validate.one_of("method", method, spec.METHODS)
    if phases is not None and phases.ndim > 1:  # the core takes one row of phases for all matrices
        factors = backend.xp.exp(1j * phases).astype(u.dtype)
        w = Columns(u, is_adjoint=is_adjoint)
        return apply(w, h, method=method) * factors.conj() if is_adjoint else apply(w, h * factors, method=method)
    if u.ndim == 2:
        single: Array = backend.forward(u, h, phases, is_adjoint, method, **columns)
        return single
    batch = arrange(u.shape, h.shape)
    c = backend.forward(u, batch.gather(h, backend.xp), phases, is_adjoint, method, **columns)
    return batch.scatter(c, backend.xp)


forward = apply
"""``apply`` under another name, as the pair of :func:`backward`."""


def _not_default(tau: Array | None, form: str) -> Keywords:
    """Return a backend's arguments for columns that are not the default."""
    return {} if validate.is_default(tau, form) else {"tau": tau, "form": form}


def forward_tape(u: ArrayLike, h: ArrayLike) -> tuple[Array, Array]:
    """Apply W and save the intermediate vectors of Algorithm 1 for :func:`backward`.

    This stores ``n (m + 1)`` numbers per vector, and the backward pass recomputes nothing. The method is
    ``"reflections"``.

    Parameters
    ----------
    u : array, shape (n, m), or Reflections
        One matrix of trapezoidal columns without tau; otherwise as in :func:`apply`.
    h : array, shape (..., n)

    Returns
    -------
    c : array, shape (..., n)
        The result of :func:`apply`.
    tape : array, shape (..., m + 1, n)
        ``tape[..., k, :]`` is the vector before the first k columns are applied, the paper's ``H_{*, k+1}``: entry 0 is
        c, entry m is h.

    Raises
    ------
    TypeError, ValueError
        As in :func:`apply`.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> u = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> c, tape = hh.forward_tape(u, np.array([1.0, 2.0, 3.0]))
    >>> tape
    array([[-1., -2.,  3.],
           [ 1., -2.,  3.],
           [ 1.,  2.,  3.]])
    """
    u, phases, is_adjoint = default_columns("forward_tape", u)
    backend, u = backend_and_array("u", u)
    h = backend.operand("h", h, u)
    n, _ = validate.one_matrix(u, "forward_tape", h=h)
    validate.vectors("h", h, n, u)
    phases = validate.phases(phases, u, n, backend)
    tape = backend.forward_tape(u, h, phases, is_adjoint)
    return tape[..., 0, :].copy(), tape


@overload
def backward(
    u: LinearMap | Columns, h: ArrayLike, grad_c: ArrayLike, *, method: str = "auto", tape: ArrayLike = None
) -> Any: ...
@overload
def backward(
    u: ArrayLike, h: ArrayLike, grad_c: ArrayLike, *, method: str = "auto", tape: ArrayLike = None
) -> Gradients: ...
def backward(
    u: ArrayLike, h: ArrayLike, grad_c: ArrayLike, *, method: str = "auto", tape: ArrayLike = None
) -> Gradients | PhaseGradients | TauGradients:
    """Return a loss's gradients with respect to u, h, tau and phases, from its gradient for ``forward(u, h)``.

    Theorem 2: with unit columns V, ``T = striu(V* V) + I / 2``, ``h~ = T^-1 V* h``, ``c~ = T^-* V* g`` and
    ``B = striu(J) + I / 2``, summed over all vectors,

    ``dL/dV = V [(h~ c~*) o B' + (c~ h~*) o B] - g h~* - h c~*``, ``dL/dh = g - V c~``, ``dL/du = dL/dv / |u|``.

    Parameters
    ----------
    u : array, shape (..., n, m), or Reflections
        As in :func:`apply`, but matrices share their phases, ``(n,)``.
    h : array, shape (..., n)
    grad_c : array
        The loss's gradient, in the shape of ``forward(u, h)``.
    method : {"auto", "reflections", "wy", "dense"}
        As in :func:`apply`.
    tape : array, shape (..., m + 1, n), optional
        From :func:`forward_tape` with the same arguments: Algorithm 1 with stored vectors. It needs a single
        trapezoidal matrix without tau. On the CPU, a tape of another h is refused.

    Returns
    -------
    Gradients, PhaseGradients or TauGradients
        Named tuple ``(u, h)``, with phases ``(u, h, phases)``, with tau ``(u, h, tau)``, in the shapes of the
        arguments. Complex gradients are ``dL/dRe + i dL/dIm``, as in torch. Ignored entries of ``u`` have zero
        gradient. If ``m == n``, the gradient of ``u_1`` is ``.u[..., -1, -1]``.

    Raises
    ------
    TypeError, ValueError
        As in :func:`apply`.

    Examples
    --------
    The norm of c does not depend on u, so its gradient vanishes:

    >>> import numpy as np, householder as hh
    >>> rng = np.random.default_rng(0)
    >>> u, h = rng.standard_normal((5, 3)), rng.standard_normal((8, 5))
    >>> grads = hh.backward(u, h, grad_c=hh.apply(u, h))  # L = |c|^2 / 2
    >>> bool(abs(grads.u).max() < 1e-14), np.allclose(grads.h, h)
    (True, True)
    """
    u, tau, phases, form, is_adjoint = columns_of(u)
    backend, u = backend_and_array("u", u)
    h = backend.operand("h", h, u)
    n, m = validate.reflections(u, form, tau is not None, h)
    validate.vectors("h", h, n, u)
    grad_c = backend.operand("grad_c", grad_c, u)
    phases = validate.phases(phases, u, n, backend)
    columns = _not_default(validate.tau(tau, u, form, phases, backend), form)
    validate.one_of("method", method, spec.METHODS)
    if tape is not None:
        if columns:
            raise ValueError("tape is for trapezoidal columns without tau: leave the tape out")
        validate.one_matrix(u, "backward with a tape")
        validate.one_of("method", method, ("auto", "reflections"))
        validate.shape("grad_c", grad_c, h.shape)
        tape = backend.operand("tape", tape, u)
        validate.shape("tape", tape, (*h.shape[:-1], m + 1, n))
        if backend.xp is np and not np.array_equal(tape[..., m, :], h, equal_nan=True):  # a device would be waited for
            raise ValueError("tape does not end in h: pass the tape that forward_tape returned for this h")
        grads = backend.backward_tape(u, tape, grad_c, phases, is_adjoint)
    elif u.ndim == 2:
        validate.shape("grad_c", grad_c, h.shape)
        grads = backend.backward(u, h, grad_c, phases, is_adjoint, method, **columns)
    else:
        batch = arrange(u.shape, h.shape)
        validate.shape("grad_c", grad_c, (*batch.shape, n))
        gathered = (batch.gather(a, backend.xp) for a in (h, grad_c))
        grad_u, grad_h, *others = backend.backward(u, *gathered, phases, is_adjoint, method, **columns)
        grads = grad_u, sum_to(batch.scatter(grad_h, backend.xp), h.shape), *others
    grad_u, grad_h, *others = grads
    if columns.get("tau") is not None:
        return TauGradients(grad_u, grad_h, others[1])
    return Gradients(grad_u, grad_h) if phases is None else PhaseGradients(grad_u, grad_h, others[0])


def matrix(u: ArrayLike) -> Array:
    """Form W.

    Parameters
    ----------
    u : array, shape (..., n, m), or Reflections
        As in :func:`apply`.

    Returns
    -------
    array, shape (..., n, n)
        ``H(column 1) .. H(column m)``, times ``diag(1, .., 1, u_1)`` if ``m == n``, or times the phases of
        :class:`Reflections`.

    Raises
    ------
    TypeError, ValueError
        As in :func:`apply`.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> hh.matrix(np.array([[1.0], [3.0]])).round(12)
    array([[ 0.8, -0.6],
           [-0.6, -0.8]])
    """
    u, tau, phases, form, is_adjoint = columns_of(u)
    backend, u = backend_and_array("u", u)
    _, tau, phases = validate.all_of_columns(u, form, tau, phases, backend)
    columns = _not_default(tau, form)
    w: Array
    if phases is None or phases.ndim == 1:
        w = backend.matrix(u, phases, **columns)
    else:
        w = backend.matrix(u, None, **columns) * backend.xp.exp(1j * phases[..., None, :]).astype(u.dtype)
    return w.swapaxes(-1, -2).conj() if is_adjoint else w


def wy(u: ArrayLike) -> WY:
    """Return the compact WY form on unit columns (Proposition 1): ``W = (I - V S V*) D``.

    ``V`` holds k columns of norm one or zero, ``T = striu(V* V) + I / 2`` and ``S = T^-1``. If ``m < n``, ``k = m`` and
    ``D = I``. If ``m == n``, ``k = n - 1`` and ``D = diag(1, .., 1, u_1)``.

    Parameters
    ----------
    u : array, shape (..., n, m), or Reflections
        Trapezoidal columns without tau and phases.

    Returns
    -------
    WY
        Named tuple of ``v (..., n, k)``, ``t (..., k, k)`` and ``s (..., k, k)``.

    Raises
    ------
    TypeError, ValueError
        As in :func:`apply`.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> u = np.random.default_rng(0).standard_normal((6, 4))
    >>> v, t, s = hh.wy(u)
    >>> np.allclose(np.eye(6) - v @ s @ v.T, hh.matrix(u)), np.allclose(t + t.T, v.T @ v)
    (True, True)
    """
    u, phases, is_adjoint = default_columns("wy", u)
    if phases is not None or is_adjoint:
        raise ValueError("wy takes reflections alone, but u is W with phases or an adjoint: pass W.u")
    backend, u = backend_and_array("u", u)
    validate.reflections(u)
    form: WY = backend.wy(u)
    return form
