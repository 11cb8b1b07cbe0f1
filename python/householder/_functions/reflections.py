"""The product of reflections as an object of NumPy's."""

from householder._base import spec, validate
from householder._base.linear_map import LinearMap
from householder._base.types import Array, ArrayLike
from householder._functions.apply import apply, backend_and_array, matrix


class Reflections(LinearMap):
    r"""The matrix :math:`W = H(u_n) \cdots H(u_{n-m+1})`, which acts without being formed.

    ``W @ x``, ``x @ W``, ``W.T``, ``W.H`` and ``W.shape`` are those of the matrix, which is not stored. Functions take
    W in the place of ``u``: ``hh.apply(W, h)``, ``hh.rnn(W.T, x)``. SciPy's solvers take it as a linear operator.

    Parameters
    ----------
    u : array, shape (..., n, m)
        Reflections, as in :func:`apply`. The object refers to the arrays and copies none.
    tau : array, shape (..., m), optional
        One number per column: :math:`H(v) = I - \tau v v^*` in place of :math:`2 / |v|^2`. 0 is the identity. Method
        "auto" then never forms W, because the gradient of u would lose digits if tau is far from ``2 / |v|^2``.
    phases : array, shape (n,) or (..., n), optional
        Real angles theta for a complex u without tau: W is multiplied by ``diag(exp(i theta))`` from the right.
    columns : {"trapezoidal", "full"}
        "full": columns have n entries each, ``m`` is any number, and there is no ``u_1``. With tau, trapezoidal columns
        are in LAPACK's format: the diagonal is one, and the diagonal of u is ignored. ``geqrf`` returns such a u.

    Attributes
    ----------
    shape : tuple of int
        ``(..., n, n)``.
    dtype : numpy.dtype
    ndim : int
    T, H : Reflections
        The transpose, and the adjoint ``W*``. They differ if W is complex.
    u, tau, phases, columns
        The arguments.
    is_adjoint : bool
        Whether this is the adjoint of the product that the arguments describe.

    Raises
    ------
    TypeError, ValueError
        As in :func:`apply`.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> rng = np.random.default_rng(0)
    >>> W, x = hh.Reflections(rng.standard_normal((6, 3))), rng.standard_normal(6)
    >>> W
    Reflections(shape=(6, 6), m=3, columns='trapezoidal', dtype=float64)
    >>> np.allclose(W @ x, W.matrix() @ x), np.allclose(W.T @ (W @ x), x)
    (True, True)

    ``W @ X`` multiplies columns, as matrices do; ``apply`` multiplies vectors in the last axis:

    >>> X = rng.standard_normal((6, 2))
    >>> np.allclose(W @ X, hh.apply(W, X.T).T)
    True
    """

    _apply, _matrix = staticmethod(apply), staticmethod(matrix)

    def __init__(self, u: ArrayLike, tau: ArrayLike = None, phases: ArrayLike = None, columns: str = "trapezoidal"):
        validate.one_of("columns", columns, spec.FORMS)
        backend, u = backend_and_array("u", u)
        _, tau, phases = validate.all_of_columns(u, columns, tau, phases, backend)
        self.u, self.tau, self.phases, self.columns, self.is_adjoint = u, tau, phases, columns, False

    def _array(self, x: ArrayLike) -> Array:
        return backend_and_array("u", self.u)[0].operand("x", x, self.u)

    @staticmethod
    def _conjugate(a: Array) -> Array:
        return a.conj()
