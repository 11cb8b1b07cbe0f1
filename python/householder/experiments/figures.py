"""Figures of training runs."""

import csv
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from householder.experiments.outcome import METRICS, Outcome
from householder.experiments.tasks.audio import GENERATED


def learning_curves(directory: Path, outcomes: list[Outcome], path: Path) -> None:
    """Draw loss and metric of each model over the epochs, and where the held-out part puts it.

    Parameters
    ----------
    directory : Path
        Holds a folder with ``metrics.csv`` for each model.
    outcomes : list of Outcome
        The models to draw.
    path : Path
        The image to write; its suffix names the format.
    """
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    loss, metric = figure.subplots(1, 2)
    name, judged_on = outcomes[0].metric_name, outcomes[0].judged_on
    for color, outcome in enumerate(outcomes):
        columns = _columns(directory / outcome.model / METRICS)
        style = {"color": f"C{color}", "linewidth": 1}
        loss.plot(columns["epoch"], columns["train_loss"], label=outcome.model, **style)
        metric.plot(columns["epoch"], columns[f"train_{name}"], alpha=0.35, **style)
        if f"validation_{name}" in columns:
            metric.plot(columns["epoch"], columns[f"validation_{name}"], **style)
        if outcome.metric is not None:
            metric.plot(columns["epoch"][-1:], [outcome.metric], "o", color=style["color"], clip_on=False)
        metric.plot([], [], "o-", label=f"{outcome.model}: {outcome.metric_shown}", **style)
    if (baseline := outcomes[0].baseline) is not None:
        metric.axhline(baseline, color="grey", linestyle="--", linewidth=1, label="without memory")
    if outcomes[0].lower_is_better:
        metric.set_yscale("log")
    loss.set(xlabel="epoch", ylabel="training loss", yscale="log")
    metric.set(xlabel="epoch", ylabel=name, title=f"thin: training, dot: {judged_on}")
    for axes in (loss, metric):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=150)


def generated_sounds(directory: Path, outcomes: list[Outcome], path: Path) -> None:
    """Draw the true sound and what each model generates.

    Parameters
    ----------
    directory : Path
        Holds a folder with ``generated.csv`` for each model.
    outcomes : list of Outcome
        The models to draw.
    path : Path
        The image to write; its suffix names the format.
    """
    figure = Figure(figsize=(10, 1.6 * len(outcomes)), layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.subplots(len(outcomes), sharex=True, squeeze=False)[:, 0]
    for axes, outcome in zip(rows, outcomes, strict=True):
        columns = _columns(directory / outcome.model / GENERATED)
        axes.plot(columns["true"], color="grey", linewidth=1, label="true")
        axes.plot(columns["generated"], linewidth=1, label=f"{outcome.model}: {outcome.metric_shown}")
        axes.legend(loc="upper right", fontsize="small")
    rows[-1].set_xlabel("point")
    figure.savefig(path, dpi=100)


def _columns(path: Path) -> dict[str, list[float]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {key: [float(row[key]) for row in rows] for key in rows[0]}
