"""The operators of ``torch.ops.householder``, called directly as exported programs do, with their own gradients."""

from dataclasses import replace
from unittest import mock

from householder.torch._ops.operator import Operator
from kinds import columns, delta, functions


def call(source):
    """A problem of another kind whose calls go straight to the dispatcher."""
    problem = source.choose(
        (functions.apply, functions.matrix, functions.rnn, columns.apply, columns.sequence, delta.rule)
    )(source)

    save = source.choose((False, True))

    def direct(operator, inputs, options):
        return operator.dispatch(inputs, options, save)

    def ours(tensors):
        with mock.patch.object(Operator, "__call__", direct):
            return problem.ours(tensors)

    return replace(problem, name=f"operator of {problem.name}", ours=ours, transforms=False)
