"""The operator ``delta_rule``: a product of reflections that depends on the data, in one native call.

Operands are ``q (B, T, H, K)``, ``k (B, T r, H, K)``, ``v (B, T r, HV, V)``, ``beta (B, T r, HV)`` or None, ``g`` of
``(B, T, HV)`` or ``(B, T, HV, K)`` or None, and initial states ``(B, HV, K, V)`` or None. Without ``beta`` it is
linear attention. Results are the outputs and the final states. The kernel keeps the states from which the gradient
recomputes its segments.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from householder import _core
from householder.jax import _expressions
from householder.jax._ops.operator import Axes, Operator, Shape

if TYPE_CHECKING:
    from jax import Array


class Options(NamedTuple):
    """How to run."""

    scale: float
    reflections: int
    normalize: bool


class DeltaRule:
    """``S_t = (I - b_t k_t k_t') Diag(exp g_t) S_{t-1} + b_t k_t v_t'``, ``o_t = scale S_t' q_t``."""

    name = "delta_rule"
    axes = Axes((0,) * 6, (0, 0))
    keeps_first = False
    residuals = 1

    def results(self, options: Options, q: Any, k: Any, v: Any, *others: Any) -> list[Shape]:  # noqa: ARG002
        """Return the shapes of the results."""
        batch, _, _, keys = q.shape
        o, state = (*q.shape[:2], *v.shape[2:]), (batch, v.shape[2], keys, v.shape[3])
        return [Shape(shape, q.dtype) for shape in (o, state)]

    def kept(self, options: Options, q: Any, k: Any, v: Any, *others: Any) -> list[Shape]:  # noqa: ARG002
        """Return the shape of the states that are kept of each sequence."""
        (batch, steps, _, keys), (_, _, heads, values) = k.shape, v.shape
        count = max(steps - 1, 0) // _core.delta_interval(keys, values)
        return [Shape((batch, count, heads, keys, values), q.dtype)] if count else []

    def attributes(self, options: Options, *operands: Any) -> dict[str, Any]:
        """Return the options as the kernels read them."""
        g = operands[4]
        flags = {"normalize": np.bool_(options.normalize), "by_channel": np.bool_(g is not None and g.ndim == 4)}
        return {**flags, "scale": np.float64(options.scale), "reflections": np.int64(options.reflections)}

    def expression(self, options: Options, *operands: Any) -> tuple[Array, ...]:
        """Compute the results in ``jax.numpy``."""
        arguments: list[Any] = [*operands, *options]
        return _expressions.delta_rule(*arguments)


_operator = Operator(DeltaRule())


@partial(jax.jit, static_argnames=("options",))
def delta_rule(options: Options, *operands: Array | None) -> tuple[Array, Array]:
    """Run the recurrence."""
    o, last = _operator(options, *operands)
    return o, last
