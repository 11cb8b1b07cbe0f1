"""One invocation of ``householder train``: settings in, a table and files out."""

import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from householder.experiments.curves import find_runs, read_curves
from householder.experiments.errors import UserError
from householder.experiments.experiment import Experiment, load_experiment, packaged_config
from householder.experiments.figures import generated_sequences, learning_curves
from householder.experiments.files import HOLDER, LOCK, held, inside
from householder.experiments.group import Group, group_of
from householder.experiments.launch import LOG, Failure, Job, Result, launch
from householder.experiments.outcome import CONFIG, Outcome, write_outcomes
from householder.experiments.processes import models_at_a_time
from householder.experiments.report import ProgressDisplay, results_table
from householder.experiments.tasks.base import GENERATED

CURVES = "learning_curves.png"
SEQUENCES = "generated.png"


def train(options: Namespace) -> int:
    """Train as the command line says; return the exit status."""
    group = group_of(options.devices, options.num_nodes)
    directory, experiment = _resumed(options) if options.resume else _asked_where(options, group)
    if not group.is_first:
        return _train(options, group, directory, experiment)
    with claimed(directory, {} if options.resume else {directory: experiment}):
        return _train(options, group, directory, experiment)


def _train(options: Namespace, group: Group, directory: Path, experiment: Experiment) -> int:
    console = Console(quiet=not group.is_first)
    say = partial(console.print, soft_wrap=True, highlight=False, markup=False)
    say(f"{options.task}: {', '.join(experiment.models)}; seed {experiment.seed}; into {directory}")
    jobs = {name: Job(experiment, name, inside(directory, name)) for name in experiment.models}
    with ProgressDisplay(jobs, console) as display:
        at_a_time = options.jobs or models_at_a_time(experiment.threads, group.devices)
        results = launch(jobs, at_a_time, display.update, group)
    if not group.is_first:
        return int(any(isinstance(result, Failure) for result in results.values()))
    if not options.resume and are_refused(results.values()):
        release(directory, jobs.values())

    outcomes = [result for result in results.values() if isinstance(result, Outcome)]
    if outcomes:
        console.print(results_table(outcomes))
        write_outcomes(directory, outcomes)
    if drawable := [outcome for outcome in outcomes if outcome.epochs > 0]:
        learning_curves(read_curves(find_runs([directory])), directory / CURVES)
        say(f"learning curves: {directory / CURVES}")
        if generated := [outcome for outcome in drawable if (directory / outcome.model / GENERATED).exists()]:
            generated_sequences(directory, generated, directory / SEQUENCES)
            say(f"generated sequences: {directory / SEQUENCES}")
        say(f"logs: tensorboard --logdir {directory}")

    return conclude(results.values(), len(jobs), say, f"train {options.task} --resume {directory}")


def conclude(results: Iterable[Result], wanted: int, say: Callable[[str], None], resume: str) -> int:
    """Tell what failed, or how to continue where fewer than wanted have been trained to the end; return the status."""
    results = list(results)
    if failures := [result.message for result in results if isinstance(result, Failure)]:
        for message in failures:
            print(f"householder: {message}", file=sys.stderr)
        return 2 if are_refused(results) else 1
    if sum(isinstance(result, Outcome) and result.metric is not None for result in results) < wanted:
        say(f"interrupted; continue with: householder {resume}")
        return 130
    return 0


def _asked_where(options: Namespace, group: Group) -> tuple[Path, Experiment]:
    experiment = asked(options)
    if options.output is None and group.is_divided:
        raise UserError("commands that train together need the same --output")
    return options.output or default_directory(options), experiment


def asked(options: Namespace) -> Experiment:
    """Return the experiment that a command line of ``householder train`` asks for."""
    experiment = load_asked(options, options.changes)
    if options.seed is not None:
        experiment = experiment.model_copy(update={"seed": options.seed})
    return experiment if options.model is None else experiment.only(options.model.split(","))


def load_asked(options: Namespace, changes: Iterable[str]) -> Experiment:
    """Return the experiment of a command line: the file's or the packaged one, with some changes."""
    epochs = [] if options.epochs is None else [f"epochs={options.epochs}"]
    experiment = load_experiment(options.config or packaged_config(options.task), [*changes, *epochs])
    if experiment.task.kind != options.task:
        raise UserError(f"{options.config} is an experiment on {experiment.task.kind!r}, not on {options.task!r}")
    return experiment


def default_directory(options: Namespace) -> Path:
    """Return where results go that are sent nowhere else."""
    return Path("runs") / f"{options.task}-{datetime.now():%Y%m%d-%H%M%S}"


@contextmanager
def claimed(directory: Path, begun: Mapping[Path, Experiment]) -> Iterator[None]:
    """Hold a directory while runs go on in it, and make places in it the homes of those that are begun.

    Raises
    ------
    UserError
        Another process holds the directory, it cannot be written to, or one of the places holds a run already.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {directory}: {error.strerror}") from error
    with held(directory):
        for place, experiment in begun.items():
            if (place / CONFIG).exists():
                raise UserError(f"{place} holds a run already: --resume {place} continues it")
            try:
                place.mkdir(exist_ok=True)
                experiment.save(place / CONFIG)
            except OSError as error:
                raise UserError(f"cannot write to {place}: {error.strerror}") from error
        yield


def are_refused(results: Collection[Result]) -> bool:
    """Tell whether no model was trained, as the settings of all were refused."""
    return all(isinstance(result, Failure) and result.refused for result in results) and bool(results)


def release(directory: Path, jobs: Collection[Job]) -> None:
    """Take back what a run has made of a directory, where every model was refused."""
    for job in jobs:
        for name in (LOG, LOCK, HOLDER):
            (job.directory / name).unlink(missing_ok=True)
    for name in (CONFIG, LOCK, HOLDER):
        (directory / name).unlink(missing_ok=True)
    for place in (*(job.directory for job in jobs), directory):
        with suppress(OSError):  # something else is there
            place.rmdir()


def refuse_changes(options: Namespace, fixed: Iterable[str]) -> None:
    """Complain about options that cannot go with ``--resume``."""
    given = [f"--{name}" for name in fixed if getattr(options, name) is not None] + ["--set"] * bool(options.changes)
    if given:
        raise UserError(f"--resume keeps the settings a run was begun with; leave out {', '.join(given)}")


def load_run(directory: Path, task: str) -> Experiment:
    """Return the experiment of a run that was begun."""
    path = directory / CONFIG
    if not path.is_file():
        raise UserError(f"{directory} holds no run: there is no {CONFIG}")
    experiment = load_experiment(path)
    if experiment.task.kind != task:
        raise UserError(f"{directory} is a run of {experiment.task.kind!r}, not of {task!r}")
    return experiment


def _resumed(options: Namespace) -> tuple[Path, Experiment]:
    refuse_changes(options, ("model", "config", "seed", "epochs", "output"))
    return options.resume, load_run(options.resume, options.task)
