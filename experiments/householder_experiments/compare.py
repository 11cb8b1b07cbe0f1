"""``householder compare``: each model with each seed and each value of the chosen settings; a table and figures."""

import json
import re
from argparse import Namespace
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from householder.cli.errors import UserError
from householder_experiments import session
from householder_experiments.catalogue import model_title
from householder_experiments.checks import check_all
from householder_experiments.curves import find_runs, read_curves
from householder_experiments.experiment import Change, Experiment
from householder_experiments.figures import box_plot, learning_curves, over_values
from householder_experiments.files import inside, write_text
from householder_experiments.launch import Job, launch
from householder_experiments.outcome import Outcome, write_outcomes
from householder_experiments.processes import models_at_a_time
from householder_experiments.readers import is_there, read_json
from householder_experiments.report import (
    PARAMETERS,
    SECONDS,
    distinct,
    filled,
    new_console,
    progress_display,
    say,
    uneven_parameters,
    write_rows,
)
from householder_experiments.session import (
    SEED_FOLDER,
    asked,
    claimed,
    comparison_folders,
    conclude,
    content_of,
    default_directory,
    described,
)

SUMMARY = "summary.csv"
CURVES = "comparison.png"
BOXES = "boxes.png"
OVER = "over.json"
"""The file that names the settings that a comparison varies."""
_SEEDS = 3
Values = tuple[tuple[str, Any], ...]
"""Names and values of the settings that a comparison varies."""


@dataclass(frozen=True)
class Summary:
    """One model over its runs with the same values; ``deviation`` is None if there is only one run."""

    values: Values
    model: str
    hidden_size: int
    parameters: int
    runs: int
    unit: str
    mean: float
    deviation: float | None
    median: float
    worst: float
    best: float
    seconds: float


def train(options: Namespace) -> int:
    """Train a run, or a comparison where several seeds are asked for or resumed; return the exit status."""
    is_comparison = content_of(options.resume) == "comparison" if options.resume else (options.seeds or 1) > 1
    if not is_comparison:
        return session.train(options)
    if options.devices > 1 or options.num_nodes > 1:
        raise UserError("several seeds are trained by one process each: leave out --devices and --num-nodes")
    return compare(options)


def compare(options: Namespace) -> int:
    """Train as the command line says; return the exit status."""
    directory, over, experiments = _resumed(options) if options.resume else asked_grid(options)
    _check_rows(over, experiments)
    check_all(experiments.values())
    directory = session.real(directory)
    with claimed(directory, experiments, not options.resume):
        write_text(inside(directory, OVER), json.dumps(over) + "\n")
        return _compare(options, directory, over, experiments)


def _compare(options: Namespace, directory: Path, over: list[str], experiments: dict[str, Experiment]) -> int:
    console = new_console()
    first = next(iter(experiments.values()))
    say(console, f"{described(first)}: {', '.join(first.models)}; {', '.join(experiments)}; into {directory}")
    jobs = {
        f"{folder}/{model}": Job(experiment, model, inside(directory, f"{folder}/{model}"))
        for folder, experiment in experiments.items()
        for model in experiment.models
    }
    with progress_display(jobs, console) as display:
        threads = max(experiment.threads for experiment in experiments.values())
        results = launch(jobs, options.jobs or models_at_a_time(threads), display.update)
    outcomes = {name: result for name, result in results.items() if isinstance(result, Outcome)}
    for folder, experiment in experiments.items():
        names = [f"{folder}/{model}" for model in experiment.models]
        write_outcomes(directory / folder, [outcomes[name] for name in names if name in outcomes])

    groups: dict[Values, list[Outcome]] = {}
    for name, outcome in outcomes.items():
        if outcome.metric is not None:
            groups.setdefault(values_of(jobs[name].experiment, over), []).append(outcome)
    if groups:
        _report(directory, over, groups, console)
    return conclude(results.values(), len(jobs), console, session.resuming("compare", directory))


