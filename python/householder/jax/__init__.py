"""Reflections for JAX: differentiable functions with native kernels on CPU."""
