"""The progress of a run and its outcome, and the file of outcomes."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pydantic

from householder.cli.errors import UserError
from householder_experiments.catalogue import metric_title
from householder_experiments.files import write_text
from householder_experiments.readers import is_there, read_json
from householder_experiments.tasks.base import JudgedOn

CONFIG = "config.yaml"
"""The file that holds the settings a run was begun with."""
METRICS = "metrics.csv"
"""The file that has a row for each whole epoch of a model."""
RESULTS = "results.json"
"""The file that says how each model of a run ended."""


@dataclass(frozen=True)
class Progress:
    """How far a run has come; ``latest`` is the row of its last whole epoch, empty before the first."""

    step: int
    steps: int
    epoch: int
    epochs: int
    latest: dict[str, float]
    unit: str = ""
    """Unit of the metric."""


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(strict=True, extra="forbid"))
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
    judged_on: JudgedOn
    unit: str = ""
    lower_is_better: bool = False
    baseline: float | None = None
    """The metric of a model that has no memory."""

    @property
    def metric_shown(self) -> str:
        """The metric with its unit, or "interrupted"."""
        return "interrupted" if self.metric is None else shown(self.metric, self.unit)

    @property
    def measured(self) -> str:
        """The judged part and the metric's name, for a table's head."""
        return f"{self.judged_on} {metric_title(self.metric_name)}"


def shown(value: float, unit: str = "", digits: int = 4) -> str:
    """Return a metric with its unit.

    Examples
    --------
    >>> from householder_experiments.outcome import shown
    >>> shown(98.3, "%"), shown(0.00021)
    ('98.30 %', '0.0002100')
    """
    return f"{value:#.{digits}g} {unit}".rstrip(" .")


def write_outcomes(directory: Path, outcomes: Iterable[Outcome]) -> None:
    """Write the outcomes of a run's models into its directory."""
    write_text(directory / RESULTS, json.dumps([asdict(outcome) for outcome in outcomes], indent=2) + "\n")


def read_outcomes(directory: Path) -> dict[str, Outcome]:
    """Return, by name, the models of a run that have been trained to the end.

    Raises
    ------
    UserError
        The file of outcomes is damaged.
    """
    path = directory / RESULTS
    if not is_there(path):
        return {}
    try:
        outcomes = [Outcome(**outcome) for outcome in read_json(path)]
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{path} is damaged: it does not list the results of the models; --resume writes it again"
        ) from error
    return {outcome.model: outcome for outcome in outcomes if outcome.metric is not None}
