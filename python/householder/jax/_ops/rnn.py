"""The operator ``rnn``: whole sequences in one native call.

Operands are ``u (count, n, m)``, ``x (count, T, B, d)`` and, or None, ``h0 (count, B, n)``,
``input_weight (count, n, d)``, ``bias (count, n)``, ``phases (count, n)``, modReLU's bias and ``tau (count, m)``.
Results are all states ``(count, T, B, n)`` and the last ones ``(count, B, n)``. The kernel saves a tape for the
gradient, ``(count, T, B, width)``. With batch sizes, rows of packed sequences replace the axes T and B.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from householder import _core
from householder.jax import _expressions
from householder.jax._ops.operator import Axes, Function, JaxOperator, ShapeDtype

if TYPE_CHECKING:
    from jax import Array

    from householder._base.types import AnyArray, Keywords


class RnnParams(NamedTuple):
    """The static arguments of the primitive, which JAX calls its parameters."""

    nonlinearity: str
    negative_slope: float
    transpose: bool
    reverse: bool
    form: str
    method: str
    batch_sizes: tuple[int, ...]
    """Numbers of sequences in each step; empty for sequences of one length."""


def _results(options: RnnParams, u: AnyArray, x: AnyArray, *_: AnyArray) -> list[ShapeDtype]:
    batch = options.batch_sizes[0] if options.batch_sizes else x.shape[2]
    count, n, _ = u.shape
    return [ShapeDtype(shape, x.dtype) for shape in ((*x.shape[:-1], n), (count, batch, n))]


def _saved(options: RnnParams, u: AnyArray, x: AnyArray, *others: AnyArray) -> list[ShapeDtype]:
    """Return the shape of the tape."""
    (_, n, m), states = u.shape, x.shape[:-1]
    has_phases, has_tau = others[3] is not None, others[5] is not None
    name, rows = np.dtype(x.dtype).name, prod(states[1:])
    width = _core.rnn_tape_width(name, n, m, rows, has_phases, has_tau, options.nonlinearity, options.method)
    return [ShapeDtype((*states, width), x.dtype)] if width else []


def _attributes(options: RnnParams, *_: AnyArray) -> Keywords:
    sizes = np.array(options.batch_sizes, np.int64)
    numbers = {"negative_slope": np.float64(options.negative_slope), "batch_sizes": sizes}
    flags = {"transpose": np.bool_(options.transpose), "reverse": np.bool_(options.reverse)}
    names = {"nonlinearity": options.nonlinearity, "form": options.form, "method": options.method}
    return {**numbers, **flags, **names}


def _expression(options: RnnParams, u: AnyArray, x: AnyArray, h0: AnyArray, *others: AnyArray) -> tuple[Array, ...]:
    sizes, phi = options.batch_sizes, options[: RnnParams._fields.index("method")]
    if sizes and h0 is None:
        h0 = jnp.zeros((u.shape[0], sizes[0], u.shape[1]), x.dtype)
    h, last = _expressions.rnn(u, x, h0, *others, np.array(sizes) if sizes else None, *phi)
    return h, last


def _operator(axes: Axes) -> JaxOperator:
    return JaxOperator(Function("rnn", axes, _results, _expression, _attributes, _saved, saves_first=True, residuals=2))


_uniform = _operator(Axes((None, 2, 1, None, None, None, None, None), (2, 1)))
_packed = _operator(Axes((None,) * 8, (0, 0)))  # a map adds problems: rows of packed sequences have an order


@partial(jax.jit, static_argnames=("options",))
def rnn(options: RnnParams, u: Array, x: Array, h0: Array | None, *others: Array | None) -> tuple[Array, Array]:
    """Run the sequences of one matrix, ``x (T, B, d)``, ``(T, d)`` or, with batch sizes, ``(rows, d)``.

    ``h0`` may be one state for all sequences.
    """
    sizes = options.batch_sizes
    unbatched = x.ndim == 2 and not sizes
    sequences = x[:, None] if unbatched else x
    if h0 is not None:
        h0 = jnp.broadcast_to(h0, (sizes[0] if sizes else sequences.shape[1], u.shape[0]))
    operator = _packed if sizes else _uniform
    h, last = operator(options, *(None if a is None else a[None] for a in (u, sequences, h0, *others)))
    return (h[0, :, 0], last[0, 0]) if unbatched else (h[0], last[0])
