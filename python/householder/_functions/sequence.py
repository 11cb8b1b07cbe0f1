"""Whole sequences: ``h_t = phi(W h_{t-1} + V x_t + b)`` forward and backward, one native call each."""

import numpy as np

from householder._base import sequences, validate
from householder._base.batch import sum_to
from householder._base.linear_map import columns_of
from householder._base.sequences import Extent
from householder._base.types import AnyFunction, Array, ArrayLike, Backend, Pull, Sequence, SequenceGradients
from householder._functions.apply import backend_and_array


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
    """Run a recurrence ``h_t = phi(W h_{t-1} + V x_t + b)`` for ``t = 1, .., T``.

    Parameters
    ----------
    u : array, shape (n, m), or Reflections
        Reflections, as in :func:`apply`.
    x : array, shape (T, B, d), (T, d) or (sum(batch_sizes), d)
        Inputs of B sequences, of one sequence, or packed. Without ``input_weight``, V is the identity and ``d = n``.
    h0 : array, shape (B, n) or (n,), optional
        Initial states, or one state for all sequences; zeros if None.
    nonlinearity : str, default "leaky_relu"
        ``phi``, one of the names that the guide to choosing n, m and the method explains. Functions of one real number
        act on the real and imaginary parts of complex states. Others act on complex numbers, or on the pairs
        ``(a_i, a_{i+n/2})`` of real states.
    negative_slope : float
        Slope of the leaky ReLU, at least 0.
    nonlinearity_bias : array, shape (n,) or, for a nonlinearity of pairs, (n / 2,), optional
        The real bias of a modReLU, which changes a modulus r to ``max(r + nonlinearity_bias, 0)``.
    input_weight : array, shape (n, d), optional
        V. The projection of the inputs is then part of the call.
    bias : array, shape (n,), optional
        b, zero if None.
    batch_sizes : sequence of int, optional
        Packs sequences of different lengths as torch's ``PackedSequence`` does: ``x`` has step 1 of all sequences, then
        step 2 of the first ``batch_sizes[1]`` of them, and so on. The sizes never increase.
    reverse : bool
        Run from the last step to the first, ``h_t`` from ``h_{t+1}``; not with ``batch_sizes``.
    method : {"auto", "wy", "dense"}
        The algorithm, as in :func:`apply`.

    Returns
    -------
    h : array, shape (T, B, n), (T, n) or (sum(batch_sizes), n)
        The states ``h_1, .., h_T``, in the layout of x.
    h_last : array, shape (B, n) or (n,)
        A copy of the last state of each sequence; with ``reverse``, the state of the first step.

    Raises
    ------
    TypeError
        An unsupported dtype, or arguments of different dtypes, devices or libraries.
    ValueError
        Shapes that do not fit, ``batch_sizes`` that increase or come with ``reverse``, unknown names, a negative
        slope, or odd n with a paired nonlinearity.

    Examples
    --------
    Without input, a linear recurrence only rotates its initial state:

    >>> import numpy as np, householder as hh
    >>> u = np.random.default_rng(0).standard_normal((4, 2))
    >>> h, h_last = hh.rnn(u, np.zeros((100, 4)), np.ones(4), nonlinearity="identity")
    >>> h.shape, round(float(np.linalg.norm(h_last)), 12)
    ((100, 4), 2.0)

    Eight sequences with inputs of width 3:

    >>> rng = np.random.default_rng(0)
    >>> x, v = rng.standard_normal((50, 8, 3)), rng.standard_normal((4, 3))
    >>> h, h_last = hh.rnn(u, x, input_weight=v, bias=np.zeros(4), nonlinearity="tanh")
    >>> h.shape
    (50, 8, 4)
    """
    u, tau, phases, form, is_adjoint = columns_of(u)
    parameters = input_weight, bias, phases
    options = nonlinearity, negative_slope, nonlinearity_bias, is_adjoint, reverse, method, tau, form
    raw = Sequence._make((u, x, h0, *parameters, batch_sizes, *options))
    backend, sequence, extent = validated(raw)
    h: Array = backend.rnn(sequence, extent.steps, extent.batch)
    return h, _last_states(h, sequence, extent)


