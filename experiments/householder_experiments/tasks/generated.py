"""Tasks whose sequences are drawn afresh for every batch."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import Field
from typing_extensions import override

from householder_experiments.settings import Settings, Unit
from householder_experiments.tasks.base import Batch, HeldOut, Task

_EVALUATION_BATCH = 250
_EVALUATION_BATCHES = {"validation": 1, "test": 4}
_HELD_OUT_SEEDS = {"validation": 0, "test": 1}


class GeneratedSettings(Settings):
    """What tasks without a data set share."""

    iterations: Annotated[int, Field(ge=1), Unit("batches")] = 100
    """Batches per epoch."""
    judged_on: HeldOut = "test"
    """The fixed set that judges the run. validation: 250 sequences, for tuning; test: 1,000 others."""


class GeneratedTask(Task):
    """An endless supply of sequences: each training batch is new; the held-out parts are the same for every run."""

    watched = True

    def __init__(self, settings: GeneratedSettings) -> None:
        self._iterations = settings.iterations
        self.judged_on = settings.judged_on

    @abstractmethod
    def draw(self, random: np.random.Generator, size: int) -> Batch:
        """Draw a batch of ``size`` sequences."""

    def draw_held_out(self, random: np.random.Generator, size: int) -> Batch:
        """Draw a batch of ``size`` sequences of the held-out parts, by default as for training."""
        return self.draw(random, size)

    @override
    def steps_per_epoch(self, size: int) -> int:
        return self._iterations

    @override
    def batch(self, size: int, seed: int, epoch: int, index: int) -> Batch:
        return self.draw(np.random.default_rng((seed, epoch, index)), size)

    @override
    def held_out(self, part: HeldOut) -> Iterator[Batch]:
        # A spawned generator shares its numbers with no training batch.
        random = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(_HELD_OUT_SEEDS[part],)))
        for _ in range(_EVALUATION_BATCHES[part]):
            yield self.draw_held_out(random, _EVALUATION_BATCH)
