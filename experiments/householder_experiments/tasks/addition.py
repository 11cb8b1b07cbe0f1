"""The addition problem: remember two of the numbers of a long sequence and add them."""

from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import mse_loss
from typing_extensions import override

from householder_experiments.settings import Unit
from householder_experiments.tasks.base import Batch
from householder_experiments.tasks.generated import GeneratedSettings, GeneratedTask


class AdditionSettings(GeneratedSettings):
    """T numbers uniform in [0, 1], of which one in each half is marked; the target is the sum of the marked ones."""

    kind: Literal["addition"] = "addition"
    length: Annotated[int, Field(ge=2), Unit("steps")] = 400
    """Numbers in a sequence."""

    def load(self) -> "Addition":
        """Return the task."""
        return Addition(self)


class Addition(GeneratedTask):
    """The addition problem; a model that always answers 1 has the mean squared error 1/6."""

    input_size = 2
    output_size = 1
    metric = "mse"
    lower_is_better = True
    baseline = 1 / 6

    def __init__(self, settings: AdditionSettings) -> None:
        super().__init__(settings)
        self._length = settings.length

    @override
    def draw(self, random: np.random.Generator, size: int) -> Batch:
        length, half = self._length, self._length // 2
        inputs = np.zeros((length, size, 2), np.float32)
        inputs[..., 0] = random.random((length, size), np.float32)
        sequence = np.arange(size)
        marked = random.integers(half, size=size), random.integers(half, length, size=size)
        for step in marked:
            inputs[step, sequence, 1] = 1
        targets = sum(inputs[step, sequence, 0] for step in marked)
        return Batch(torch.from_numpy(inputs), torch.from_numpy(np.asarray(targets)[:, None]))

    @override
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        return mse_loss(prediction, targets)