def rnn_vjp(
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
) -> tuple[tuple[Array, Array], "SequenceVjp"]:
    """Return the results of :func:`rnn`, with a function that computes gradients.

    The function remembers every argument, so a gradient always belongs to the states that this call returned. Do not
    change an argument in place before the last call of the function. NumPy's states are read-only for the same reason.

    Parameters
    ----------
    u, x : array
        Reflections and inputs. All arguments are as for :func:`rnn`.
    h0, nonlinearity_bias, input_weight, bias : array, optional
        Initial states and parameters.
    nonlinearity : str, default "leaky_relu"
        The function ``phi``.
    negative_slope : float
        Slope of the leaky ReLU.
    batch_sizes : sequence of int, optional
        Packs sequences of different lengths.
    reverse : bool
        Run from the last step to the first.
    method : {"auto", "wy", "dense"}
        The algorithm.

    Returns
    -------
    h, h_last : array
        The states and the last ones, as :func:`rnn` returns them.
    vjp : SequenceVjp
        The function: ``vjp(grad_h, grad_last=None)`` returns the gradients of all array arguments.

    Raises
    ------
    TypeError, ValueError
        As in :func:`rnn`.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> rng = np.random.default_rng(0)
    >>> u, x, h0 = rng.standard_normal((4, 2)), rng.standard_normal((50, 8, 4)), np.zeros(4)
    >>> (h, h_last), vjp = hh.rnn_vjp(u, x, h0, nonlinearity="relu")
    >>> grads = vjp(2 * h)  # the loss is the sum of all h**2
    >>> grads.u.shape, grads.x.shape, grads.h0.shape, grads.bias
    ((4, 2), (50, 8, 4), (4,), None)

    If a loss depends only on the last states, pass only their gradient:

    >>> vjp(grad_last=np.ones((8, 4))).u.shape
    (4, 2)
    """
    u, tau, phases, form, is_adjoint = columns_of(u)
    parameters = input_weight, bias, phases
    options = nonlinearity, negative_slope, nonlinearity_bias, is_adjoint, reverse, method, tau, form
    raw = Sequence._make((u, x, h0, *parameters, batch_sizes, *options))
    return _results_and_vjp(raw, None if h0 is None else np.shape(h0))


def _results_and_vjp(raw: Sequence, h0_shape: tuple[int, ...] | None) -> tuple[tuple[Array, Array], "SequenceVjp"]:
    backend, sequence, extent = validated(raw)
    h, pull = backend.rnn_vjp(sequence, extent.steps, extent.batch)
    last = _last_states(h, sequence, extent)
    return (h, last), SequenceVjp(backend, sequence, extent, h0_shape, pull)


def _vjp_of(sequence: Sequence, h0_shape: tuple[int, ...] | None) -> "SequenceVjp":
    return _results_and_vjp(sequence, h0_shape)[1]


class SequenceVjp:
    """The gradients of a recurrence, a function that :func:`householder.rnn_vjp` returns.

    It can be called repeatedly. A copy, also a pickled one, computes the states again.
    """

    def __init__(
        self,
        backend: Backend,
        sequence: Sequence,
        extent: Extent,
        h0_shape: tuple[int, ...] | None,
        pull: Pull,
    ):
        self._backend, self._sequence, self._pull = backend, sequence, pull
        self._states = (*sequence.x.shape[:-1], len(sequence.u))
        self._last, self._h0 = extent.states, h0_shape

    def __reduce__(self) -> tuple[AnyFunction, tuple[Sequence, tuple[int, ...] | None]]:
        return _vjp_of, (self._sequence, self._h0)

    def __call__(self, grad_h: ArrayLike = None, *, grad_last: ArrayLike = None) -> SequenceGradients:
        """Return a loss's gradients from its gradients for the states, by back-propagation through time.

        ``dL/da_t = phi'(a_t) (dL/dh_t + W* dL/da_{t+1})`` is the only recurrence. The gradients of all parameters
        follow from ``dL/da_t`` and ``h_{t-1}`` of all steps at once.

        Parameters
        ----------
        grad_h : array, optional
            The loss's gradient for ``h``, in its shape.
        grad_last : array, shape (B, n) or, for one sequence, (n,), optional
            The loss's gradient for the last state of each sequence (with ``reverse``, the state of step 1), in addition
            to ``grad_h``.

        Returns
        -------
        SequenceGradients
            Named tuple ``(u, x, h0, input_weight, bias, phases, nonlinearity_bias, tau)`` in the shapes of the
            arguments, None for an argument that was None. Complex gradients are ``dL/dRe + i dL/dIm``.

        Raises
        ------
        TypeError, ValueError
            A gradient does not have the shape or dtype of its states, or none is given.
        """
        if grad_h is None and grad_last is None:
            raise ValueError("grad_h and grad_last are both None, expected at least one gradient")
        grad_h = validate.optional("grad_h", grad_h, self._sequence.u, self._states, self._backend)
        grad_last = validate.optional("grad_last", grad_last, self._sequence.u, self._last, self._backend)
        grads = self._pull(grad_h, grad_last)
        if grads.h0 is not None and self._h0 is not None:
            grads = grads._replace(h0=sum_to(grads.h0.reshape(self._last), self._h0))
        return grads


