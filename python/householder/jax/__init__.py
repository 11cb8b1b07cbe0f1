"""Reflections for JAX: differentiable functions with native kernels on CPU.

:func:`apply` multiplies by the product of reflections, and :func:`matrix` forms it. :class:`Reflections` is the matrix
as an object. :func:`rnn` runs whole recurrences, and :func:`delta_rule` runs recurrences of reflections that depend on
the data. :func:`linear_attention` is the latter without reflections, and :func:`commit` keeps the accepted tokens of a
draft. They work under ``jax.jit``, ``jax.vmap``, ``jax.grad``, forward mode and ``jax.checkpoint``. On devices other
than the CPU the same mathematics runs in ``jax.numpy``.

:func:`frame` forms the first columns of a product. :func:`factor`, :func:`nearest` and :func:`haar` find reflections of
a given, of the nearest and of a random matrix.
"""

from householder.jax._commit import commit
from householder.jax._delta import delta_rule
from householder.jax._functional import apply, matrix, rnn
from householder.jax._linear_attention import linear_attention
from householder.jax._linear_map import Reflections
from householder.jax._matrices import factor, frame, haar, nearest

__all__ = [
    "Reflections",
    "apply",
    "commit",
    "delta_rule",
    "factor",
    "frame",
    "haar",
    "linear_attention",
    "matrix",
    "nearest",
    "rnn",
]
