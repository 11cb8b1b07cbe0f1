"""Differentiable functions of reflections and vectors: checks, types and layouts; ``_ops`` computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from householder import _spec, _validate
from householder._batch import arrange
from householder._linear_map import LinearMap, columns_of, refuse_twice
from householder.torch import _check, _ops
from householder.torch._dtypes import HALF_TYPES
from householder.torch._expressions import turn
from householder.torch._ops.rnn import Inputs, Options, reads_halves


def apply(
    u: Tensor,
    h: Tensor,
    *,
    tau: Tensor | None = None,
    shape: str = "trapezoidal",
    phases: Tensor | None = None,
    transpose: bool = False,
    method: str = "auto",
) -> Tensor:
    r"""Compute ``c = W h``, or ``W* h``, for vectors in the last axis of ``h``, without forming ``W``.

    :math:`W = H_n(u_n) \cdots H_{n-m+1}(u_{n-m+1})`, :math:`H(v) = I - 2 v v^* / |v|^2`. Column ``j`` of ``u``
    reflects the entries from ``j`` on. Entries of ``u`` above the diagonal are ignored and have zero gradient. The
    scale of a column has no effect, and a zero column is the identity. For real ``m == n``, the last column is the
    number ``u_1``, which multiplies the last entry of ``h``.

    Parameters
    ----------
    u : Tensor, shape (..., n, m), 1 <= m <= n (m < n if complex), or Reflections
        Reflections; float32, float64, complex64, complex128, or a half type (computed in float32).
    h : Tensor, shape (..., n)
        Vectors, of the dtype of ``u`` or, with a float32 ``u``, of a half type. Leading axes broadcast:
        ``(..., n, m), (..., n) -> (..., n)``.
    tau : Tensor, shape (..., m), optional
        One number per column: :math:`H(v) = I - \tau v v^*` in place of :math:`2 / |v|^2`. 0 is the identity.
    shape : {"trapezoidal", "full"}
        "full": columns have n entries each, ``m`` is any number, and there is no ``u_1``. With ``tau``, trapezoidal
        columns are in LAPACK's format: the diagonal is one, and the diagonal of ``u`` is ignored.
        :func:`torch.geqrf` returns such a ``u``.
    phases : Tensor, shape (n,), optional
        Real ``theta``, for a complex ``u`` without ``tau``: ``W`` is multiplied by ``diag(exp(i theta))`` from the
        right.
    transpose : bool
        Apply the adjoint ``W*``. It is the inverse unless ``m == n`` and ``|u_1| != 1``, or ``tau`` is not a
        reflection's.
    method : {"auto", "reflections", "wy", "dense"}
        One reflection after the other, the compact WY form, or ``W`` as a matrix. "auto" takes the fastest. With
        ``tau`` it never forms ``W``, because the gradient of ``u`` would lose digits if ``tau`` is far from
        ``2 / |v|^2``.

    Returns
    -------
    Tensor, shape (..., n)
        In the dtype of ``h``.

    Raises
    ------
    TypeError
        Not tensors, or their dtypes or devices differ.
    ValueError
        A shape or a name is not as expected.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> u = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    >>> h = torch.tensor([3.0, 4.0, 12.0], dtype=torch.float64)
    >>> c = ht.apply(u, h)
    >>> c.round()
    tensor([12., -3., -4.], dtype=torch.float64)
    >>> ht.apply(u, c, transpose=True).round()
    tensor([ 3.,  4., 12.], dtype=torch.float64)
    """
    if phases is None and getattr(u, "ndim", 0) == 2:
        done: Tensor | None = _ops.apply.operator.attempt(
            _ops.apply.Inputs(u, h, tau), _ops.apply.Options(transpose, method, shape)
        )
        if done is not None:
            return done
    if isinstance(u, LinearMap):
        refuse_twice(tau, phases, shape)
        applied: Tensor = u.apply(h, transpose, method)
        return applied
    _validate.one_of("method", method, _spec.METHODS)
    transpose = _validate.flag("transpose", transpose)
    compute = _check.operands(u, h=h, tau=tau)
    if h is None:
        _check.tensor("h", h)
    n, _ = _check.columns(u, shape, tau, phases, h)
    if phases is not None:
        _check.phases(phases, u, n)
    _validate.vectors("h", h, n, u)
    kind = h.dtype
    if u.dtype is not compute or kind is not compute:
        u, h = _check.cast(u, compute), _check.cast(h, compute)
        tau = None if tau is None else _check.cast(tau, compute)
    if phases is not None and not transpose:
        h = turn(h, phases)
    c: Tensor
    if u.dim() != 2 and u.shape[:-2] != h.shape[:-1]:
        c = _apply_broadcast(u, h, tau, shape, transpose, method)
    else:
        c = product(u, h, tau, shape, transpose, method)
    if phases is not None and transpose:
        c = turn(c, -phases)
    return c if kind is compute else c.to(kind)


def product(
    u: Tensor, h: Tensor, tau: Tensor | None, shape: str, transpose: bool = False, method: str = "auto"
) -> Tensor:
    """Compute ``W h`` for ``u (*c, n, m)``, ``h (*c, *r, n)`` and ``tau (*c, m)``, which were checked."""
    options = _ops.apply.Options(transpose, method, shape)
    c: Tensor = _ops.apply.operator(_ops.apply.Inputs(u, h, tau), options)
    return c


def _apply_broadcast(u: Tensor, h: Tensor, tau: Tensor | None, shape: str, transpose: bool, method: str) -> Tensor:
    """Bring the axes along which ``u`` varies to the front; along the others, vectors share a matrix."""
    batch = arrange(tuple(u.shape), tuple(h.shape))
    u = u.reshape(*(batch.shape[axis] for axis in batch.order[: batch.own]), *u.shape[-2:])
    tau = None if tau is None else tau.reshape(u.shape[:-2] + u.shape[-1:])
    h = h.expand(*batch.shape, h.shape[-1]).permute(*batch.order, -1)
    return product(u, h, tau, shape, transpose, method).permute(*batch.back, -1)


def matrix(u: Tensor, phases: Tensor | None = None, *, tau: Tensor | None = None, shape: str = "trapezoidal") -> Tensor:
    r"""Form :math:`W = H_n(u_n) \cdots H_{n-m+1}(u_{n-m+1})`, times ``diag(exp(i phases))``.

    Parameters
    ----------
    u : Tensor, shape (..., n, m), 1 <= m <= n (m < n if complex), or Reflections
        Reflections, as in :func:`apply`.
    phases : Tensor, shape (n,) or (..., n), optional
        Real ``theta`` for a complex ``u``: shared by all matrices, or one row per matrix.
    tau : Tensor, shape (..., m), optional
    shape : {"trapezoidal", "full"}
        As in :func:`apply`.

    Returns
    -------
    Tensor, shape (..., n, n)
        Orthogonal or unitary, unless ``m == n`` and ``|u_1| != 1``, or ``tau`` is not a reflection's.

    Raises
    ------
    TypeError
        Not a tensor, or of an unsupported dtype.
    ValueError
        A shape is not as expected.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> ht.matrix(torch.tensor([[1.0], [1.0]], dtype=torch.float64)).round(decimals=9)
    tensor([[ 0., -1.],
            [-1.,  0.]], dtype=torch.float64)
    """
    is_default = _validate.is_default(tau, shape)
    if is_default and phases is None:
        done: Tensor | None = _ops.matrix.operator.attempt(_ops.matrix.Inputs(u), _ops.matrix.Options())
        if done is not None:
            return done
    if isinstance(u, LinearMap):
        refuse_twice(tau, phases, shape)
        formed: Tensor = u.matrix()
        return formed
    compute = _check.operands(u, tau=tau)
    n, _ = _check.columns(u, shape, tau, phases)
    if phases is not None:
        _check.matrix_phases(phases, u, n)
    if is_default:
        w = _ops.matrix.operator(_ops.matrix.Inputs(_check.cast(u, compute)), _ops.matrix.Options())
    else:
        tau = None if tau is None else _check.cast(tau, compute)
        w = product(_check.cast(u, compute), unit_vectors(u, n, compute), tau, shape).mT
    if phases is not None:
        w = turn(w, phases.unsqueeze(-2))
    return _check.cast(w, u.dtype)


def rnn(
    u: Tensor,
    x: Tensor,
    h0: Tensor | None = None,
    *,
    nonlinearity: str = "leaky_relu",
    negative_slope: float = 0.1,
    nonlinearity_bias: Tensor | None = None,
    input_weight: Tensor | None = None,
    bias: Tensor | None = None,
    phases: Tensor | None = None,
    tau: Tensor | None = None,
    shape: str = "trapezoidal",
    batch_sizes: Tensor | None = None,
    transpose: bool = False,
    reverse: bool = False,
    method: str = "auto",
) -> tuple[Tensor, Tensor]:
    r"""Run :math:`h_t = \phi(W h_{t-1} + V x_t + b)` over whole sequences in one native call.

    ``torch.func.vmap`` over ``u`` and any other tensors runs an ensemble of recurrences, also in one call.

    Parameters
    ----------
    u : Tensor, shape (n, m), 1 <= m <= n (m < n if complex), or Reflections
        Reflections of ``W``, as in :func:`apply`.
    x : Tensor, shape (T, B, d), (T, d) or, with ``batch_sizes``, (rows, d)
        Inputs; ``d = n`` without ``input_weight``.
    h0 : Tensor, shape (B, n) or (n,), optional
        Initial state, ``(n,)`` is shared by all sequences; zeros by default.
    nonlinearity : str, default "leaky_relu"
        The function :math:`\phi`, one of the names that the guide to choosing n, m and the method explains. Functions
        of one real number act on the real and imaginary parts of complex states. Others act on complex numbers, or on
        the pairs ``(i, i + n/2)`` of real states.
    negative_slope : float
        Slope of the leaky ReLU, at least 0.
    nonlinearity_bias : Tensor, shape (n,) or, for a nonlinearity of pairs, (n/2,), optional
        The real bias of a modReLU; no other nonlinearity takes it.
    input_weight : Tensor, shape (n, d), optional
        ``V``, the identity by default.
    bias : Tensor, shape (n,), optional
        ``b``, zero by default.
    phases : Tensor, shape (n,), optional
        Real ``theta``, for a complex ``u``.
    tau : Tensor, shape (m,), optional
    shape : {"trapezoidal", "full"}
        As in :func:`apply`.
    batch_sizes : Tensor, shape (T,), int64 on the CPU, optional
        Sequences of different lengths, packed as in :class:`torch.nn.utils.rnn.PackedSequence`.
    transpose : bool
        Use ``W*`` in place of ``W``.
    reverse : bool
        Run from the last step to the first, ``h_t`` from ``h_{t+1}``; not with ``batch_sizes``.
    method : {"auto", "wy", "dense"}
        The algorithm, as in :func:`apply`.

    Returns
    -------
    h : Tensor, shape (T, B, n), (T, n) or (rows, n)
        All states, in the dtype of ``x``.
    h_last : Tensor, shape (B, n) or (n,)
        A copy of the last state of each sequence; with ``reverse``, the state of the first step. A loss of only
        this state needs no gradient of the size of ``h``.

    Raises
    ------
    TypeError
        Not tensors, or their dtypes or devices differ.
    ValueError
        A shape, a name or a number is not as expected.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> u = torch.tensor([[1.0], [1.0]], dtype=torch.float64)
    >>> x = torch.tensor([[1.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    >>> h, h_last = ht.rnn(u, x, nonlinearity="identity")
    >>> h
    tensor([[ 1.,  2.],
            [-2., -1.]], dtype=torch.float64)
    """
    u, tau, phases, shape, transpose = columns_of(u, tau, phases, shape, transpose)
    inputs = Inputs(u, x, h0, input_weight, bias, phases, nonlinearity_bias, tau, batch_sizes)
    return sequence(inputs, Options(nonlinearity, negative_slope, transpose, reverse, shape, method))


def sequence(inputs: Inputs[Any], options: Options) -> tuple[Tensor, Tensor]:
    """Check and convert what the operation ``rnn`` takes, and compute."""
    u, x, h0, input_weight, bias, phases, nonlinearity_bias, tau, batch_sizes = inputs
    nonlinearity, negative_slope, transpose, reverse, shape, method = options
    _validate.one_of("method", method, _spec.SEQUENCE_METHODS)
    transpose, reverse = _validate.flag("transpose", transpose), _validate.direction(reverse, batch_sizes)
    _validate.one_of("nonlinearity", nonlinearity, _spec.NONLINEARITIES)
    options = Options(nonlinearity, _validate.slope(negative_slope), transpose, reverse, shape, method)
    compute = _check.operands(u, x=x, h0=h0, input_weight=input_weight, bias=bias, tau=tau)
    _check.tensor("x", x)
    n, _ = _check.columns(u, shape, tau, phases)
    if u.dim() != 2:
        raise ValueError(f"u has shape {tuple(u.shape)}, but rnn takes one matrix: expected (n, m)")
    if phases is not None:
        _check.phases(phases, u, n)
    _check.nonlinearity_bias(nonlinearity, nonlinearity_bias, u, n)
    _check.shape("bias", bias, (n,))

    dims = x.dim()
    d = n if input_weight is None else x.shape[-1] if dims else 0
    if dims not in ((2, 3) if batch_sizes is None else (2,)) or x.shape[-1] != d:
        expected = f"(T, B, {d}) or (T, {d})" if batch_sizes is None else f"(rows, {d})"
        raise ValueError(f"x has shape {tuple(x.shape)}, expected {expected} to match n = {n} of u")
    _check.shape("input_weight", input_weight, (n, d))

    unbatched = batch_sizes is None and dims == 2
    sequences = x.unsqueeze(1) if unbatched else x
    batch = sequences.shape[1] if batch_sizes is None else _check.batch_sizes(batch_sizes, len(x))
    if h0 is not None:
        if unbatched or h0.shape != (batch, n):
            if h0.shape != (n,):
                expected = f"({n},)" if unbatched else f"({batch}, {n}) or ({n},)"
                raise ValueError(f"h0 has shape {tuple(h0.shape)}, expected {expected}")
            h0 = h0.expand(batch, n).contiguous()
    elif batch_sizes is not None:
        h0 = x.new_zeros(batch, n)

    states = x.dtype if reads_halves(x) else compute
    types = (compute, states, states, compute, compute)
    given = zip((u, sequences, h0, input_weight, bias), types, strict=True)
    cast = [None if t is None else _check.cast(t, kind) for t, kind in given]
    if nonlinearity_bias is not None and u.dtype in HALF_TYPES:
        nonlinearity_bias = nonlinearity_bias.to(compute)
    tau = None if tau is None else _check.cast(tau, compute)
    h, last = _ops.rnn.operator(Inputs._make([*cast, phases, nonlinearity_bias, tau, batch_sizes]), options)
    if unbatched:
        h, last = h.squeeze(1), last.squeeze(0)
    return _check.cast(h, x.dtype), _check.cast(last, x.dtype)


def unit_vectors(u: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return the first ``count`` unit vectors for each matrix of ``u (..., n, m)``, one a row."""
    n = u.shape[-2]
    return torch.eye(count, n, dtype=dtype, device=u.device).expand(*u.shape[:-2], count, n)
