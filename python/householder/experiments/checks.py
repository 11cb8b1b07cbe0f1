"""Checks that find the mistakes in an experiment before anything trains or is written."""

from collections.abc import Iterable

import torch

from householder.experiments.errors import UserError
from householder.experiments.experiment import Experiment
from householder.experiments.models.rivals import count_parameters
from householder.experiments.tasks import Task


def check(experiment: Experiment, task: Task | None = None) -> Task:
    """Read the data of an experiment, make each of its models without storing it, and return the task.

    Raises
    ------
    UserError
        The data cannot be used, a model refuses its settings, or settings do not go together.
    """
    task = task or experiment.task.load()
    if experiment.patience is not None and not task.watched:
        raise UserError("patience needs validation data: digits has them with task.validation=0.2")
    if experiment.accelerator == "cuda" and not torch.cuda.is_available():
        raise UserError("accelerator=cuda: there is no CUDA device that torch can use")
    for name, settings in experiment.models.items():
        try:
            count_parameters(settings, task)
        except (ValueError, UserError) as error:
            raise UserError(f"models.{name}: {error}") from error
    return task


def check_all(experiments: Iterable[Experiment]) -> None:
    """Check several experiments; data that several share are read once."""
    tasks: dict[str, Task] = {}
    for experiment in experiments:
        data = experiment.task.model_dump_json()
        tasks[data] = check(experiment, tasks.get(data))
