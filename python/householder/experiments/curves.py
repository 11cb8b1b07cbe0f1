"""What runs have left on disk, grouped for figures."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from householder.experiments.errors import UserError
from householder.experiments.experiment import Experiment, load_experiment
from householder.experiments.outcome import CONFIG, METRICS, read_outcomes

Columns = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Run:
    """A directory that ``householder train`` filled."""

    directory: Path
    experiment: Experiment


@dataclass
class Curves:
    """The runs that share a line of the figure."""

    metric: str
    columns: list[Columns] = field(default_factory=list)
    outcomes: list[dict[str, Any]] = field(default_factory=list)

    def over_runs(self, name: str) -> NDArray[np.float64] | None:
        """Return a column of every run, (runs, epochs), as far as the shortest goes, or None where there is none."""
        if any(name not in columns for columns in self.columns):
            return None
        epochs = min(len(columns[name]) for columns in self.columns)
        return np.stack([columns[name][:epochs] for columns in self.columns])


def find_runs(directories: Iterable[Path]) -> list[Run]:
    """Return the runs in directories, each of which is one or holds those of a comparison.

    Raises
    ------
    UserError
        If a directory holds none, or the runs are of different tasks.
    """
    found: list[Run] = []
    for directory in directories:
        paths = [directory / CONFIG] if (directory / CONFIG).is_file() else sorted(directory.glob(f"*/{CONFIG}"))
        if not paths:
            raise UserError(f"{directory} holds no run: there is no {CONFIG}")
        found += [Run(path.parent, load_experiment(path)) for path in paths]
    kinds = {run.experiment.task.kind for run in found}
    if len(kinds) > 1:
        raise UserError(f"the runs are of different tasks: {', '.join(sorted(kinds))}")
    return found


def read_curves(runs: Iterable[Run], by_settings: bool = True) -> dict[str, Curves]:
    """Return the curves of each model.

    Parameters
    ----------
    runs : iterable of Run
        Where to look.
    by_settings : bool
        Whether runs of a model that differ by more than their seed are kept apart, and named after their directories.

    Raises
    ------
    UserError
        If no run has completed an epoch.
    """
    runs = list(runs)
    settings: dict[str, set[str]] = {}
    for run in runs:
        for model in run.experiment.models:
            settings.setdefault(model, set()).add(_without_seed(run.experiment, model))
    curves: dict[str, Curves] = {}
    for run in runs:
        outcomes = read_outcomes(run.directory)
        for model in run.experiment.models:
            path = run.directory / model / METRICS
            columns = read_columns(path) if path.is_file() else {}
            if not columns:
                continue
            metric = next(name for name in columns if name.startswith("train_") and name != "train_loss")
            apart = by_settings and len(settings[model]) > 1
            label = f"{run.directory.name}: {model}" if apart else model
            group = curves.setdefault(label, Curves(metric.removeprefix("train_")))
            group.columns.append(columns)
            if model in outcomes:
                group.outcomes.append(outcomes[model])
    if not curves:
        raise UserError("there is nothing to draw: no run has completed an epoch")
    return curves


def read_columns(path: Path) -> Columns:
    """Return the numbers of a CSV file by the names in its first line, none if there is no other line."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {key: np.array([float(row[key]) for row in rows]) for key in rows[0]} if rows else {}


def _without_seed(experiment: Experiment, model: str) -> str:
    alone = experiment.only([model]).model_copy(update={"seed": 0})
    return alone.model_dump_json()
