"""One invocation of ``householder train``: settings in, a table and files out."""

import json
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal

from rich.console import Console

from householder.cli.errors import UserError, one_line
from householder_experiments.checks import check, check_group
from householder_experiments.curves import find_runs, read_curves
from householder_experiments.experiment import (
    Change,
    Experiment,
    apply_change,
    data_change,
    load_experiment,
    packaged_config,
    validated,
)
from householder_experiments.figures import generated_sequences, learning_curves
from householder_experiments.files import held, inside
from householder_experiments.group import Group, group_of
from householder_experiments.launch import Failure, Job, Result, launch
from householder_experiments.outcome import CONFIG, Outcome, write_outcomes
from householder_experiments.own import permitted_modules
from householder_experiments.processes import models_at_a_time
from householder_experiments.readers import is_there
from householder_experiments.report import new_console, progress_display, results_table, say, uneven_parameters
from householder_experiments.tasks.base import GENERATED
from householder_experiments.trained import run_experiment

CURVES = "learning_curves.png"
SEQUENCES = "generated.png"
OWN_TASK = "own"
SEED_FOLDER = "seed-"
"""How the names of the folders of a comparison's runs begin."""


def train(options: Namespace) -> int:
    """Train as the command line says; return the exit status."""
    group = group_of(options.devices, options.num_nodes)
    directory, experiment = _resumed(options) if options.resume else _asked_where(options, group)
    check(experiment)
    check_group(group, experiment)
    directory = real(directory)
    if not group.is_first:
        return _train(options, group, directory, experiment)
    with claimed(directory, {".": experiment}, begun=not options.resume):
        return _train(options, group, directory, experiment)


def _train(options: Namespace, group: Group, directory: Path, experiment: Experiment) -> int:
    console = new_console(quiet=not group.is_first)
    heading = f"{described(experiment)}: {', '.join(experiment.models)}; seed {experiment.seed}; into {directory}"
    say(console, heading)
    jobs = {name: Job(experiment, name, inside(directory, name)) for name in experiment.models}
    with progress_display(jobs, console) as display:
        at_a_time = options.jobs or models_at_a_time(experiment.threads, group.devices)
        results = launch(jobs, at_a_time, display.update, group)
    if not group.is_first:
        return int(any(isinstance(result, Failure) for result in results.values()))

    outcomes = [result for result in results.values() if isinstance(result, Outcome)]
    if outcomes:
        write_outcomes(directory, outcomes)
        console.print(results_table(outcomes, console.width))
        for line in uneven_parameters(outcomes):
            say(console, line)
    if drawable := [outcome for outcome in outcomes if outcome.epochs > 0]:
        learning_curves(read_curves(find_runs([directory])), directory / CURVES)
        say(console, f"learning curves: {directory / CURVES}")
        if generated := [outcome for outcome in drawable if is_there(directory / outcome.model / GENERATED)]:
            generated_sequences(directory, generated, directory / SEQUENCES)
            say(console, f"generated sequences: {directory / SEQUENCES}")
        say(console, f"logs: tensorboard --logdir {directory}")

    return conclude(results.values(), len(jobs), console, resuming("train", directory))


def described(experiment: Experiment) -> str:
    """Return the name of the task and, if no data are given, of the data that it uses instead."""
    task = experiment.task
    stand_in = getattr(task, "stand_in", None)
    if stand_in and getattr(task, "data", None) is None:
        return f"{task.kind} ({stand_in}; --data takes your own)"
    return task.kind


def conclude(results: Iterable[Result], begun: int, console: Console, resume: str) -> int:
    """Report failures, or how to continue if fewer results are complete than were begun; return the exit status."""
    results = list(results)
    if failures := [result.message for result in results if isinstance(result, Failure)]:
        for message in failures:
            print(f"householder: {one_line(message)}", file=sys.stderr)
        return 1
    if sum(isinstance(result, Outcome) and result.metric is not None for result in results) < begun:
        say(console, f"interrupted; continue with: householder {resume}")
        return 130
    return 0


def resuming(command: str, directory: Path) -> str:
    """Return the command line that continues a run."""
    return shlex.join([command, "--resume", str(directory), *(f"--import={name}" for name in permitted_modules())])


def real(directory: Path) -> Path:
    """Return a run's directory, and say where it is if the name is a link: a link that changes is not followed."""
    if not directory.is_symlink():
        return directory
    print(f"{one_line(str(directory))} is a link to {one_line(str(directory.resolve()))}")
    return directory.resolve()


def _asked_where(options: Namespace, group: Group) -> tuple[Path, Experiment]:
    experiment = asked(options)
    if options.output is None and group.is_divided:
        raise UserError("commands that train together need the same --output")
    return options.output or default_directory(experiment), experiment


