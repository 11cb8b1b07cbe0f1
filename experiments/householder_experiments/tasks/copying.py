"""The copying problem: repeat ten symbols after a long delay."""

from math import log
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot
from typing_extensions import override

from householder_experiments.settings import Unit
from householder_experiments.tasks.base import Batch
from householder_experiments.tasks.generated import GeneratedSettings, GeneratedTask

_COPIED = 10
_SYMBOLS = 8
_BLANK, _GO = _SYMBOLS, _SYMBOLS + 1


class CopySettings(GeneratedSettings):
    """Ten symbols out of eight, ``delay`` steps, the last of which says "go", and ten steps to repeat the symbols."""

    kind: Literal["copy"] = "copy"
    delay: Annotated[int, Field(ge=1), Unit("steps")] = 100
    """Steps from the last symbol to the sign to repeat all symbols."""

    def load(self) -> "Copy":
        """Return the task."""
        return Copy(self)


class Copy(GeneratedTask):
    """The copying problem.

    The metric is the cross-entropy over all ``delay + 20`` steps, divided by that of a model without
    memory: it knows when to answer but not what, ``10 ln 8 / (delay + 20)``.
    """

    input_size = _SYMBOLS + 2
    output_size = _SYMBOLS + 1
    every_step = True
    metric = "loss_ratio"
    lower_is_better = True
    baseline = 1.0

    def __init__(self, settings: CopySettings) -> None:
        super().__init__(settings)
        self._delay = settings.delay
        self._memoryless = _COPIED * log(_SYMBOLS) / (settings.delay + 2 * _COPIED)

    @override
    def draw(self, random: np.random.Generator, size: int) -> Batch:
        symbols = torch.from_numpy(random.integers(_SYMBOLS, size=(_COPIED, size)))
        inputs = torch.full((self._delay + 2 * _COPIED, size), _BLANK)
        inputs[:_COPIED] = symbols
        inputs[-_COPIED - 1] = _GO
        targets = torch.full_like(inputs, _BLANK)
        targets[-_COPIED:] = symbols
        return Batch(one_hot(inputs, self.input_size).float(), targets)

    @override
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(prediction.flatten(0, 1), targets.flatten())

    @override
    def measure(self, prediction: Tensor, targets: Tensor) -> Tensor:
        return self.loss(prediction, targets) / self._memoryless