def validated(raw: Sequence) -> tuple[Backend, Sequence, Extent]:
    """Check and arrange every argument with the backend of u."""
    backend, u = backend_and_array("u", raw.u)
    n, _ = validate.one_matrix(u, "a sequence", raw.form, raw.tau is not None)
    x = backend.operand("x", raw.x, u)
    sizes = None if raw.batch_sizes is None else validate.batch_sizes(raw.batch_sizes)
    width = sequences.inputs(x.shape, n, raw.input_weight is not None, sizes is not None)
    packed = None
    if sizes is not None:
        sequences.rows(x.shape, sum(sizes.tolist()))
        packed = len(sizes), int(sizes[0]) if len(sizes) else 0
    extent = sequences.extent(x.shape, n, packed)
    slope, reverse = sequences.options(raw.nonlinearity, raw.negative_slope, raw.reverse, raw.method, sizes)
    shapes = sequences.parameters(n, width, raw.nonlinearity, raw.nonlinearity_bias, u.dtype.kind == "c")
    sequence = raw._replace(
        u=u,
        x=x,
        h0=_initial_states(raw.h0, u, extent, backend),
        input_weight=validate.optional("input_weight", raw.input_weight, u, shapes.input_weight, backend),
        bias=validate.optional("bias", raw.bias, u, shapes.bias, backend),
        phases=validate.phases(raw.phases, u, n, backend),
        batch_sizes=sizes,
        negative_slope=slope,
        nonlinearity_bias=validate.optional(
            "nonlinearity_bias", raw.nonlinearity_bias, u, shapes.nonlinearity_bias, backend, real=True
        ),
        reverse=reverse,
        tau=validate.tau(raw.tau, u, raw.form, raw.phases, backend),
    )
    return backend, sequence, extent


def _initial_states(h0: ArrayLike, u: Array, extent: Extent, backend: Backend) -> Array | None:
    """Return ``(B, n)`` from either shape."""
    if h0 is None:
        return None
    a: Array = backend.operand("h0", h0, u)
    sequences.initial_state(a.shape, extent)
    states: Array = backend.xp.ascontiguousarray(backend.xp.broadcast_to(a, (extent.batch, len(u))))
    return states


def _last_states(h: Array, sequence: Sequence, extent: Extent) -> Array:
    """Copy the state in which each sequence ends."""
    sizes, last = sequence.batch_sizes, sequence.h0
    if sizes is not None and extent.steps:
        lengths = np.searchsorted(-sizes, -np.arange(extent.batch))  # steps in which a sequence takes part
        last = h[(np.cumsum(sizes) - sizes)[lengths - 1] + np.arange(extent.batch)]
    elif extent.steps:
        last = h[0 if sequence.reverse else -1].copy()
    elif last is None:
        last = h.reshape(0, h.shape[-1]).sum(0, keepdims=True).repeat(extent.batch, 0)
    else:
        last = last.copy()
    ended: Array = last.reshape(extent.states)
    return ended
