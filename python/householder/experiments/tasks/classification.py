"""Classification of whole sequences, read from the state after the last step."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from householder.experiments.tasks.base import Batch, Task

_EVALUATION_BATCH = 500


class SequenceClassification(Task):
    """Labelled sequences of equal length.

    Parameters
    ----------
    train, test : pair of ndarray
        Sequences ``(N, T, d)`` and labels ``(N,)``.
    validation : float
        Fraction of the training part, stratified, that is held out in place of the test part.
    """

    def __init__(
        self,
        train: tuple[NDArray[Any], NDArray[Any]],
        test: tuple[NDArray[Any], NDArray[Any]],
        validation: float = 0.0,
    ) -> None:
        if validation > 0:
            x, x_held, y, y_held = train_test_split(*train, test_size=validation, stratify=train[1], random_state=0)
            self.judged_on = "validation"
        else:
            (x, y), (x_held, y_held) = train, test
        self._x, self._y = _time_major(x), torch.from_numpy(y)
        self._x_held, self._y_held = _time_major(x_held), torch.from_numpy(y_held)
        self.input_size = x.shape[2]
        self.output_size = int(y.max()) + 1
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


def _time_major(x: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x.transpose(1, 0, 2), dtype=np.float32))
