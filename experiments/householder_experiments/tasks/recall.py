"""Associative recall: which value came with a key."""

from typing import Annotated, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot
from typing_extensions import override

from householder_experiments.settings import Unit
from householder_experiments.tasks.base import Batch
from householder_experiments.tasks.generated import GeneratedSettings, GeneratedTask

_NO_TARGET = -100  # what cross_entropy ignores by default


class RecallSettings(GeneratedSettings):
    """Keys and their values in turn, then all keys in another order; the target at each of these is its value."""

    kind: Literal["recall"] = "recall"
    pairs: Annotated[int, Field(ge=1), Unit("pairs")] = 16
    """Pairs per sequence; a sequence has three times as many steps."""
    symbols: Annotated[int, Field(ge=1), Unit("symbols")] = 32
    """Number of keys and of values. Keys of a sequence differ; values may repeat."""

    @model_validator(mode="after")
    def _enough_keys(self) -> Self:
        if self.pairs > self.symbols:
            raise ValueError(f"pairs is {self.pairs}, expected at most symbols = {self.symbols}")
        return self

    def load(self) -> "Recall":
        """Return the task."""
        return Recall(self)


class Recall(GeneratedTask):
    """Multi-query associative recall (Arora et al., 2023). The metric is the accuracy over the keys asked for."""

    every_step = True
    metric = "accuracy"
    unit = "%"

    def __init__(self, settings: RecallSettings) -> None:
        super().__init__(settings)
        self._pairs, self._symbols = settings.pairs, settings.symbols
        self.input_size, self.output_size = 2 * settings.symbols, settings.symbols
        self.baseline = 100 / settings.symbols

    @override
    def draw(self, random: np.random.Generator, size: int) -> Batch:
        keys = random.random((self._symbols, size)).argsort(0)[: self._pairs]
        values = random.integers(self._symbols, size=(self._pairs, size))
        order = random.random((self._pairs, size)).argsort(0)
        pairs = np.stack([keys, self._symbols + values], 1).reshape(-1, size)
        inputs = np.concatenate([pairs, np.take_along_axis(keys, order, 0)])
        targets = np.full_like(inputs, _NO_TARGET)
        targets[2 * self._pairs :] = np.take_along_axis(values, order, 0)
        return Batch(one_hot(torch.from_numpy(inputs), self.input_size).float(), torch.from_numpy(targets))

    @override
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(prediction.flatten(0, 1), targets.flatten(), ignore_index=_NO_TARGET)

    @override
    def measure(self, prediction: Tensor, targets: Tensor) -> Tensor:
        asked = targets != _NO_TARGET
        return 100 * (prediction.argmax(-1) == targets)[asked].double().mean()
