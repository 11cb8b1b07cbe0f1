"""The mathematics of :mod:`householder._expressions` in ``jax.numpy``.

Arrays have a leading axis of independent problems: ``u (c, n, m)``, ``h (c, rows, n)``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from householder import _expressions
from householder._library import Library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from householder._library import Step


class _Jax(Library):
    def wide(self, a: Array) -> Any:
        """Return the dtype itself, because JAX rarely has the double one."""
        return a.dtype

    def constant(self, a: Array) -> Array:
        return lax.stop_gradient(a)

    def complex(self, re: Array, im: Array) -> Array:
        return lax.complex(re, im)

    def solve(self, triangle: Array, right: Array, upper: bool) -> Array:
        return lax.linalg.triangular_solve(triangle, right, left_side=True, lower=not upper, unit_diagonal=True)

    def scan(self, step: Step, state: Array, arrays: Sequence[Array], axis: int, reverse: bool) -> tuple[Array, Array]:
        """Run the steps as one loop of the compiler."""
        steps = [jnp.moveaxis(a, axis, 0) for a in arrays]
        last, results = lax.scan(lambda state, parts: step(state, *parts), state, steps, reverse=reverse)
        return last, jnp.moveaxis(results, 0, axis)


LIBRARY = _Jax(jnp)
_exactly = partial(jax.default_matmul_precision, "highest")
"""W stays orthogonal on devices that would round the factors of products."""


def apply(u: Array, h: Array, transpose: bool, tau: Array | None = None, shape: str = "trapezoidal") -> Array:
    """Compute ``W h`` or ``W* h``."""
    with _exactly():
        c: Array = _expressions.apply(LIBRARY, u, h, transpose, tau, shape)
        return c


def matrix(u: Array, tau: Array | None = None, shape: str = "trapezoidal") -> Array:
    """Form ``W (c, n, n)``."""
    with _exactly():
        w: Array = _expressions.matrix(LIBRARY, u, tau, shape)
        return w


def turn(h: Array, phases: Array) -> Array:
    """Multiply the entries of ``h`` by ``exp(i phases)``."""
    turned: Array = _expressions.turn(LIBRARY, h, phases)
    return turned


def rnn(*arguments: Any, tau: Array | None = None, shape: str = "trapezoidal") -> tuple[Array, Array]:
    """Run a recurrence: all states ``(c, T, B, n)`` and the last ones ``(c, B, n)``, from the operator's arguments."""
    operands, options = arguments[:-4], arguments[-4:]
    given: list[Any] = [*operands, tau, None, *options, shape]
    with _exactly():
        return _expressions.rnn(LIBRARY, *given)


def delta_rule(*arguments: Any) -> tuple[Array, Array]:
    """Run the delta rule: outputs and final states, in the shapes of the operator."""
    operands, options = arguments[:-3], arguments[-3:]
    given: list[Any] = [*operands, None, *options]
    with _exactly():
        return _expressions.delta_rule(LIBRARY, *given)
