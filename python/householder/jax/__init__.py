"""Reflections for JAX: differentiable functions with native kernels on CPU.

:func:`apply` multiplies by the product of reflections, and :func:`matrix` forms it. :func:`rnn` runs whole recurrences,
and :func:`delta_rule` runs recurrences of reflections that depend on the data. They work under ``jax.jit``,
``jax.vmap``, ``jax.grad``, forward mode and ``jax.checkpoint``. On devices other than the CPU the same mathematics runs
in ``jax.numpy``.
"""

from householder.jax.delta import delta_rule
from householder.jax.functional import apply, matrix, rnn

__all__ = ["apply", "delta_rule", "matrix", "rnn"]
