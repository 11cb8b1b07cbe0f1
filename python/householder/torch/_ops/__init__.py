"""The operations: each file has one, with its operators of ``torch.ops.householder`` and what runs on which device."""

from householder.torch._ops import apply, delta, matrix, rnn

OPERATORS = apply.operator, matrix.operator, rnn.operator, delta.operator