def _report(directory: Path, over: list[str], groups: dict[Values, list[Outcome]], console: Console) -> None:
    """Write the table and the figures; print the table."""
    finished = [outcome for group in groups.values() for outcome in group]
    rows = summarise(groups)
    columns = [{key: value for key, value in vars(row).items() if key != "values"} for row in rows]
    write_rows(directory / SUMMARY, [dict(row.values) | column for row, column in zip(rows, columns, strict=True)])
    figures = [directory / CURVES, directory / BOXES]
    learning_curves(read_curves(find_runs([directory]), by_settings=bool(over)), figures[0])
    box_plot({_label(row): row_metrics(groups, row) for row in rows}, finished[0], figures[1])
    for name in over:
        if lines := lines_over(rows, name):
            figures.append(directory / f"over-{name}.png")
            over_values(lines, name, finished[0], figures[-1])
    console.print(summary_table(rows, finished[0], console.width))
    for line in dict.fromkeys(line for group in groups.values() for line in uneven_parameters(group)):
        say(console, line)
    say(console, f"table: {directory / SUMMARY}")
    say(console, f"figures: {', '.join(map(str, figures))}")


def values_of(experiment: Experiment, over: Iterable[str]) -> Values:
    """Return an experiment's values of the named settings, lists and groups of settings as text."""
    values = []
    for name in over:
        node: Any = experiment.model_dump(mode="json")
        for key in name.split("."):
            node = node.get(key) if isinstance(node, dict) else None
        values.append((name, node if isinstance(node, Hashable) else str(node)))
    return tuple(values)


def _rank(named: tuple[str, Any]) -> tuple[bool, float, str]:
    """Order numbers by their value, and others after them."""
    value = named[1]
    is_number = isinstance(value, int | float)
    return not is_number, value if is_number else 0.0, str(value)


def row_metrics(groups: Mapping[Values, Iterable[Outcome]], row: Summary) -> list[float]:
    """Return the metrics of the runs of a row."""
    outcomes = groups[row.values]
    return [each.metric for each in outcomes if each.model == row.model and each.metric is not None]


def _label(row: Summary) -> str:
    return "\n".join([model_title(row.model), *(f"{name.rpartition('.')[2]} {value}" for name, value in row.values)])


def lines_over(rows: Iterable[Summary], along: str) -> dict[str, list[tuple[float, float, float]]]:
    """Return each model's points over the values of a setting; an empty dict if a value is not a number."""
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for row in rows:
        values = dict(row.values)
        value = values.pop(along)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return {}
        label = ", ".join([model_title(row.model), *(f"{name} = {other}" for name, other in values.items())])
        lines.setdefault(label, []).append((value, row.mean, row.deviation or 0.0))
    return lines


def summarise(groups: Mapping[Values, Iterable[Outcome]]) -> list[Summary]:
    """Return a row for each combination of values and each model, in the order in which they appear."""
    rows = []
    for values, outcomes in groups.items():
        by_model: dict[str, list[Outcome]] = {}
        for outcome in outcomes:
            by_model.setdefault(outcome.model, []).append(outcome)
        for model, runs in by_model.items():
            metrics = [run.metric for run in runs if run.metric is not None]
            ordered = sorted(metrics, reverse=runs[0].lower_is_better)
            rows.append(
                Summary(
                    values=values,
                    model=model,
                    hidden_size=runs[0].hidden_size,
                    parameters=runs[0].parameters,
                    runs=len(runs),
                    unit=runs[0].unit,
                    mean=fmean(metrics),
                    deviation=stdev(metrics) if len(metrics) > 1 else None,
                    median=median(metrics),
                    worst=ordered[0],
                    best=ordered[-1],
                    seconds=fmean(run.seconds for run in runs),
                )
            )
    return rows


