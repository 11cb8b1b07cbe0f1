"""The interface between a task and the training loop."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from torch import Tensor

HeldOut = Literal["validation", "test"]
JudgedOn = Literal["training", "validation", "test"]

GENERATED = "generated.csv"
"""Where a task that generates a sequence leaves the true one and the model's: ``householder train`` draws them."""


class Batch(NamedTuple):
    """Inputs of shape (T, B, input_size) and the targets to predict from them."""

    inputs: Tensor
    targets: Tensor

    @property
    def size(self) -> int:
        """Number of sequences B."""
        return self.inputs.shape[1]


class Task(ABC):
    """Data, loss and metric of one experiment.

    Inputs are of shape (T, B, input_size), predictions (T, B, output_size) where ``every_step``, else (B, output_size).
    Batches are addressed, not iterated: ``batch(size, seed, epoch, index)`` is a pure function, so a
    run that resumes in the middle of an epoch sees the batches that it would have seen.
    """

    input_size: int
    """Numbers per step that a model reads."""
    output_size: int
    """Numbers that a model predicts."""
    every_step: bool = False
    """Whether the prediction is read at every step, or at the last one only."""
    metric: str = "loss"
    """What :meth:`measure` returns."""
    unit: str = ""
    """The unit of the metric; with "%", metrics are between 0 and 100."""
    baseline: float | None = None
    """The metric of a model that has no memory, for the figure."""
    judged_on: JudgedOn = "test"
    """The part whose metric judges the run: of the final model, or the best of all epochs on ``"training"``.

    With ``"training"`` an epoch has one step, so its metric is that of the parameters before the step.
    """
    watched: bool = False
    """Whether the validation part is measured after each epoch."""

    @cached_property  # which a class or an object may replace by a plain attribute
    def lower_is_better(self) -> bool:
        """Whether a smaller metric is better, as it is if the metric is the loss."""
        return self.metric == "loss"

    @abstractmethod
    def steps_per_epoch(self, size: int) -> int:
        """Return the number of batches of ``size`` sequences in an epoch."""

    @abstractmethod
    def batch(self, size: int, seed: int, epoch: int, index: int) -> Batch:
        """Return training batch ``index`` of an epoch."""

    @abstractmethod
    def held_out(self, part: HeldOut) -> Iterator[Batch]:
        """Return the batches of a part that is not trained on."""

    @abstractmethod
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch."""

    def measure(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """Return the mean metric of a batch, which is the loss unless a task says otherwise."""
        return self.loss(prediction, targets)

    def weight(self, batch: Batch) -> int:
        """Return the number of predictions that the loss and the metric of a batch average."""
        return batch.size

    def leave_files(self, directory: Path, predict: Callable[[Tensor], Tensor]) -> None:  # noqa: B027
        """Write further results of the trained model, if the task has any, into a directory."""
