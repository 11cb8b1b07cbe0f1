"""Other routes to the same results: operators called directly, and the expressions of devices without kernels."""

from dataclasses import replace
from unittest import mock

from householder.torch._ops import operator
from householder.torch._ops.operator import Operator
from kinds import columns, delta, functions

KINDS = (functions.apply, functions.matrix, functions.rnn, columns.apply, columns.sequence, delta.rule)
OF_DELTA = (delta.rule, delta.decoding, delta.drafts)


def without_kernels(source):
    """A problem computed as on a device without kernels, where gradients of the delta rule are in closed form."""
    problem = source.choose((*KINDS, *OF_DELTA))(source)

    def ours(tensors):
        with (
            mock.patch.object(operator, "lacks_kernel", return_value=True),
            mock.patch.object(Operator, "attempt", return_value=None),
        ):
            return problem.ours(tensors)

    return replace(problem, name=f"{problem.name} without kernels", ours=ours, compiles=False)


def call(source):
    """A problem of another kind whose calls go straight to the dispatcher, as those of exported programs do."""
    problem = source.choose(KINDS)(source)

    save = source.choose((False, True))

    def direct(operator, inputs, options):
        return operator.dispatch(inputs, options, save)

    def ours(tensors):
        with mock.patch.object(Operator, "__call__", direct):
            return problem.ours(tensors)

    return replace(problem, name=f"operator of {problem.name}", ours=ours, transforms=False)
