"""Operators: native kernels on CPU, expressions elsewhere. They trust their arguments."""

from householder.jax.ops import _apply, _delta, _matrix, _rnn, _targets

_targets.register()

ApplyOptions, apply = _apply.Options, _apply.apply
DeltaOptions, delta_rule = _delta.Options, _delta.delta_rule
RnnOptions, rnn = _rnn.Options, _rnn.rnn
matrix = _matrix.matrix

__all__ = ["ApplyOptions", "DeltaOptions", "RnnOptions", "apply", "delta_rule", "matrix", "rnn"]
