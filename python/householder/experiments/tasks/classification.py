"""Classification of whole sequences, read from the state after the last step."""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from householder.experiments.tasks.base import Batch, Task

Labelled = tuple[NDArray[Any], NDArray[Any]]
_EVALUATION_BATCH = 500


class SequenceClassification(Task):
    """Labelled sequences of equal length.

    Parameters
    ----------
    train, held_out : pair of ndarray
        Sequences ``(N, T, d)`` and labels ``(N,)``.
    judged_on : {"validation", "test"}
        What the held-out part is.
    """

    def __init__(self, train: Labelled, held_out: Labelled, judged_on: Literal["validation", "test"]) -> None:
        self._x, self._y = _tensors(train)
        self._x_held, self._y_held = _tensors(held_out)
        self.judged_on = judged_on
        self.input_size = self._x.shape[2]
        self.output_size = int(self._y.max()) + 1
        self._order: tuple[tuple[int, int], Tensor] | None = None

    @override
    def steps_per_epoch(self, size: int) -> int:
        return -(-len(self._y) // size)

    @override
    def batch(self, size: int, seed: int, epoch: int, index: int) -> Batch:
        if self._order is None or self._order[0] != (seed, epoch):
            permutation = np.random.default_rng((seed, epoch)).permutation(len(self._y))
            self._order = (seed, epoch), torch.from_numpy(permutation)
        rows = self._order[1][index * size : (index + 1) * size]
        return Batch(self._x[:, rows], self._y[rows])

    @override
    def held_out(self) -> Iterator[Batch]:
        for start in range(0, len(self._y_held), _EVALUATION_BATCH):
            rows = slice(start, start + _EVALUATION_BATCH)
            yield Batch(self._x_held[:, rows], self._y_held[rows])

    @override
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(prediction, targets)

    @override
    def measure(self, prediction: Tensor, targets: Tensor) -> Tensor:
        return (prediction.argmax(-1) == targets).double().mean()

    @override
    def show(self, value: float) -> str:
        return f"{100 * value:.2f} %"


def _tensors(part: Labelled) -> tuple[Tensor, Tensor]:
    sequences, labels = part
    time_major = np.ascontiguousarray(sequences.transpose(1, 0, 2), dtype=np.float32)
    return torch.from_numpy(time_major), torch.from_numpy(labels)
