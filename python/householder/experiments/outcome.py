"""What a run tells while it lasts and at its end."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from householder.experiments.tasks.base import JudgedOn

CONFIG = "config.yaml"
"""The file that holds the settings a run was begun with."""
METRICS = "metrics.csv"
"""The file that has a row for each whole epoch of a model."""
RESULTS = "results.json"
"""The file that says how each model of a run ended."""


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
    judged_on: JudgedOn
    lower_is_better: bool = False
    baseline: float | None = None
    """The metric of a model that has no memory."""


def write_outcomes(directory: Path, outcomes: Iterable[Outcome]) -> None:
    """Leave in a run's directory how its models ended."""
    (directory / RESULTS).write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=2) + "\n")


def read_outcomes(directory: Path) -> dict[str, dict[str, Any]]:
    """Return, by name, the models of a run that have been trained to the end."""
    path = directory / RESULTS
    if not path.is_file():
        return {}
    outcomes: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return {outcome["model"]: outcome for outcome in outcomes if outcome["metric"] is not None}
