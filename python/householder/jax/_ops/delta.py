"""The operator ``delta_rule``: a product of reflections that depends on the data, in one native call.

Operands are ``q (B, T, H, K)``, ``k (B, T r, H, K)``, ``v (B, T r, HV, V)``, ``beta (B, T r, HV)`` or None, ``g`` of
``(B, T, HV)`` or ``(B, T, HV, K)`` or None, and initial states ``(B, HV, K, V)`` or None. Without ``beta`` it is
linear attention. Results are the outputs and the final states. The kernel saves the states from which the gradient
recomputes its segments.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from householder import _core
from householder.jax import _expressions
from householder.jax._ops.operator import Axes, Function, JaxOperator, ShapeDtype

if TYPE_CHECKING:
    from jax import Array

    from householder._base.types import AnyArray, Keywords


class DeltaRuleParams(NamedTuple):
    """The static arguments of the primitive, which JAX calls its parameters."""

    scale: float
    reflections: int
    normalize: bool


def _results(_: DeltaRuleParams, q: AnyArray, __: AnyArray, v: AnyArray, *___: AnyArray) -> list[ShapeDtype]:
    batch, _, _, keys = q.shape
    o, state = (*q.shape[:2], *v.shape[2:]), (batch, v.shape[2], keys, v.shape[3])
    return [ShapeDtype(shape, q.dtype) for shape in (o, state)]


def _saved(_: DeltaRuleParams, q: AnyArray, k: AnyArray, v: AnyArray, *__: AnyArray) -> list[ShapeDtype]:
    """Return the shape of the states that are saved of each sequence."""
    batch, steps, _, keys = k.shape
    *_, heads, values = v.shape
    count = max(steps - 1, 0) // _core.delta_interval(keys, values)
    return [ShapeDtype((batch, count, heads, keys, values), q.dtype)] if count else []


def _attributes(options: DeltaRuleParams, *operands: AnyArray) -> Keywords:
    g = operands[4]
    flags = {"normalize": np.bool_(options.normalize), "by_channel": np.bool_(g is not None and g.ndim == 4)}
    return {**flags, "scale": np.float64(options.scale), "reflections": np.int64(options.reflections)}


def _expression(options: DeltaRuleParams, *operands: AnyArray) -> tuple[Array, ...]:
    o, last = _expressions.delta_rule(*operands, None, *options)
    return o, last


_axes = Axes((0,) * 6, (0, 0))
_operator = JaxOperator(Function("delta_rule", _axes, _results, _expression, _attributes, _saved, residuals=1))


@partial(jax.jit, static_argnames=("options",))
def delta_rule(options: DeltaRuleParams, *operands: Array | None) -> tuple[Array, Array]:
    """Run the recurrence."""
    o, last = _operator(options, *operands)
    return o, last
