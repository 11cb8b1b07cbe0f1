"""The results of runs on disk, grouped for figures."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from householder.cli.errors import UserError
from householder_experiments.catalogue import model_title
from householder_experiments.experiment import Experiment, saved_experiment
from householder_experiments.outcome import CONFIG, METRICS, Outcome, read_outcomes
from householder_experiments.readers import NumericColumns, is_there, read_columns


@dataclass(frozen=True)
class RunFolder:
    """A directory that ``householder train`` filled."""

    directory: Path
    experiment: Experiment


@dataclass
class Curves:
    """The runs that share a line of the figure."""

    metric: str
    columns: list[NumericColumns] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def over_runs(self, name: str) -> NDArray[np.float64] | None:
        """Return a column of every run, (runs, epochs), cut to the shortest run; None if a run lacks the column."""
        if any(name not in columns for columns in self.columns):
            return None
        epochs = min(len(columns[name]) for columns in self.columns)
        return np.stack([columns[name][:epochs] for columns in self.columns])


def find_runs(directories: Iterable[Path]) -> list[RunFolder]:
    """Return the runs in directories, each of which is a run or holds the runs of a comparison.

    A run that is reached twice counts once.

    Raises
    ------
    UserError
        If a directory holds no run, or the runs are of different tasks.
    """
    configs: dict[Path, Path] = {}
    for directory in directories:
        paths = [directory / CONFIG] if is_there(directory / CONFIG) else sorted(directory.glob(f"*/{CONFIG}"))
        if not paths:
            raise UserError(f"{directory} holds no run: there is no {CONFIG}")
        for path in paths:
            configs.setdefault(path.parent.resolve(), path)
    runs = [RunFolder(path.parent, saved_experiment(path)) for path in configs.values()]
    kinds = {run.experiment.task.kind for run in runs}
    if len(kinds) > 1:
        raise UserError(f"the runs are of different tasks: {', '.join(sorted(kinds))}")
    return runs


def read_curves(runs: Iterable[RunFolder], by_settings: bool = True) -> dict[str, Curves]:
    """Return the curves of each model.

    Parameters
    ----------
    runs : iterable of RunFolder
        Where to look.
    by_settings : bool
        Whether runs of a model whose settings differ, seed aside, are kept apart and named by their directories.

    Raises
    ------
    UserError
        If no run has completed an epoch.
    """
    groups: dict[str, dict[str, list[RunFolder]]] = {}
    for run in runs:
        for model in run.experiment.models:
            settings = _without_seed(run.experiment, model) if by_settings else ""
            groups.setdefault(model, {}).setdefault(settings, []).append(run)
    curves: dict[str, Curves] = {}
    for model, by_setting in groups.items():
        for name, group in zip(_names(by_setting.values()), by_setting.values(), strict=True):
            title = model_title(model)
            label = f"{name}: {title}" if len(by_setting) > 1 else title
            for run in group:
                _add(curves, label, run.directory, model)
    if not curves:
        raise UserError("there is nothing to draw: no run has completed an epoch")
    return curves


def _add(curves: dict[str, Curves], label: str, directory: Path, model: str) -> None:
    path = directory / model / METRICS
    columns = read_columns(path) if is_there(path) else {}
    if not columns:
        return
    if "train_loss" not in columns:
        raise UserError(f"{path} is damaged: there is no column train_loss")
    metric = next((name for name in columns if name.startswith("train_") and name != "train_loss"), "train_loss")
    group = curves.setdefault(label, Curves(metric.removeprefix("train_")))
    group.columns.append(columns)
    outcomes = read_outcomes(directory)
    if model in outcomes:
        group.outcomes.append(outcomes[model])


def _names(groups: Collection[list[RunFolder]]) -> list[str]:
    """Name groups of runs by the names of their directories, or of the first folders above that differ."""
    paths = [[run.directory.resolve() for run in group] for group in groups]
    for level in range(1, 1 + min(len(path.parts) for group in paths for path in group)):
        names = [list(dict.fromkeys(path.parts[-level] for path in group)) for group in paths]
        if len(set(chain(*names))) == sum(map(len, names)):
            return [of_group[0] if len(of_group) == 1 else f"{of_group[0]} ... {of_group[-1]}" for of_group in names]
    return [str(group[0]) for group in paths]


def _without_seed(experiment: Experiment, model: str) -> str:
    alone = experiment.only([model]).model_copy(update={"seed": 0})
    return repr(alone)
