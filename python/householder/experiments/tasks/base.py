"""The interface between a task and the training loop."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal, NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Inputs of shape (T, B, input_size) and what is to be predicted from them."""

    inputs: Tensor
    targets: Tensor

    @property
    def size(self) -> int:
        """Number of sequences B."""
        return self.inputs.shape[1]


class Task(ABC):
    """Data, loss and metric of one experiment.

    Batches are addressed, not iterated: ``batch(size, seed, epoch, index)`` is a pure function, so a
    run that resumes in the middle of an epoch sees the batches that it would have seen.
    """

    input_size: int
    output_size: int
    every_step: bool = False
    """Whether the prediction is read at every step, or at the last one only."""
    metric: str = "accuracy"
    judged_on: Literal["validation", "test"] = "test"
    """The held-out part that judges the run. Where there is validation data, test data stays unseen."""

    @abstractmethod
    def steps_per_epoch(self, size: int) -> int:
        """Return the number of batches of ``size`` sequences in an epoch."""

    @abstractmethod
    def batch(self, size: int, seed: int, epoch: int, index: int) -> Batch:
        """Return training batch ``index`` of an epoch."""

    @abstractmethod
    def held_out(self) -> Iterator[Batch]:
        """Return the batches of the part named by ``judged_on``."""

    @abstractmethod
    def loss(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch."""

    @abstractmethod
    def measure(self, prediction: Tensor, targets: Tensor) -> Tensor:
        """Return the mean metric of a batch."""

    @abstractmethod
    def show(self, value: float) -> str:
        """Return the metric as a reader wants to see it."""
