"""The operations: each file has one, with its operators of ``torch.ops.householder`` and what runs on which device."""

from householder.torch._ops import apply, convolution, delta, gated_norm, matrix, rnn

OPERATORS = tuple(module.operator for module in (apply, convolution, delta, gated_norm, matrix, rnn))
