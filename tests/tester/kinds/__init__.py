"""The kinds of cases, each with how often it is drawn."""

from collections.abc import Callable
from typing import Any, NamedTuple

from kinds import (
    accelerated,
    arrays,
    columns,
    delta,
    functions,
    groups,
    jax_functions,
    layers,
    operators,
    replacements,
)


class Kind(NamedTuple):
    """How to draw a case: a problem to be treated, or a check of its own, called with a record and what to tell."""

    draw: Callable[[Any], Any]
    weight: float


KINDS = {
    "apply": Kind(functions.apply, 20),
    "matrix": Kind(functions.matrix, 8),
    "columns": Kind(columns.apply, 12),
    "rnn": Kind(functions.rnn, 20),
    "rnn of columns": Kind(columns.sequence, 4),
    "recurrent layer": Kind(layers.recurrent, 12),
    "cell": Kind(layers.step, 5),
    "frame layer": Kind(layers.frame, 6),
    "SVD layer": Kind(layers.svd, 2),
    "adapter": Kind(layers.adapter, 3),
    "arrays": Kind(arrays.call, 18),
    "activation": Kind(layers.activation, 1),
    "factor": Kind(groups.factor, 5),
    "parametrized": Kind(groups.parametrized, 3),
    "haar": Kind(groups.haar, 8),
    "delta rule": Kind(delta.rule, 20),
    "decoding": Kind(delta.decoding, 3),
    "drafts": Kind(delta.drafts, 3),
    "delta arrays": Kind(delta.arrays, 10),
    "DeltaNet": Kind(delta.layer, 3),
    "jax": Kind(jax_functions.call, 0.2),
    "LAPACK": Kind(replacements.lapack, 4),
    "frame": Kind(replacements.frame, 2),
    "operator": Kind(operators.call, 4),
    "without kernels": Kind(operators.without_kernels, 6),
    "HRA": Kind(replacements.hra, 0.5),
    "mLSTM": Kind(accelerated.mlstm, 0.5),
    "lightning attention": Kind(accelerated.lightning, 0.5),
    "short convolution": Kind(accelerated.convolution, 0.5),
}