def summary_table(rows: Iterable[Summary], outcome: Outcome, width: int) -> Table:
    """Return the printed table, so many characters wide; ``outcome``, of any run, names the metric and its unit."""
    rows = list(rows)
    measured = outcome.measured + (f" [{outcome.unit}]" if outcome.unit else "")
    means, medians, worst, best = (
        distinct([getattr(row, name) for row in rows]) for name in ("mean", "median", "worst", "best")
    )
    deviations = ["" if row.deviation is None else f" ± {row.deviation:.2g}" for row in rows]
    columns = [
        *((name.rpartition(".")[2], [str(dict(row.values)[name]) for row in rows]) for name, _ in rows[0].values),
        ("model", [row.model for row in rows]),
        (PARAMETERS, [f"{row.parameters:,}" for row in rows]),
        (measured, [f"{mean}{deviation}" for mean, deviation in zip(means, deviations, strict=True)]),
        ("median", medians),
        ("worst", worst),
        ("best", best),
        (SECONDS, [f"{row.seconds:.0f}" for row in rows]),
    ]
    return filled(Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False), columns, width)


def asked_grid(options: Namespace) -> tuple[Path, list[str], dict[str, Experiment]]:
    """Return where a new comparison goes, the settings that it varies, and its experiments by their folders."""
    over = [_split(each) for each in options.over or ()]
    experiments = _grid(options, over)
    directory = options.output or default_directory(next(iter(experiments.values())))
    return directory, [name for name, _ in over], experiments


def _split(over: str) -> tuple[str, list[str]]:
    name, equals, values = over.partition("=")
    if not (name and equals and values):
        raise UserError(f"--over {over!r}: expected NAME=A,B, such as task.length=30,60")
    if name == "seed":
        raise UserError("--over seed: --seed and --seeds choose the seeds")
    return name, values.split(",")


def _grid(options: Namespace, over: Iterable[tuple[str, list[str]]]) -> dict[str, Experiment]:
    """Return the experiment for each seed and each combination of values, by the folder it goes to."""
    axes = [[Change(f"{name}={value}", "--over") for value in values] for name, values in over]
    combinations = [(changes, asked(options, changes)) for changes in product(*axes)]
    experiments = {}
    for number in range(options.seeds or _SEEDS):
        for changes, experiment in combinations:
            seed = experiment.seed + number
            folder = f"{SEED_FOLDER}{seed}"
            for name, _, value in (change.text.partition("=") for change in changes):
                folder += f"-{name.rpartition('.')[2]}-{value}"
            folder = re.sub(r"[^A-Za-z0-9_.=+-]", "_", folder)[:100]
            if folder in experiments:
                raise UserError(f"--over: two values share the folder {folder}")
            experiments[folder] = experiment.model_copy(update={"seed": seed})
    return experiments


def _check_rows(over: Iterable[str], experiments: Mapping[str, Experiment]) -> None:
    """Refuse runs that the table would count as several of the same values, or whose values it could not show."""
    models = next(iter(experiments.values())).models
    for name in over:
        first, _, rest = name.partition(".")
        if first == "models" and rest and (model := rest.partition(".")[0]) not in models:
            raise UserError(f"--over {name}: {model} is not compared, so no table shows its values: add it to --models")
    rows: dict[Values, str] = {}
    for folder, experiment in experiments.items():
        values = ("seed", experiment.seed), *values_of(experiment, over)
        other = rows.setdefault(values, folder)
        if over and other != folder:
            both = ", ".join(f"{name}={value}" for name, value in values)
            raise UserError(f"{other} and {folder} would both have {both}: give each run values of its own")


def _resumed(options: Namespace) -> tuple[Path, list[str], dict[str, Experiment]]:
    session.refuse_changes(options, ("models", "seed", "seeds", "over", "config", "full", "output"))
    if (content := content_of(options.resume)) != "comparison":
        fault = f"there is no {SEED_FOLDER}1" if content is None else "it is a run, which householder train continues"
        raise UserError(f"{options.resume} holds no comparison: {fault}")
    experiments = {path.name: session.resumed_run(path, options) for path in comparison_folders(options.resume)}
    path = options.resume / OVER
    try:
        names = read_json(path) if is_there(path) else []
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) and name.isprintable() for name in names):
        raise UserError(f"{path} is damaged: expected a list of names of settings; without it all values share a row")
    if any("/" in name for name in names):
        raise UserError(f"{path} is damaged: a setting's name has no slash")
    order = sorted(
        experiments.items(), key=lambda item: (item[1].seed, *map(_rank, values_of(item[1], names)), item[0])
    )
    return options.resume, names, dict(order)
