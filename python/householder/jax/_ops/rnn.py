"""The operator ``rnn``: whole sequences in one native call.

Operands are ``u (count, n, m)``, ``x (count, T, B, d)`` and, or None, ``h0 (count, B, n)``,
``input_weight (count, n, d)``, ``bias (count, n)``, ``phases (count, n)``, modReLU's bias and ``tau (count, m)``.
Results are all states ``(count, T, B, n)`` and the last ones ``(count, B, n)``. The kernel keeps a tape for the
gradient, ``(count, T, B, width)``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from householder import _core
from householder.jax import _expressions
from householder.jax._ops.operator import Axes, Function, Operator, Shape

if TYPE_CHECKING:
    from jax import Array


class Options(NamedTuple):
    """How to run."""

    nonlinearity: str
    negative_slope: float
    transpose: bool
    reverse: bool
    shape: str
    method: str


def _results(_: Options, u: Any, x: Any, *__: Any) -> list[Shape]:
    (count, n, _), (_, _, batch, _) = u.shape, x.shape
    h, last = (*x.shape[:-1], n), (count, batch, n)
    return [Shape(shape, x.dtype) for shape in (h, last)]


def _kept(options: Options, u: Any, x: Any, *others: Any) -> list[Shape]:
    """Return the shape of the tape."""
    (_, n, m), (count, steps, batch, _) = u.shape, x.shape
    has_phases, has_tau = others[3] is not None, others[5] is not None
    name, method = np.dtype(x.dtype).name, options.method
    width = _core.rnn_tape_width(name, n, m, steps * batch, has_phases, has_tau, options.nonlinearity, method)
    return [Shape((count, steps, batch, width), x.dtype)] if width else []


def _attributes(options: Options, *_: Any) -> dict[str, Any]:
    flags = {"transpose": np.bool_(options.transpose), "reverse": np.bool_(options.reverse)}
    names = {"nonlinearity": options.nonlinearity, "shape": options.shape, "method": options.method}
    return {**flags, **names, "negative_slope": np.float64(options.negative_slope)}


def _expression(options: Options, *operands: Any) -> tuple[Array, ...]:
    h, last = _expressions.rnn(*operands, None, *options[:-1])
    return h, last


_axes = Axes((None, 2, 1, None, None, None, None, None), (2, 1))
_operator = Operator(Function("rnn", _axes, _results, _expression, _attributes, _kept, keeps_first=True, residuals=2))


@partial(jax.jit, static_argnames=("options",))
def rnn(options: Options, u: Array, x: Array, h0: Array | None, *others: Array | None) -> tuple[Array, Array]:
    """Run the sequences of one matrix, ``x (T, B, d)`` or ``(T, d)``; ``h0`` may be one state for all sequences."""
    sequences = x if x.ndim == 3 else x[:, None]
    if h0 is not None:
        h0 = jnp.broadcast_to(h0, (sequences.shape[1], u.shape[0]))
    h, last = _operator(options, *(None if a is None else a[None] for a in (u, sequences, h0, *others)))
    return (h[0], last[0]) if x.ndim == 3 else (h[0, :, 0], last[0, 0])
