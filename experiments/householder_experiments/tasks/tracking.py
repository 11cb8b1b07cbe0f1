"""State tracking: the product of the permutations so far."""

from itertools import permutations
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


class TrackingSettings(GeneratedSettings):
    """The word problem of a symmetric group: one permutation per step; the target is the product of all so far."""

    kind: Literal["tracking"] = "tracking"
    items: Annotated[int, Field(ge=2, le=5), Unit("things permuted")] = 3
    """Things permuted: 2 is parity, 3 has six permutations and 5 has 120."""
    length: Annotated[int, Field(ge=1), Unit("steps")] = 32
    """Steps of a training sequence."""
    held_out_length: Annotated[int, Field(ge=1), Unit("steps")] = 128
    """Steps of the sequences that judge the run."""

    def load(self) -> "Tracking":
        """Return the task."""
        return Tracking(self)


class Tracking(GeneratedTask):
    """Products of permutations. A sign before the first says that a sequence begins; the metric is the accuracy."""

    every_step = True
    metric = "accuracy"
    unit = "%"

    def __init__(self, settings: TrackingSettings) -> None:
        super().__init__(settings)
        elements = np.array(list(permutations(range(settings.items))))
        number = {element.tobytes(): i for i, element in enumerate(elements)}
        # products[a, b] is a after b, (a b)(i) = a(b(i)); the identity is element 0.
        self._products = np.array([[number[a[b].tobytes()] for b in elements] for a in elements])
        self._length, self._held_out_length = settings.length, settings.held_out_length
        self.output_size = len(elements)
        self.input_size = len(elements) + 1
        self.baseline = 100 / len(elements)

    @override
    def draw(self, random: np.random.Generator, size: int) -> Batch:
        return self._words(random, size, self._length)

    @override
    def draw_held_out(self, random: np.random.Generator, size: int) -> Batch:
        return self._words(random, size, self._held_out_length)

    def _words(self, random: np.random.Generator, size: int, length: int) -> Batch:
        inputs = random.integers(self.output_size, size=(length + 1, size))
        inputs[0] = self.output_size
        targets = np.zeros_like(inputs)
        for step in range(1, length + 1):
            targets[step] = self._products[inputs[step], targets[step - 1]]
        return Batch(one_hot(torch.from_numpy(inputs), self.input_size).float(), torch.from_numpy(targets))

    @override
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(prediction.flatten(0, 1), targets.flatten())

    @override
    def measure(self, prediction: Tensor, targets: Tensor) -> Tensor:
        return 100 * (prediction.argmax(-1) == targets)[1:].double().mean()
