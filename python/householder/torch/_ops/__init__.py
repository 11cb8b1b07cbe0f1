"""The operations: each file has one, as a class that says what it is, and its operator, which can be called."""

from householder.torch._ops import apply, convolution, delta, gated_norm, matrix, rnn

OPERATORS = tuple(module.operator for module in (apply, convolution, delta, gated_norm, matrix, rnn))
