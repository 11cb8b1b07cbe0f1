"""Figures of training runs."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from householder.cli.errors import UserError
from householder_experiments.catalogue import metric_title, model_title
from householder_experiments.curves import Curves
from householder_experiments.files import write_whole
from householder_experiments.outcome import Outcome, shown
from householder_experiments.readers import read_columns
from householder_experiments.tasks.base import GENERATED

_LEGEND_ROW, _LEGEND_CHARACTER = 0.25, 0.075
"""Height of a line of the legend and width of a character of it, in inches."""
_MARKERS = "osD^vPX*"
"""Shapes of the marks of models, because marks of near results lie on one another."""
_FEWEST_FOR_A_BOX = 5
"""Runs from which on quartiles say more than the runs themselves."""


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches, that needs no display."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the suffix names.

    Raises
    ------
    UserError
        If it cannot be written.
    """
    if not path.suffix or path.is_dir():
        raise UserError(f"cannot write {path}: expected the name of a file that ends in .png, .pdf or .svg")
    try:
        write_whole(path, partial(figure.savefig, format=path.suffix[1:], dpi=120))
    except ValueError as error:  # there is no such format
        raise UserError(f"cannot write {path}: {error}") from error


def learning_curves(curves: Mapping[str, Curves], path: Path) -> None:
    """Draw loss and metric over the epochs: the mean over the runs and, as a band, their range.

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
    labels = [_labelled(label, group.outcomes) for label, group in curves.items()]
    figure = new_figure(*_size_with_legend(10.5, labels))
    loss, metric = figure.subplots(1, 2)
    outcomes = [outcome for group in curves.values() for outcome in group.outcomes]
    name = next(iter(curves.values())).metric
    watched = False
    for number, (label, group) in enumerate(zip(labels, curves.values(), strict=True)):
        color = f"C{number}"
        _band(loss, group.over_runs("train_loss"), color)
        training, validation = (group.over_runs(f"{part}_{name}") for part in ("train", "validation"))
        if validation is None:
            _band(metric, training, color)
        else:
            watched = True
            _band(metric, validation, color)
            _band(metric, training, color, faint=True)
        ends = [outcome.metric for outcome in group.outcomes]
        epochs = [outcome.epochs for outcome in group.outcomes]
        marks = {
            "color": color,
            "marker": _MARKERS[number % len(_MARKERS)],
            "markersize": 6,
            "markeredgecolor": "white",
        }
        if ends:  # an empty line that is not clipped has no place, and the layout collapses
            metric.plot(epochs, ends, linestyle="", clip_on=False, zorder=3, **marks)
        metric.plot([], [], label=label, **marks)
    loss.set(xlabel="epoch", ylabel="training loss", yscale="log")
    metric.set(xlabel="epoch", ylabel=metric_title(name))
    lines = ["faint: training, lines: validation"] if watched else ["lines: training"]
    if outcomes:
        lines.append(f"marks: {outcomes[0].judged_on}")
        _metric_axis(metric, metric_title(name), outcomes[0])
    metric.set_title(", ".join(lines), fontsize="medium")
    for axes in (loss, metric):
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    _legend_beside(figure)
    write_figure(figure, path)


def box_plot(metrics: Mapping[str, list[float]], outcome: Outcome, path: Path) -> None:
    """Draw how final metrics are distributed: each run as a dot and, of five or more runs, quartiles and range.

    Parameters
    ----------
    metrics : dict of str to list of float
        The metrics of each group of runs, by its label.
    outcome : Outcome
        Any of the runs: it tells what was measured.
    path : Path
        The image to write; its suffix names the format.
    """
    figure = new_figure(max(4, 1.1 * len(metrics)), 4.5)
    axes = figure.subplots()
    for place, values in enumerate(metrics.values(), start=1):
        if len(values) >= _FEWEST_FOR_A_BOX:
            axes.boxplot(values, positions=[place], whis=(0, 100), widths=0.6)
        across = np.linspace(-0.2, 0.2, len(values)) if len(values) > 1 else np.zeros(1)
        axes.plot(place + across, values, "o", color="C0", markersize=3, alpha=0.6)
    axes.set_xticks(range(1, len(metrics) + 1), list(metrics), rotation=30)
    _metric_axis(axes, outcome.measured, outcome)
    axes.grid(alpha=0.3, axis="y")
    write_figure(figure, path)


def over_values(
    lines: Mapping[str, list[tuple[float, float, float]]], along: str, outcome: Outcome, path: Path
) -> None:
    """Draw the mean metric of each model over the values of a setting, with the deviation of its runs as a bar.

    Parameters
    ----------
    lines : dict of str to list of tuple
        ``(value, mean, deviation)`` of each point, by model.
    along : str
        The setting.
    outcome : Outcome
        Any of the runs: it tells what was measured.
    path : Path
        The image to write; its suffix names the format.
    """
    figure = new_figure(*_size_with_legend(6, list(lines)))
    axes = figure.subplots()
    for model, points in lines.items():
        values, means, deviations = zip(*sorted(points), strict=True)
        axes.errorbar(values, means, yerr=deviations, marker="o", markersize=4, capsize=3, label=model)
    axes.set_xlabel(along)
    _metric_axis(axes, outcome.measured, outcome)
    axes.grid(alpha=0.3)
    _legend_beside(figure)
    write_figure(figure, path)


def generated_sequences(directory: Path, outcomes: list[Outcome], path: Path) -> None:
    """Draw the true sequence and what each model generates.

    Parameters
    ----------
    directory : Path
        Holds a folder with ``generated.csv`` for each model.
    outcomes : list of Outcome
        The models to draw.
    path : Path
        The image to write; its suffix names the format.
    """
    figure = new_figure(10, 1.6 * len(outcomes))
    rows = figure.subplots(len(outcomes), sharex=True, squeeze=False)[:, 0]
    for axes, outcome in zip(rows, outcomes, strict=True):
        columns = read_columns(directory / outcome.model / GENERATED)
        axes.plot(columns["true"], color="grey", linewidth=1, label="true")
        axes.plot(columns["generated"], linewidth=1, label=f"{model_title(outcome.model)}: {outcome.metric_shown}")
        axes.legend(loc="upper right", fontsize="small")
    rows[-1].set_xlabel("point")
    write_figure(figure, path)


def _band(axes: Any, values: NDArray[np.float64] | None, color: str, faint: bool = False) -> None:
    if values is None:
        return
    epochs = np.arange(1, values.shape[1] + 1)
    axes.plot(epochs, values.mean(0), color=color, linewidth=1, alpha=0.35 if faint else 1)
    if len(values) > 1 and not faint:
        axes.fill_between(epochs, values.min(0), values.max(0), color=color, alpha=0.15, linewidth=0)


def _size_with_legend(width: float, labels: list[str]) -> tuple[float, float]:
    """Return the size of a figure, in inches, whose axes have a width and whose legend stands beside them."""
    return width + _LEGEND_CHARACTER * max(map(len, labels)), max(4.5, _LEGEND_ROW * len(labels))


def _legend_beside(figure: Figure) -> None:
    """Add a legend that covers no line, however many there are."""
    figure.legend(loc="outside right upper", fontsize="small")


def _metric_axis(axes: Any, name: str, outcome: Outcome) -> None:
    """Name and scale the axis of a metric, and draw the metric of a model without memory."""
    axes.set_ylabel(f"{name} [{outcome.unit}]" if outcome.unit else name)
    if outcome.lower_is_better:
        axes.set_yscale("log")
    if outcome.baseline is not None:
        axes.axhline(outcome.baseline, color="grey", linestyle="--", linewidth=1, label="without memory")


def _labelled(label: str, outcomes: list[Outcome]) -> str:
    ends = [outcome.metric for outcome in outcomes if outcome.metric is not None]
    if len(ends) < 2:
        return f"{label}: {outcomes[0].metric_shown}" if ends else label
    mean = shown(float(np.mean(ends)))
    return f"{label}: {mean} ± {np.std(ends, ddof=1):.2g} {outcomes[0].unit}".rstrip()
