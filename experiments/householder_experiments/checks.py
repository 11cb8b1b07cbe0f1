"""Checks that find the mistakes in an experiment before anything trains or is written."""

from collections.abc import Iterable

import torch

from householder.cli.errors import UserError
from householder_experiments.experiment import Experiment
from householder_experiments.group import Group
from householder_experiments.models.rivals import count_parameters
from householder_experiments.processes import usable_cores
from householder_experiments.tasks import Task


def check(experiment: Experiment, task: Task | None = None) -> Task:
    """Read the data of an experiment, make each of its models without storing it, and return the task.

    Raises
    ------
    UserError
        The data cannot be used, a model refuses its settings, or settings do not go together.
    """
    task = task or experiment.task.load()
    if missing := [name for name in ("input_size", "output_size") if not isinstance(getattr(task, name, None), int)]:
        raise UserError(f"{experiment.task.kind} has no {missing[0]}: set it to an integer in the class or in __init__")
    if task.metric == "loss" and type(task).measure is not Task.measure:
        raise UserError(f"{experiment.task.kind} measures something else than its loss: set metric to the name of that")
    if experiment.patience is not None and not task.watched:
        raise UserError(
            "patience needs validation data: digits has them with task.validation=0.2, your task with watched = True"
        )
    if experiment.accelerator == "cuda" and not torch.cuda.is_available():
        raise UserError("accelerator=cuda: there is no CUDA device that torch can use")
    for name, settings in experiment.models.items():
        try:
            count_parameters(settings, task)
        except (ValueError, UserError) as error:
            raise UserError(f"models.{name}: {error}") from error
    return task


def check_group(group: Group, experiment: Experiment) -> None:
    """Refuse more processes than they have cores, GPUs or sequences."""
    on_gpus = experiment.accelerator != "cpu" and torch.cuda.is_available()
    most = torch.cuda.device_count() if on_gpus else usable_cores()
    if group.devices > most:
        raise UserError(f"--devices {group.devices}: there are {most} {'GPUs' if on_gpus else 'cores'}")
    if group.size > experiment.batch_size:
        raise UserError(f"{group.size} processes cannot share a batch of {experiment.batch_size} sequences")


def check_all(experiments: Iterable[Experiment]) -> None:
    """Check several experiments; data that several share are read once."""
    tasks: dict[str, Task] = {}
    for experiment in experiments:
        data = repr(experiment.task)  # JSON has no place for a folder whose name is no UTF-8
        tasks[data] = check(experiment, tasks.get(data))
