"""The mathematics of :mod:`householder._mathematics` in ``jax.numpy``.

Arrays have a leading axis of independent problems: ``u (c, n, m)``, ``h (c, rows, n)``.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from householder._mathematics import linear_attention, recurrence, reflections
from householder._mathematics.library import Library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from householder._base.types import AnyArray, AnyDtype, AnyFunction, Argument
    from householder._mathematics.library import Step


class _Jax(Library):
    def wide(self, a: Array) -> AnyDtype:
        """Return the dtype itself, because JAX rarely has double precision."""
        return a.dtype

    def eye(self, k: int, like: Array) -> Array:
        """Return the identity with as many axes as the other array; JAX may be told to add none silently."""
        return jnp.expand_dims(jnp.eye(k, dtype=like.dtype), tuple(range(like.ndim - 2)))

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

    def scan_packed(self, step: Step, state: Array, rows: Array, batch_sizes: Array) -> tuple[Array, Array]:
        """Run as one loop: a sequence that has ended keeps its state."""
        running = np.arange(int(batch_sizes[0])) < np.asarray(batch_sizes)[:, None]
        padded = jnp.zeros((*rows.shape[:-2], *running.shape, rows.shape[-1]), rows.dtype)
        padded = padded.at[..., running, :].set(rows)

        def masked(state: Array, a: Array, runs: Array) -> tuple[Array, Array]:
            following, _ = step(state, a)
            state = jnp.where(runs, following, state)
            return state, state

        runs = jnp.broadcast_to(running[..., None], padded.shape)
        state, results = self.scan(masked, state, (padded, runs), -3, False)
        return state, results[..., running, :]


LIBRARY = _Jax(jnp)


def _exactly(expression: AnyFunction) -> AnyFunction:
    """Return the expression as a function of arrays, with full precision also on GPUs and TPUs.

    Their default rounds the operands of products to bfloat16 or TF32.
    """

    @wraps(expression)
    def compute(*arguments: Argument) -> AnyArray:
        with jax.default_matmul_precision("highest"):
            return expression(LIBRARY, *arguments)

    return compute


apply = _exactly(reflections.apply)
matrix = _exactly(reflections.matrix)
rnn = _exactly(recurrence.rnn)
delta_rule = _exactly(linear_attention.delta_rule)


def turn(h: Array, phases: Array) -> Array:
    """Multiply the entries of ``h (.., n)`` by ``exp(i phases)``; JAX may be told to add no axes silently."""
    turned: Array = reflections.turn(LIBRARY, h, jnp.expand_dims(phases, tuple(range(h.ndim - phases.ndim))))
    return turned
