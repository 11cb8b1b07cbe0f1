"""``householder compare``: models times seeds, one table and one figure."""

import csv
import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

from rich import box
from rich.console import Console
from rich.table import Table

from householder.experiments.errors import UserError
from householder.experiments.experiment import Experiment, apply_change, parse_experiment
from householder.experiments.launch import Failure, Job, Result, launch
from householder.experiments.models.rivals import count_parameters, resized, rival_settings
from householder.experiments.outcome import Outcome
from householder.experiments.plot import draw, find_runs, read_curves
from householder.experiments.report import ProgressDisplay
from householder.experiments.session import (
    RESULTS,
    claim,
    default_directory,
    load_asked,
    load_run,
    refuse_changes,
)

SUMMARY = "summary.csv"
FIGURE = "comparison.png"
ALL = "all"
_FOLDER = "seed-"
_SEEDS = 3


@dataclass(frozen=True)
class Summary:
    """One model over its seeds; ``deviation`` is None where there is one seed."""

    model: str
    hidden_size: int
    parameters: int
    runs: int
    mean: float
    deviation: float | None
    worst: float
    best: float
    seconds: float


def compare(options: Namespace) -> int:
    """Train as the command line says; return the exit status."""
    console = Console()
    say = partial(console.print, soft_wrap=True, highlight=False, markup=False)
    directory, experiments = _resumed(options) if options.resume else _begun(options)
    seeds = ", ".join(str(experiment.seed) for experiment in experiments)
    say(f"{options.task}: {', '.join(experiments[0].models)}; seeds {seeds}; into {directory}")
    jobs = {
        _label(model, experiment): Job(experiment, model, _folder(directory, experiment) / model)
        for experiment in experiments
        for model in experiment.models
    }
    with ProgressDisplay(jobs, console) as display:
        results = launch(jobs, options.jobs, display.update)
    _store(directory, experiments, results)

    finished = [result for result in results.values() if isinstance(result, Outcome) and result.metric is not None]
    if finished:
        rows = summarise(finished)
        console.print(summary_table(rows, finished[0]))
        _write_summary(directory / SUMMARY, rows)
        say(f"table: {directory / SUMMARY}")
        draw(read_curves(find_runs([directory])), directory / FIGURE)
        say(f"figure: {directory / FIGURE}")
    if failures := [result.message for result in results.values() if isinstance(result, Failure)]:
        for message in failures:
            print(f"householder: {message}", file=sys.stderr)
        return 1
    if len(finished) < len(jobs):
        say(f"interrupted; continue with: householder compare {options.task} --resume {directory}")
        return 130
    return 0


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
    headings = (
        "hidden",
        "parameters",
        "runs",
        f"{outcome.judged_on} {outcome.metric_name}",
        "worst",
        "best",
        "seconds",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row.model,
            f"{row.hidden_size}",
            f"{row.parameters:,}",
            f"{row.runs}",
            f"{row.mean:.4g}",
            "" if row.deviation is None else f"{row.deviation:.2g}",
            f"{row.worst:.4g}",
            f"{row.best:.4g}",
            f"{row.seconds:.0f}",
        )
    return table


def _begun(options: Namespace) -> tuple[Path, list[Experiment]]:
    if options.models is None:
        experiment = load_asked(options, options.changes)
    else:
        own = load_asked(options, []).models
        of_rivals = tuple(f"models.{kind}." for kind in rival_settings() if kind not in own)
        later = [change for change in options.changes if change.startswith(of_rivals)]
        experiment = load_asked(options, [change for change in options.changes if change not in later])
        experiment = choose(experiment, options.models.split(","), later)
    directory = options.output or default_directory(options)
    seeds = range(experiment.seed, experiment.seed + (options.seeds or _SEEDS))
    experiments = [experiment.model_copy(update={"seed": seed}) for seed in seeds]
    if any(directory.glob(f"{_FOLDER}*")):
        raise UserError(f"{directory} holds a comparison already: --resume {directory} continues it")
    for each in experiments:
        claim(_folder(directory, each), each)
    return directory, experiments


def _resumed(options: Namespace) -> tuple[Path, list[Experiment]]:
    refuse_changes(options, ("models", "seeds", "config", "epochs", "output"))
    experiments = [load_run(folder, options.task) for folder in options.resume.glob(f"{_FOLDER}*")]
    if not experiments:
        raise UserError(f"{options.resume} holds no comparison: there is no {_FOLDER}1")
    return options.resume, sorted(experiments, key=lambda experiment: experiment.seed)


def _folder(directory: Path, experiment: Experiment) -> Path:
    return directory / f"{_FOLDER}{experiment.seed}"


def _store(directory: Path, experiments: Iterable[Experiment], results: Mapping[str, Result]) -> None:
    """Write what the models of each seed ended with."""
    for experiment in experiments:
        outcomes = [results.get(_label(model, experiment)) for model in experiment.models]
        known = [asdict(outcome) for outcome in outcomes if isinstance(outcome, Outcome)]
        (_folder(directory, experiment) / RESULTS).write_text(json.dumps(known, indent=2) + "\n")


def _write_summary(path: Path, rows: list[Summary]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, asdict(rows[0]))
        writer.writeheader()
        writer.writerows(map(asdict, rows))


def _label(model: str, experiment: Experiment) -> str:
    return f"{model} {experiment.seed}"
