"""Classification of whole sequences, read from the state after the last step."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from householder_experiments.tasks.base import Batch, HeldOut, Task
from householder_experiments.tasks.order import shuffled

Labelled = tuple[NDArray[Any], NDArray[Any]]
_EVALUATION_BATCH = 500


class PixelClassification(Task):
    """Labelled images of equal size, read pixel by pixel.

    Parameters
    ----------
    train : pair of ndarray
        Pixels ``(N, T)`` and labels ``(N,)``.
    held_out : dict of str to pair of ndarray
        The same for the parts ``"validation"`` and ``"test"``. Where there is validation data it is
        measured after each epoch; where there is no test data it judges the run.
    white : float
        The pixel value that becomes 1.
    """

    input_size = 1
    metric = "accuracy"
    unit = "%"

    def __init__(self, train: Labelled, held_out: dict[HeldOut, Labelled], white: float) -> None:
        self._train = _tensors(train)
        self._held_out = {part: _tensors(labelled) for part, labelled in held_out.items()}
        self._white = white
        self.output_size = int(self._train[1].max()) + 1
        self.watched = "validation" in held_out
        self.judged_on = "test" if "test" in held_out else "validation"

    @override
    def steps_per_epoch(self, size: int) -> int:
        return -(-len(self._train[1]) // size)

    @override
    def batch(self, size: int, seed: int, epoch: int, index: int) -> Batch:
        rows = shuffled(len(self._train[1]), seed, epoch)[index * size : (index + 1) * size]
        return self._batch(self._train, torch.from_numpy(rows))

    @override
    def held_out(self, part: HeldOut) -> Iterator[Batch]:
        for start in range(0, len(self._held_out[part][1]), _EVALUATION_BATCH):
            yield self._batch(self._held_out[part], slice(start, start + _EVALUATION_BATCH))

    def _batch(self, part: tuple[Tensor, Tensor], rows: Tensor | slice) -> Batch:
        pixels, labels = part
        return Batch((pixels[rows].T.float() / self._white).unsqueeze(-1), labels[rows])

    @override
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(prediction, targets)

    @override
    def measure(self, prediction: Tensor, targets: Tensor) -> Tensor:
        return 100 * (prediction.argmax(-1) == targets).double().mean()


def _tensors(part: Labelled) -> tuple[Tensor, Tensor]:
    pixels, labels = part
    return torch.from_numpy(np.array(pixels, order="C")), torch.from_numpy(labels.astype(np.int64))
