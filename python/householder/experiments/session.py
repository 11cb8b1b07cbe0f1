"""One invocation of ``householder train``: settings in, a table and files out."""

import json
import sys
from argparse import Namespace
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from householder.experiments.errors import UserError
from householder.experiments.experiment import Experiment, load_experiment, packaged_config
from householder.experiments.figures import learning_curves
from householder.experiments.launch import Failure, Job, launch
from householder.experiments.outcome import Outcome
from householder.experiments.report import ProgressDisplay, results_table

CONFIG = "config.yaml"
RESULTS = "results.json"
CURVES = "learning_curves.png"


def train(options: Namespace) -> int:
    """Train as the command line says; return the exit status."""
    console = Console()
    say = partial(console.print, soft_wrap=True, highlight=False, markup=False)
    directory, experiment = _resumed(options) if options.resume else _begun(options)
    say(f"{options.task}: {', '.join(experiment.models)}; seed {experiment.seed}; into {directory}")
    jobs = {name: Job(experiment, name, directory / name) for name in experiment.models}
    with ProgressDisplay(jobs, console) as display:
        results = launch(jobs, options.jobs, display.update)

    outcomes = [result for result in results.values() if isinstance(result, Outcome)]
    if outcomes:
        console.print(results_table(outcomes))
        (directory / RESULTS).write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=2) + "\n")
    if drawable := [outcome for outcome in outcomes if outcome.epochs > 0]:
        learning_curves(directory, drawable, directory / CURVES)
        say(f"learning curves: {directory / CURVES}")
        say(f"logs: tensorboard --logdir {directory}")

    if failures := [result.message for result in results.values() if isinstance(result, Failure)]:
        for message in failures:
            print(f"householder: {message}", file=sys.stderr)
        return 1
    if len(outcomes) < len(experiment.models) or any(outcome.metric is None for outcome in outcomes):
        say(f"interrupted; continue with: householder train {options.task} --resume {directory}")
        return 130
    return 0


def _begun(options: Namespace) -> tuple[Path, Experiment]:
    changes = [f"{name}={value}" for name in ("seed", "epochs") if (value := getattr(options, name)) is not None]
    experiment = load_experiment(options.config or packaged_config(options.task), options.changes + changes)
    if experiment.task.kind != options.task:
        raise UserError(f"{options.config} is an experiment on {experiment.task.kind!r}, not on {options.task!r}")
    if options.model is not None:
        experiment = experiment.only(options.model.split(","))
    directory = options.output or Path("runs") / f"{options.task}-{datetime.now():%Y%m%d-%H%M%S}"
    if (directory / CONFIG).exists():
        raise UserError(f"{directory} holds a run already: --resume {directory} continues it")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        experiment.save(directory / CONFIG)
    except OSError as error:
        raise UserError(f"cannot write to {directory}: {error.strerror}") from error
    return directory, experiment


def _resumed(options: Namespace) -> tuple[Path, Experiment]:
    fixed = ("model", "config", "seed", "epochs", "output")
    given = [f"--{name}" for name in fixed if getattr(options, name) is not None] + ["--set"] * bool(options.changes)
    if given:
        raise UserError(f"--resume keeps the settings a run was begun with; leave out {', '.join(given)}")
    path = options.resume / CONFIG
    if not path.is_file():
        raise UserError(f"{options.resume} holds no run: there is no {CONFIG}")
    experiment = load_experiment(path)
    if experiment.task.kind != options.task:
        raise UserError(f"{options.resume} is a run of {experiment.task.kind!r}, not of {options.task!r}")
    return options.resume, experiment
