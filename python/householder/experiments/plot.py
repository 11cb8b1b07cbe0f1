"""``householder plot``: the learning curves of runs in one figure, seeds of a model as a line and a band."""

import csv
import json
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from householder.experiments.errors import UserError
from householder.experiments.experiment import Experiment, load_experiment
from householder.experiments.outcome import METRICS
from householder.experiments.session import CONFIG, RESULTS

Columns = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Run:
    """A directory that ``householder train`` filled."""

    directory: Path
    experiment: Experiment

    @property
    def outcomes(self) -> dict[str, dict[str, Any]]:
        """The models that have ended, by name."""
        path = self.directory / RESULTS
        if not path.is_file():
            return {}
        outcomes: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        return {outcome["model"]: outcome for outcome in outcomes if outcome["metric"] is not None}


@dataclass
class Curves:
    """The runs of one model that differ by their seed only."""

    metric: str
    columns: list[Columns] = field(default_factory=list)
    outcomes: list[dict[str, Any]] = field(default_factory=list)

    def over_seeds(self, name: str) -> NDArray[np.float64] | None:
        """Return a column of every run, (runs, epochs), as far as the shortest goes, or None where there is none."""
        if any(name not in columns for columns in self.columns):
            return None
        epochs = min(len(columns[name]) for columns in self.columns)
        return np.stack([columns[name][:epochs] for columns in self.columns])


def plot(options: Namespace) -> int:
    """Draw as the command line says; return the exit status."""
    draw(read_curves(find_runs(options.runs)), options.output)
    print(f"figure: {options.output}")
    return 0


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


def read_curves(runs: Iterable[Run]) -> dict[str, Curves]:
    """Return the curves of each model; where its settings differ between runs, of each model and run.

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
        outcomes = run.outcomes
        for model in run.experiment.models:
            path = run.directory / model / METRICS
            columns = _columns(path) if path.is_file() else {}
            if not columns:
                continue
            metric = next(name for name in columns if name.startswith("train_") and name != "train_loss")
            label = model if len(settings[model]) == 1 else f"{run.directory.name}: {model}"
            group = curves.setdefault(label, Curves(metric.removeprefix("train_")))
            group.columns.append(columns)
            if model in outcomes:
                group.outcomes.append(outcomes[model])
    if not curves:
        raise UserError("there is nothing to draw: no run has completed an epoch")
    return curves


def draw(curves: dict[str, Curves], path: Path) -> None:
    """Draw loss and metric over the epochs: the mean over the seeds and, as a band, their range.

    Parameters
    ----------
    curves : dict of str to Curves
        What to draw, by label.
    path : Path
        The image to write; its suffix names the format.

    Raises
    ------
    UserError
        If the image cannot be written.
    """
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    loss, metric = figure.subplots(1, 2)
    outcomes = [outcome for group in curves.values() for outcome in group.outcomes]
    name = next(iter(curves.values())).metric
    for number, (label, group) in enumerate(curves.items()):
        color = f"C{number}"
        _band(loss, group.over_seeds("train_loss"), color)
        watched = group.over_seeds(f"validation_{name}")
        _band(metric, group.over_seeds(f"train_{name}") if watched is None else watched, color)
        ends = [outcome["metric"] for outcome in group.outcomes]
        epochs = [outcome["epochs"] for outcome in group.outcomes]
        metric.plot(epochs, ends, "o", color=color, markersize=4, clip_on=False)
        shown = f"{label}: {np.mean(ends):.4g}" if ends else label
        metric.plot([], [], "o-", color=color, label=shown + (f" ± {np.std(ends, ddof=1):.2g}" if ends[1:] else ""))
    loss.set(xlabel="epoch", ylabel="training loss", yscale="log")
    metric.set(xlabel="epoch", ylabel=name)
    if outcomes:
        metric.set_title(f"dots: {outcomes[0]['judged_on']}", fontsize="medium")
        if (baseline := outcomes[0]["baseline"]) is not None:
            metric.axhline(baseline, color="grey", linestyle="--", linewidth=1, label="without memory")
        if outcomes[0]["lower_is_better"]:
            metric.set_yscale("log")
    for axes in (loss, metric):
        axes.grid(alpha=0.3)
    metric.legend(fontsize="small")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write {path}: {error}") from error


def _band(axes: Any, values: NDArray[np.float64] | None, color: str) -> None:
    if values is None:
        return
    epochs = np.arange(1, values.shape[1] + 1)
    axes.plot(epochs, values.mean(0), color=color, linewidth=1)
    if len(values) > 1:
        axes.fill_between(epochs, values.min(0), values.max(0), color=color, alpha=0.15, linewidth=0)


def _without_seed(experiment: Experiment, model: str) -> str:
    alone = experiment.only([model]).model_copy(update={"seed": 0})
    return alone.model_dump_json()


def _columns(path: Path) -> Columns:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {key: np.array([float(row[key]) for row in rows]) for key in rows[0]} if rows else {}
