"""One step after the other, for inputs that arrive one at a time."""

import copy

import numpy as np

from householder import _core
from householder._base import cpu
from householder._base.linear_map import columns_of
from householder._base.types import Array, ArrayLike, Sequence
from householder._functions.sequence import validated


class Recurrence:
    """A recurrence ``h_t = phi(W h_{t-1} + V x_t + b)`` for inputs that arrive one at a time.

    It copies its parameters and prepares the weights of a step once, at the first step. Arguments and states are those
    of :func:`rnn`, up to rounding. It may itself be copied and pickled.

    Parameters
    ----------
    u : array, shape (n, m), or Reflections
        Reflections, as in :func:`apply`.
    nonlinearity : str, default "leaky_relu"
    negative_slope : float
    nonlinearity_bias : array, shape (n,) or, for a nonlinearity of pairs, (n / 2,), optional
    input_weight : array, shape (n, d), optional
        V; without it, the identity.
    bias : array, shape (n,), optional
    method : {"auto", "wy", "dense"}
        As in :func:`rnn`.

    Raises
    ------
    TypeError
        Another dtype than float32, float64, complex64 and complex128, arguments of different dtypes, or arrays that are
        not NumPy's.
    ValueError
        Shapes that do not fit, unknown names, a negative slope, or odd n with a paired nonlinearity.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> rng = np.random.default_rng(0)
    >>> recurrence = hh.Recurrence(rng.standard_normal((64, 8)), input_weight=rng.standard_normal((64, 2)))
    >>> h = np.zeros(64)
    >>> for x in rng.standard_normal((100, 2)):
    ...     h = recurrence.step(h, x)
    >>> h.shape
    (64,)
    """

    def __init__(
        self,
        u: ArrayLike,
        *,
        nonlinearity: str = "leaky_relu",
        negative_slope: float = 0.1,
        nonlinearity_bias: ArrayLike = None,
        input_weight: ArrayLike = None,
        bias: ArrayLike = None,
        method: str = "auto",
    ) -> None:
        u, tau, phases, form, is_adjoint = columns_of(u)
        u = cpu.array("u", u)
        width = u.shape[:1]
        if input_weight is not None:
            input_weight = cpu.operand("input_weight", input_weight, u)
            width = input_weight.shape[-1:]
            if width in ((), (0,)):
                raise ValueError(f"input_weight has shape {input_weight.shape}, expected (n, d) with d of at least 1")
        x = np.empty((0, 1, *width), u.dtype)
        parameters = input_weight, bias, phases
        options = nonlinearity, negative_slope, nonlinearity_bias, is_adjoint, False, method, tau, form
        _, sequence, _ = validated(Sequence._make((u, x, None, *parameters, None, *options)))
        self.__setstate__(copy.deepcopy(sequence))

    def __getstate__(self) -> Sequence:
        return self._parameters

    def __setstate__(self, parameters: Sequence) -> None:
        self._parameters = parameters
        self._dtype = parameters.u.dtype
        self._native = _core.Recurrence(*cpu.native_arguments(parameters, 0, 1))

    def step(self, h: Array, x: Array) -> Array:
        """Return the state that follows ``h`` with the input ``x``.

        Parameters
        ----------
        h : array, shape (B, n) or (n,)
            States of B sequences, or of one.
        x : array, shape (B, d) or (d,)
            Their inputs, of the dtype of u.

        Returns
        -------
        array, shape (B, n) or (n,)

        Raises
        ------
        TypeError, ValueError
            Another dtype, or shapes that do not fit.
        """
        h = cpu.array("h", h, self._dtype)
        following = np.empty(h.shape, self._dtype)
        self._native.step(cpu.array("x", x, self._dtype), h, following)
        return following
