"""The operator ``matrix``: ``W (count, n, n)`` of ``u (count, n, m)``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from householder._base.validate import is_default
from householder.jax import _expressions
from householder.jax._ops import apply
from householder.jax._ops.operator import Axes, Function, JaxOperator, ShapeDtype

if TYPE_CHECKING:
    from jax import Array

    from householder._base.types import AnyArray


def _results(_: None, u: AnyArray) -> list[ShapeDtype]:
    count, n, _ = u.shape
    return [ShapeDtype((count, n, n), u.dtype)]


def _expression(_: None, u: AnyArray) -> tuple[Array, ...]:
    return (_expressions.matrix(u),)


_operator = JaxOperator(Function("matrix", Axes((0,), (0,)), _results, _expression))


@partial(jax.jit, static_argnames=("form",))
def matrix(u: Array, phases: Array | None, tau: Array | None, form: str) -> Array:
    """Form many matrices; those of full columns and with tau are applied to the unit vectors."""
    matrices = u.reshape(-1, *u.shape[-2:])
    if is_default(tau, form):
        (w,) = _operator(None, matrices)
    else:
        count, n, _ = matrices.shape
        unit = jnp.broadcast_to(jnp.eye(n, dtype=u.dtype), (count, n, n))
        tau = None if tau is None else tau.reshape(-1, tau.shape[-1])
        (columns,) = apply.operator(apply.ApplyParams(False, "auto", form), matrices, tau, unit)
        w = jnp.matrix_transpose(columns)
    w = w.reshape(*u.shape[:-2], *w.shape[-2:])
    return w if phases is None else _expressions.turn(w, phases[..., None, :])
