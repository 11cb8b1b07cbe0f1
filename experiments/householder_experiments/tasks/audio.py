"""Sequence generation: a network without input that reproduces 18 ms of sound."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import mse_loss
from typing_extensions import override

from householder.cli.errors import UserError
from householder_experiments.files import write_whole
from householder_experiments.settings import Settings, Unit
from householder_experiments.tasks.base import GENERATED, Batch, HeldOut, Task
from householder_experiments.tasks.wav import read_wav

_RATE = 44_100
_POINTS = 800


class AudioSettings(Settings):
    """One of five consecutive excerpts of 800 points at 44.1 kHz, scaled to zero mean and unit variance."""

    kind: Literal["audio"] = "audio"
    data: Path | None = None
    """A WAV file; without it, a synthesised chord."""
    stand_in: ClassVar[str] = "a synthesised chord"
    start: Annotated[float, Field(ge=0), Unit("seconds")] = 0.5
    """Start of the first excerpt, in seconds."""
    excerpt: Annotated[int, Field(ge=1, le=5)] = 1
    """Number of the excerpt, from 1 to 5."""

    def load(self) -> "Audio":
        """Return the task with its sound."""
        sound = _chord() if self.data is None else read_wav(self.data, _RATE)
        first = round(self.start * _RATE) + (self.excerpt - 1) * _POINTS
        excerpt = sound[first : first + _POINTS]
        source = self.data or "the chord"
        if len(excerpt) < _POINTS:
            raise UserError(f"{source} lasts {len(sound) / _RATE:.3f} s: too short for excerpt {self.excerpt}")
        if excerpt.std() == 0:
            raise UserError(f"{source} is silent in excerpt {self.excerpt}")
        return Audio((excerpt - excerpt.mean()) / excerpt.std())


class Audio(Task):
    """Reproduce one sequence; the loss is its mean squared error over its variance (NMSE).

    The only input is an impulse at the first step. The best epoch counts, as there is nothing to generalise to.
    """

    input_size = 1
    output_size = 1
    every_step = True
    metric = "nmse"
    lower_is_better = True
    baseline = 1.0
    judged_on = "training"

    def __init__(self, excerpt: NDArray[Any]) -> None:
        targets = torch.tensor(excerpt, dtype=torch.float32)[:, None, None]
        impulse = torch.zeros_like(targets)
        impulse[0] = 1
        self._batch = Batch(impulse, targets)

    @override
    def steps_per_epoch(self, size: int) -> int:
        return 1

    @override
    def batch(self, size: int, seed: int, epoch: int, index: int) -> Batch:
        return self._batch

    @override
    def held_out(self, part: HeldOut) -> Iterator[Batch]:
        return iter(())

    @override
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        return mse_loss(prediction, targets)

    @override
    def leave_files(self, directory: Path, predict: Callable[[Tensor], Tensor]) -> None:
        columns = torch.cat([self._batch.targets, predict(self._batch.inputs).cpu()], -1)[:, 0]
        save = partial(np.savetxt, X=columns.numpy(), fmt="%.6g", delimiter=",", header="true,generated", comments="")
        write_whole(directory / GENERATED, save)


def _chord() -> NDArray[Any]:
    """Return a second of three plucked strings, whose higher partials die away sooner and are slightly out of tune."""
    time = np.arange(_RATE) / _RATE
    phases = np.random.default_rng(0).uniform(0, 2 * np.pi, (3, 12))
    sound = np.zeros(_RATE)
    for pitch, string in zip((110.0, 164.8, 277.2), phases, strict=True):
        for k, phase in enumerate(string, start=1):
            frequency = pitch * k * np.sqrt(1 + 4e-4 * k**2)
            sound += np.exp(-3 * k * time) / k * np.sin(2 * np.pi * frequency * time + phase)
    return sound