def asked(options: Namespace, varied: Iterable[Change] = ()) -> Experiment:
    """Return the experiment that a command line asks for: a file's or a packaged one, with some changes.

    Parameters
    ----------
    options : Namespace
        The command line.
    varied : iterable of Change
        Further changes, applied last.
    """
    if options.task is None and options.config is None:
        raise UserError("which task? name one, or a run by --resume RUN (--help lists the tasks)")
    task = options.task or ""
    is_custom = ":" in task
    changes = [Change(text) for text in options.changes]
    changes += [] if options.data is None else [data_change(options.data, task)]
    changes += [] if options.epochs is None else [Change(f"epochs={options.epochs}", "--epochs")]
    changes += [] if options.seed is None else [Change(f"seed={options.seed}", "--seed")]
    changes += [Change(f"task.kind={json.dumps(task)}", "TASK")] if is_custom and not options.config else []
    changes += varied
    path = options.config or packaged_config(OWN_TASK if is_custom else task)
    models = None if options.models is None else options.models.split(",")
    experiment = load_experiment(path, changes, models, full=bool(options.full))
    if options.task not in (None, experiment.task.kind):
        raise UserError(f"{options.config} is an experiment on {experiment.task.kind!r}, not on {options.task!r}")
    return experiment


def default_directory(experiment: Experiment) -> Path:
    """Return the directory of results for a command without ``--output``."""
    return Path("runs") / f"{experiment.task.kind.rpartition(':')[2]}-{datetime.now():%Y%m%d-%H%M%S}"


@contextmanager
def claimed(directory: Path, experiments: Mapping[str, Experiment], begun: bool) -> Iterator[None]:
    """Lock a directory while runs work in it, and write the settings of each run into its folder.

    Parameters
    ----------
    directory : Path
        Where the runs are.
    experiments : dict of str to Experiment
        The settings of each run, by its folder in the directory.
    begun : bool
        Whether the runs begin now.

    Raises
    ------
    UserError
        Another process holds the directory, it cannot be written to, or a new run would begin where one exists.
    """
    try:
        str(directory).encode()
    except UnicodeEncodeError:
        raise UserError(f"cannot write to {directory}: TensorBoard takes only names that are UTF-8") from None
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {directory}: {error.strerror}") from error
    with held(directory):
        places = {inside(directory, folder): experiment for folder, experiment in experiments.items()}
        if begun and (content := content_of(directory)):
            raise UserError(f"{directory} already holds a {content}: --resume {directory} continues it")
        for place, experiment in places.items():
            try:
                place.mkdir(exist_ok=True)
                experiment.save(place / CONFIG)
            except OSError as error:
                raise UserError(f"cannot write to {place}: {error.strerror}") from error
        try:
            yield
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"--resume {directory} continues from the last checkpoints") from None


def content_of(directory: Path) -> Literal["run", "comparison"] | None:
    """Return what a directory holds, None if it is free.

    Raises
    ------
    UserError
        It holds both.
    """
    is_run = is_there(directory / CONFIG)
    # In a run, a model may have such a name, but its folder has no settings.
    is_comparison = any(not is_run or is_there(folder / CONFIG) for folder in comparison_folders(directory))
    if is_run and is_comparison:
        raise UserError(f"{directory} holds a run and a comparison: move the folders {SEED_FOLDER}* elsewhere")
    return "run" if is_run else "comparison" if is_comparison else None


def comparison_folders(directory: Path) -> Iterator[Path]:
    """Yield the folders of a comparison's runs."""
    return directory.glob(f"{SEED_FOLDER}*")


def refuse_changes(options: Namespace, fixed: Iterable[str]) -> None:
    """Refuse options that cannot go with ``--resume``."""
    refused = [f"--{name}" for name in fixed if getattr(options, name) is not None] + ["--set"] * bool(options.changes)
    if refused:
        rule = "--resume keeps the settings a run was begun with, all but --epochs and --data"
        raise UserError(f"{rule}; leave out {', '.join(refused)}")


def resumed_run(directory: Path, options: Namespace) -> Experiment:
    """Return the experiment of an existing run, with the epochs and data that the command line gives."""
    experiment = run_experiment(directory)
    if options.task not in (None, experiment.task.kind):
        raise UserError(f"{directory} is a run of {experiment.task.kind!r}, not of {options.task!r}")
    raw = experiment.model_dump(mode="json")
    changes = [] if options.data is None else [data_change(options.data, experiment.task.kind)]
    if options.epochs is not None:
        if options.epochs < experiment.epochs:
            begun = f"{directory} was begun with {experiment.epochs}"
            raise UserError(f"--epochs {options.epochs}: {begun}; give more to extend it")
        changes.append(Change(f"epochs={options.epochs}", "--epochs"))
    for change in changes:
        apply_change(raw, change)
    return validated(raw, CONFIG, changes)


def _resumed(options: Namespace) -> tuple[Path, Experiment]:
    refuse_changes(options, ("models", "config", "full", "seed", "output"))
    return options.resume, resumed_run(options.resume, options)
