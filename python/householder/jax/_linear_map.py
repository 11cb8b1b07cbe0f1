"""The product of reflections as an object of JAX's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import jax

import householder
from householder._base import spec, validate
from householder._base.docstrings import completed_by
from householder._base.linear_map import LinearMap
from householder.jax import _check
from householder.jax._functional import apply, matrix

if TYPE_CHECKING:
    from jax import Array

    from householder._base.types import AnyArray, ArrayLike


@jax.tree_util.register_pytree_node_class
@completed_by(householder.Reflections, "Array")
class Reflections(LinearMap):
    r"""The matrix :math:`W = H_n(u_n) \cdots H_{n-m+1}(u_{n-m+1})`, which acts without being formed.

    ``W @ x``, ``x @ W``, ``W.T``, ``W.H`` and ``W.shape`` are those of the matrix, which is not stored. Functions take
    W in the place of ``u``: ``hj.apply(W, h)``, ``hj.rnn(W.T, x)``. It is a pytree, so ``jax.jit``, ``jax.vmap`` and
    ``jax.grad`` take it as an argument. A gradient with respect to W is such an object, with gradients of the arrays.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import householder.jax as hj
    >>> W = hj.Reflections(jnp.array([[1.0], [1.0]]))
    >>> (W @ jnp.array([3.0, 4.0])).round().tolist()
    [-4.0, -3.0]
    """

    _apply, _matrix = staticmethod(apply), staticmethod(matrix)

    def __init__(self, u: ArrayLike, tau: ArrayLike = None, phases: ArrayLike = None, columns: str = "trapezoidal"):
        validate.one_of("columns", columns, spec.FORMS)
        u, compute = _check.first("u", u)
        _, tau, phases = _check.columns(u, compute, columns, tau, phases)
        self.u, self.tau, self.phases, self.columns, self.is_adjoint = u, tau, phases, columns, False

    @staticmethod
    def _array(x: ArrayLike) -> Array:
        return _check.array("x", x)

    @staticmethod
    def _conjugate(a: Array) -> Array:
        return a.conj()

    def tree_flatten(self) -> tuple[tuple[AnyArray, ...], tuple[str, bool]]:
        """Return the arrays, and what is static, for JAX."""
        return (self.u, self.tau, self.phases), (self.columns, self.is_adjoint)

    @classmethod
    def tree_unflatten(cls, static: tuple[str, bool], arrays: tuple[AnyArray, ...]) -> Self:
        """Return the object of these arrays, or of what stands in their place, for JAX."""
        (u, tau, phases), (columns, is_adjoint) = arrays, static
        return cls._of(u, tau, phases, columns, is_adjoint)
