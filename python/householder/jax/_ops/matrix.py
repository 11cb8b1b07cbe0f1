"""The operator ``matrix``: ``W (count, n, n)`` of ``u (count, n, m)``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax

from householder._validate import is_default
from householder.jax import _expressions
from householder.jax._ops.operator import Axes, Operator, Shape

if TYPE_CHECKING:
    from jax import Array


class Matrix:
    """``W``."""

    name = "matrix"
    axes = Axes((0,), (0,))
    keeps_first = False
    residuals = 0

    def results(self, options: None, u: Any) -> list[Shape]:  # noqa: ARG002
        """Return the shapes of the results."""
        count, n, _ = u.shape
        return [Shape((count, n, n), u.dtype)]

    def kept(self, options: None, u: Any) -> list[Shape]:  # noqa: ARG002
        """Return no shape, because nothing is kept."""
        return []

    def attributes(self, options: None, u: Any) -> dict[str, Any]:  # noqa: ARG002
        """Return no attributes."""
        return {}

    def expression(self, options: None, u: Any) -> tuple[Array, ...]:  # noqa: ARG002
        """Compute the results in ``jax.numpy``."""
        return (_expressions.matrix(u),)


_operator = Operator(Matrix())


@partial(jax.jit, static_argnames=("shape",))
def matrix(u: Array, phases: Array | None, tau: Array | None, shape: str) -> Array:
    """Form many matrices; those of full columns and with tau in ``jax.numpy``."""
    many = u.reshape(-1, *u.shape[-2:])
    if is_default(tau, shape):
        (w,) = _operator(None, many)
    else:
        w = _expressions.matrix(many, None if tau is None else tau.reshape(-1, tau.shape[-1]), shape)
    w = w.reshape(*u.shape[:-2], *w.shape[-2:])
    return w if phases is None else _expressions.turn(w, phases[..., None, :])
