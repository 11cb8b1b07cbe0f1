"""What a run tells while it lasts and at its end."""

from dataclasses import dataclass
from typing import Literal

METRICS = "metrics.csv"
"""The file that has a row for each whole epoch of a run."""


@dataclass(frozen=True)
class Progress:
    """Where a run is; ``latest`` is the row of its last whole epoch, empty before that."""

    step: int
    steps: int
    epoch: int
    epochs: int
    latest: dict[str, float]


@dataclass(frozen=True)
class Outcome:
    """How a run ended; ``metric`` is None if it was interrupted."""

    model: str
    hidden_size: int
    parameters: int
    epochs: int
    seconds: float
    train_loss: float | None
    metric: float | None
    metric_name: str
    metric_shown: str
    judged_on: Literal["training", "validation", "test"]
    lower_is_better: bool = False
    baseline: float | None = None
    """The metric of a model that has no memory."""
