"""Predict the characters of a line, one or more steps ahead."""

from collections.abc import Iterator
from functools import lru_cache
from math import log
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import override

from householder.cli.errors import UserError
from householder_experiments.settings import Settings, Unit
from householder_experiments.tasks.base import Batch, HeldOut, Task
from householder_experiments.tasks.order import shuffled
from householder_experiments.tasks.text import Text, embedded_texts, read_texts

_EVALUATION_BATCH = 64
_NO_TARGET = -100  # cross_entropy ignores it


class CharactersSettings(Settings):
    """Lines of text, one sequence each; the metric is bits per predicted character."""

    kind: Literal["chars"] = "chars"
    data: Path | None = None
    """A folder with train.txt, valid.txt and test.txt, a sequence a line; without it, Python's documentation topics."""
    stand_in: ClassVar[str] = "Python's documentation"
    ahead: Annotated[int, Field(ge=1), Unit("characters")] = 1
    """Distance from the last character read to the predicted one."""
    judged_on: HeldOut = "test"
    """The part that judges the run."""

    def load(self) -> "Characters":
        """Return the task with its texts."""
        texts = embedded_texts() if self.data is None else read_texts(self.data)
        return Characters(texts, self.ahead, self.judged_on)


class Characters(Task):
    """Prediction of characters. A batch holds lines of similar length, the shorter ones padded."""

    every_step = True
    metric = "bpc"
    unit = "bits"
    lower_is_better = True
    watched = True

    def __init__(self, texts: dict[str, Text], ahead: int, judged_on: HeldOut) -> None:
        alphabet = sorted(set().union(*(line for lines in texts.values() for line in lines)))
        code = {character: number for number, character in enumerate(alphabet)}
        encoded = {
            part: [torch.tensor([code[c] for c in line]) for line in lines if len(line) > ahead]
            for part, lines in texts.items()
        }
        if short := [part for part, lines in encoded.items() if not lines]:
            raise UserError(f"the {short[0]} part has no line of more than {ahead} characters")
        self.input_size = self.output_size = len(alphabet)
        self.judged_on = judged_on
        self._ahead = ahead
        self._train = encoded["train"]
        self._lengths = np.array([len(line) for line in self._train])
        self._order = lru_cache(maxsize=1)(self._by_length)
        self._held_out: dict[HeldOut, list[Tensor]] = {"validation": encoded["valid"], "test": encoded["test"]}

    @override
    def steps_per_epoch(self, size: int) -> int:
        return -(-len(self._train) // size)

    @override
    def batch(self, size: int, seed: int, epoch: int, index: int) -> Batch:
        which = shuffled(self.steps_per_epoch(size), seed, epoch)[index]
        rows = self._order(seed, epoch)[which * size : (which + 1) * size]
        return self._batch([self._train[row] for row in rows])

    def _by_length(self, seed: int, epoch: int) -> NDArray[Any]:
        """Return the lines from the shortest to the longest, those of equal length in an order that the epoch sets."""
        order = shuffled(len(self._train), seed, epoch)
        return order[np.argsort(self._lengths[order], kind="stable")]

    @override
    def held_out(self, part: HeldOut) -> Iterator[Batch]:
        lines = sorted(self._held_out[part], key=len)
        for start in range(0, len(lines), _EVALUATION_BATCH):
            yield self._batch(lines[start : start + _EVALUATION_BATCH])

    def _batch(self, lines: list[Tensor]) -> Batch:
        inputs = pad_sequence([line[: -self._ahead] for line in lines])
        targets = pad_sequence([line[self._ahead :] for line in lines], padding_value=_NO_TARGET)
        return Batch(one_hot(inputs, self.input_size).float(), targets)

    @override
    def weight(self, batch: Batch) -> int:
        return int((batch.targets != _NO_TARGET).sum())

    @override
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(prediction.flatten(0, 1), targets.flatten(), ignore_index=_NO_TARGET)

    @override
    def measure(self, prediction: Tensor, targets: Tensor) -> Tensor:
        return self.loss(prediction, targets) / log(2)
