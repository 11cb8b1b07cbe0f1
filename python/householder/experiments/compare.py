"""``householder compare``: models times seeds, and values of settings; one table and two figures."""

import re
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median, stdev

from rich import box
from rich.console import Console
from rich.table import Table

from householder.experiments.curves import find_runs, read_curves
from householder.experiments.errors import UserError
from householder.experiments.experiment import Experiment, apply_change, parse_experiment
from householder.experiments.figures import box_plot, learning_curves
from householder.experiments.files import inside
from householder.experiments.launch import Job, launch
from householder.experiments.models.rivals import count_parameters, resized, rival_settings
from householder.experiments.outcome import Outcome, write_outcomes
from householder.experiments.processes import models_at_a_time
from householder.experiments.report import ProgressDisplay, write_rows
from householder.experiments.session import (
    are_refused,
    claimed,
    conclude,
    default_directory,
    load_asked,
    load_run,
    refuse_changes,
    release,
)

SUMMARY = "summary.csv"
CURVES = "comparison.png"
BOXES = "boxes.png"
ALL = "all"
_FOLDER = "seed-"
_SEEDS = 3


@dataclass(frozen=True)
class Summary:
    """One model over its runs; ``deviation`` is None where there is one run."""

    model: str
    hidden_size: int
    parameters: int
    runs: int
    mean: float
    deviation: float | None
    median: float
    worst: float
    best: float
    seconds: float


def compare(options: Namespace) -> int:
    """Train as the command line says; return the exit status."""
    if options.resume:
        directory, experiments = _resumed(options)
    else:
        directory, experiments = options.output or default_directory(options), asked(options)
        if any(directory.glob(f"{_FOLDER}*")):
            raise UserError(f"{directory} holds a comparison already: --resume {directory} continues it")
    begun = {} if options.resume else {directory / folder: each for folder, each in experiments.items()}
    with claimed(directory, begun):
        return _compare(options, directory, experiments)


def _compare(options: Namespace, directory: Path, experiments: dict[str, Experiment]) -> int:
    console = Console()
    say = partial(console.print, soft_wrap=True, highlight=False, markup=False)
    models = next(iter(experiments.values())).models
    say(f"{options.task}: {', '.join(models)}; {', '.join(experiments)}; into {directory}")
    jobs = {
        f"{folder}/{model}": Job(experiment, model, inside(directory, f"{folder}/{model}"))
        for folder, experiment in experiments.items()
        for model in experiment.models
    }
    with ProgressDisplay(jobs, console) as display:
        threads = max(experiment.threads for experiment in experiments.values())
        results = launch(jobs, options.jobs or models_at_a_time(threads), display.update)
    outcomes = {name: result for name, result in results.items() if isinstance(result, Outcome)}
    refused = not options.resume and are_refused(results.values())
    for folder, experiment in experiments.items():
        names = [f"{folder}/{model}" for model in experiment.models]
        if refused:
            release(directory / folder, [jobs[name] for name in names])
        else:
            write_outcomes(directory / folder, [outcomes[name] for name in names if name in outcomes])
    if refused:
        release(directory, ())

    finished = [outcome for outcome in outcomes.values() if outcome.metric is not None]
    if finished:
        rows = summarise(finished)
        console.print(summary_table(rows, finished[0]))
        write_rows(directory / SUMMARY, rows)
        say(f"table: {directory / SUMMARY}")
        learning_curves(read_curves(find_runs([directory]), by_settings=False), directory / CURVES)
        box_plot(finished, directory / BOXES)
        say(f"figures: {directory / CURVES}, {directory / BOXES}")
    return conclude(results.values(), len(jobs), say, f"compare {options.task} --resume {directory}")


