"""The operator ``apply``: ``u (count, n, m)``, ``tau (count, m)`` or None, ``h (count, rows, n)``; result like h."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from householder._base.batch import arrange
from householder.jax import _expressions
from householder.jax._ops.operator import Axes, Function, JaxOperator, ShapeDtype

if TYPE_CHECKING:
    from jax import Array

    from householder._base.types import AnyArray, Keywords


class ApplyParams(NamedTuple):
    """The static arguments of the primitive, which JAX calls its parameters."""

    transpose: bool
    method: str
    form: str


def _results(_: ApplyParams, __: AnyArray, ___: AnyArray, h: AnyArray) -> list[ShapeDtype]:
    return [ShapeDtype(h.shape, h.dtype)]


def _expression(options: ApplyParams, u: AnyArray, tau: AnyArray, h: AnyArray) -> tuple[Array, ...]:
    return (_expressions.apply(u, h, options.transpose, tau, options.form),)


def _attributes(options: ApplyParams, *_: AnyArray) -> Keywords:
    return {"transpose": np.bool_(options.transpose), "method": options.method, "form": options.form}


operator = JaxOperator(
    Function("apply", Axes((None, None, 1), (1,)), _results, _expression, _attributes),
    adjoint=lambda options: options._replace(transpose=not options.transpose),
)


@partial(jax.jit, static_argnames=("options",))
def apply(u: Array, h: Array, tau: Array | None, phases: Array | None, options: ApplyParams) -> Array:
    """Apply many matrices to many vectors, whose leading axes broadcast."""
    if phases is not None and not options.transpose:
        h = _expressions.turn(h, phases)
    batch = arrange(u.shape, h.shape)
    axes = len(batch.order)
    u = u.reshape(-1, *u.shape[-2:])
    h = jnp.broadcast_to(h, (*batch.shape, h.shape[-1])).transpose(*batch.order, axes)
    rows = prod(h.shape[batch.separate : -1])
    vectors = h.reshape(u.shape[0], rows, h.shape[-1])
    tau = None if tau is None else tau.reshape(-1, tau.shape[-1])
    (c,) = operator(options, u, tau, vectors)
    c = c.reshape(h.shape).transpose(*batch.back, axes)
    return _expressions.turn(c, -phases) if phases is not None and options.transpose else c
