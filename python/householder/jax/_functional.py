"""Differentiable functions of reflections and vectors: checks, types and shapes; ``ops`` computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import householder
from householder._base import sequences, spec, validate
from householder._base.docstrings import completed_by
from householder._base.linear_map import columns_of
from householder.jax import _check, _ops

if TYPE_CHECKING:
    from jax import Array

    from householder._base.types import ArrayLike


@completed_by(householder.apply, "Array")
def apply(u: ArrayLike, h: ArrayLike, *, method: str = "auto") -> Array:
    r"""Compute ``c = W h`` for vectors in the last axis of ``h``, without forming ``W``.

    :math:`W = H_n(u_n) \cdots H_{n-m+1}(u_{n-m+1})`, :math:`H(v) = I - 2 v v^* / |v|^2`. Column ``j`` of ``u``
    reflects the entries from ``j`` on. Entries of ``u`` above the diagonal are ignored and have zero gradient. The
    scale of a column has no effect, and a zero column is the identity. For real ``m == n``, the last column is the
    number ``u_1``, which multiplies the last entry of ``h``. :class:`Reflections` describe other columns, phases and
    the adjoint.

    Parameters
    ----------
    u : Array, shape (..., n, m), 1 <= m <= n (m < n if complex), or Reflections
        Reflections; float32, float64, complex64, complex128, or a half type (computed in float32).
    h : Array, shape (..., n)
        Vectors, of the dtype of ``u`` or, with a float32 ``u``, of a half type. Leading axes broadcast:
        ``(..., n, m), (..., n) -> (..., n)``.

    Returns
    -------
    Array, shape (..., n)
        In the dtype of ``h``.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import householder.jax as hj
    >>> u = jnp.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    >>> h = jnp.array([3.0, 4.0, 12.0])
    >>> c = hj.apply(u, h)
    >>> c.round().tolist()
    [12.0, -3.0, -4.0]
    >>> hj.apply(hj.Reflections(u).H, c).round().tolist()
    [3.0, 4.0, 12.0]
    """
    u, tau, phases, form, is_adjoint = columns_of(u)
    u, compute = _check.first("u", u)
    h = _check.like("h", h, compute, "u")
    n, tau, phases = _check.columns(u, compute, form, tau, phases, h)
    validate.vectors("h", h, n, u)
    validate.one_of("method", method, spec.METHODS)
    options = _ops.apply.ApplyParams(is_adjoint, method, form)
    c = _ops.apply.apply(_check.cast(u, compute), _check.cast(h, compute), tau, phases, options)
    return _check.cast(c, h.dtype)


@completed_by(householder.matrix, "Array")
def matrix(u: ArrayLike) -> Array:
    r"""Form :math:`W = H_n(u_n) \cdots H_{n-m+1}(u_{n-m+1})`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import householder.jax as hj
    >>> hj.matrix(jnp.array([[1.0], [1.0]])).round().tolist()
    [[0.0, -1.0], [-1.0, 0.0]]
    """
    u, tau, phases, form, is_adjoint = columns_of(u)
    u, compute = _check.first("u", u)
    _, tau, phases = _check.columns(u, compute, form, tau, phases)
    w = _check.cast(_ops.matrix.matrix(_check.cast(u, compute), phases, tau, form), u.dtype)
    return w.swapaxes(-1, -2).conj() if is_adjoint else w


@completed_by(householder.rnn, "Array")
def rnn(
    u: ArrayLike,
    x: ArrayLike,
    h0: ArrayLike = None,
    *,
    nonlinearity: str = "leaky_relu",
    negative_slope: float = 0.1,
    nonlinearity_bias: ArrayLike = None,
    input_weight: ArrayLike = None,
    bias: ArrayLike = None,
    batch_sizes: ArrayLike = None,
    reverse: bool = False,
    method: str = "auto",
) -> tuple[Array, Array]:
    r"""Run :math:`h_t = \phi(W h_{t-1} + V x_t + b)` over whole sequences in one native call.

    ``jax.vmap`` over ``x`` and ``h0`` is one call with more sequences; over ``u`` it is one call with more matrices.

    Parameters
    ----------
    batch_sizes : sequence of int, length T, optional
        Sequences of different lengths, packed as torch's ``PackedSequence`` packs them. The numbers must be known when
        the function is traced.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import householder.jax as hj
    >>> u, x = jnp.array([[1.0], [1.0]]), jnp.array([[1.0, 2.0], [0.0, 0.0]])
    >>> h, h_last = hj.rnn(u, x, nonlinearity="identity")
    >>> h.round().tolist()
    [[1.0, 2.0], [-2.0, -1.0]]
    """
    u, tau, phases, form, is_adjoint = columns_of(u)
    u, compute = _check.first("u", u)
    validate.single(u, "rnn")
    n, tau, phases = _check.columns(u, compute, form, tau, phases)
    x = _check.like("x", x, compute, "u")
    width = sequences.inputs(x.shape, n, input_weight is not None, batch_sizes is not None)
    lengths, packed = (), None
    if batch_sizes is not None:
        lengths = tuple(validate.batch_sizes(batch_sizes).tolist())
        sequences.rows(x.shape, sum(lengths))
        packed = len(lengths), lengths[0] if lengths else 0
        if not lengths:
            x = x.reshape(0, 0, width)  # no steps of no sequences
    slope, reverse = sequences.options(nonlinearity, negative_slope, reverse, method, batch_sizes)
    shapes = sequences.parameters(n, width, nonlinearity, nonlinearity_bias, compute.kind == "c")
    if h0 is not None:
        h0 = _check.like("h0", h0, compute, "u")
        sequences.initial_state(h0.shape, sequences.extent(x.shape, n, packed))
        h0 = _check.cast(h0, compute)
    operands = (
        _check.cast(u, compute),
        _check.cast(x, compute),
        h0,
        _check.optional("input_weight", input_weight, compute, shapes.input_weight),
        _check.optional("bias", bias, compute, shapes.bias),
        phases,
        _check.optional("nonlinearity_bias", nonlinearity_bias, np.finfo(compute).dtype, shapes.nonlinearity_bias),
        tau,
    )
    params = _ops.rnn.RnnParams(nonlinearity, slope, is_adjoint, reverse, form, method, lengths)
    h, last = _ops.rnn.rnn(params, *operands)
    if packed is not None and not lengths:
        h = h.reshape(0, n)
    return _check.cast(h, x.dtype), _check.cast(last, x.dtype)
