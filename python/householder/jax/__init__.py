"""Reflections for JAX: differentiable functions with native kernels on CPU.

:func:`apply` and :func:`matrix` are one application and the matrix itself, :func:`rnn` runs whole recurrences, and
:func:`delta_rule` reflections that depend on the data. They work under ``jax.jit``, ``jax.vmap``, ``jax.grad``, forward
mode and ``jax.checkpoint``. On devices other than the CPU the same mathematics runs in ``jax.numpy``.
"""

from householder.jax.delta import delta_rule
from householder.jax.functional import apply, matrix, rnn

__all__ = ["apply", "delta_rule", "matrix", "rnn"]