def choose(experiment: Experiment, names: Iterable[str], changes: Iterable[str]) -> Experiment:
    """Return an experiment with the named models: its own, and rivals as large as the first of its own.

    Parameters
    ----------
    experiment : Experiment
        With models of its own.
    names : iterable of str
        Its models, or kinds of models; ``["all"]`` is all of them.
    changes : iterable of str
        Settings of the rivals to change, as ``"models.urnn.learning_rate=0.01"``.

    Raises
    ------
    UserError
        If a name is unknown, or a change is garbled or not allowed.
    """
    names, rivals = list(names), rival_settings()
    if names == [ALL]:
        names = list(dict.fromkeys([*experiment.models, *rivals]))
    if unknown := [name for name in names if name not in experiment.models and name not in rivals]:
        known = dict.fromkeys([*experiment.models, *rivals])
        raise UserError(f"unknown model {unknown[0]!r}: there are {', '.join(known)}")

    raw = experiment.model_dump(mode="json")
    first = next(iter(experiment.models.values()))
    for name in names:
        raw["models"].setdefault(name, dict(rivals.get(name, {})))
    for change in changes:
        apply_change(raw, change)
    raw["models"] = {name: raw["models"][name] for name in names}
    unsized = [name for name, model in raw["models"].items() if "hidden_size" not in model]
    if not unsized:
        return parse_experiment(raw, "--models")
    for name in unsized:
        raw["models"][name]["hidden_size"] = 1
    chosen, task = parse_experiment(raw, "--models"), experiment.task.load()
    parameters = count_parameters(first, task)
    models = {
        name: resized(model, task, parameters) if name in unsized else model for name, model in chosen.models.items()
    }
    return chosen.model_copy(update={"models": models})


def summarise(outcomes: Iterable[Outcome]) -> list[Summary]:
    """Return a row for each model, in the order in which they appear."""
    by_model: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_model.setdefault(outcome.model, []).append(outcome)
    rows = []
    for model, runs in by_model.items():
        metrics = [run.metric for run in runs if run.metric is not None]
        ordered = sorted(metrics, reverse=runs[0].lower_is_better)
        rows.append(
            Summary(
                model=model,
                hidden_size=runs[0].hidden_size,
                parameters=runs[0].parameters,
                runs=len(runs),
                mean=fmean(metrics),
                deviation=stdev(metrics) if len(metrics) > 1 else None,
                median=median(metrics),
                worst=ordered[0],
                best=ordered[-1],
                seconds=fmean(run.seconds for run in runs),
            )
        )
    return rows


def summary_table(rows: Iterable[Summary], outcome: Outcome) -> Table:
    """Return what is printed; any outcome tells what was measured."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("model")
    measured = f"{outcome.judged_on} {outcome.metric_name}"
    for heading in ("parameters", measured, "median", "worst", "best", "seconds"):
        table.add_column(heading, justify="right")
    for row in rows:
        deviation = "" if row.deviation is None else f" ± {row.deviation:.2g}"
        table.add_row(
            row.model,
            f"{row.parameters:,}",
            f"{row.mean:.4g}{deviation}",
            f"{row.median:.4g}",
            f"{row.worst:.4g}",
            f"{row.best:.4g}",
            f"{row.seconds:.0f}",
        )
    return table


def asked(options: Namespace) -> dict[str, Experiment]:
    """Return the experiments that a command line of ``householder compare`` asks for, by the folders they go to."""
    if options.models is None:
        experiment = load_asked(options, options.changes)
    else:
        own = load_asked(options, []).models
        of_rivals = tuple(f"models.{kind}." for kind in rival_settings() if kind not in own)
        later = [change for change in options.changes if change.startswith(of_rivals)]
        experiment = load_asked(options, [change for change in options.changes if change not in later])
        experiment = choose(experiment, options.models.split(","), later)
    return _grid(experiment, options.seeds or _SEEDS, options.over or ())


def _grid(experiment: Experiment, seeds: int, over: Iterable[str]) -> dict[str, Experiment]:
    """Return the experiment for each seed and each combination of values, by the folder it goes to."""
    axes = [
        [(name, value) for value in values.split(",")] for name, _, values in (each.partition("=") for each in over)
    ]
    experiments = {}
    for seed in range(experiment.seed, experiment.seed + seeds):
        for settings in product(*axes):
            raw = experiment.model_dump(mode="json") | {"seed": seed}
            folder = f"{_FOLDER}{seed}"
            for name, value in settings:
                apply_change(raw, f"{name}={value}", "--over")
                folder += f"-{name.rpartition('.')[2]}-{value}"
            folder = re.sub(r"[^A-Za-z0-9_.=+-]", "_", folder)[:100]
            if folder in experiments:
                raise UserError(f"--over: two values share the folder {folder}")
            experiments[folder] = parse_experiment(raw, "--over")
    return experiments


def _resumed(options: Namespace) -> tuple[Path, dict[str, Experiment]]:
    refuse_changes(options, ("models", "seeds", "over", "config", "epochs", "output"))
    experiments = {path.name: load_run(path, options.task) for path in options.resume.glob(f"{_FOLDER}*")}
    if not experiments:
        raise UserError(f"{options.resume} holds no comparison: there is no {_FOLDER}1")
    return options.resume, dict(sorted(experiments.items(), key=lambda item: (item[1].seed, item[0])))
