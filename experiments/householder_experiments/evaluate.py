"""``householder evaluate``: the models of a run, measured again."""

from argparse import Namespace
from collections.abc import Iterable, Iterator

import torch
from rich import box
from rich.table import Table

from householder.cli.errors import UserError
from householder_experiments.catalogue import metric_title
from householder_experiments.experiment import Experiment, apply_change, data_change, validated
from householder_experiments.models import SequenceModel
from householder_experiments.outcome import CONFIG, shown
from householder_experiments.report import distinct, new_console
from householder_experiments.tasks import Batch, Task
from householder_experiments.tasks.base import JudgedOn
from householder_experiments.trained import load_trained, run_experiment


def evaluate(options: Namespace) -> int:
    """Measure as the command line says; return the exit status."""
    experiment = run_experiment(options.run)
    if options.data is not None:
        raw, change = experiment.model_dump(mode="json"), data_change(options.data, experiment.task.kind)
        apply_change(raw, change)
        experiment = validated(raw, CONFIG, [change])
    if options.models is not None:
        experiment = experiment.only(options.models.split(","))
    with experiment.default_dtype():
        task = experiment.task.load()
        part: JudgedOn = options.part or task.judged_on
        rows = [
            (
                name,
                *measured(load_trained(options.run, name, options.weights), task, batches(experiment, task, part)),
            )
            for name in experiment.models
        ]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("model")
    for heading in dict.fromkeys((f"{part} loss", f"{part} {metric_title(task.metric)}")):
        table.add_column(heading, justify="right")
    for (name, _, metric), loss in zip(rows, distinct([loss for _, loss, _ in rows]), strict=True):
        table.add_row(name, *[loss, shown(metric, task.unit)][: len(table.columns) - 1])
    new_console().print(table)
    return 0


def batches(experiment: Experiment, task: Task, part: JudgedOn) -> Iterator[Batch]:
    """Return the batches of a part of a task.

    Raises
    ------
    UserError
        The task has no such part.
    """
    if part == "training":
        steps = range(task.steps_per_epoch(experiment.batch_size))
        return (task.batch(experiment.batch_size, experiment.seed, 0, index) for index in steps)
    try:
        return iter(list(task.held_out(part)))
    except KeyError as error:
        raise UserError(f"{experiment.task.kind} has no {part} part with these settings") from error


@torch.no_grad()
def measured(network: SequenceModel, task: Task, parts: Iterable[Batch]) -> tuple[float, float]:
    """Return the mean loss and metric of a network.

    Raises
    ------
    UserError
        The network is for inputs or outputs of another size.
    """
    loss = metric = count = 0.0
    for batch in parts:
        sizes = network.input_size, network.readout.out_features
        if sizes != (task.input_size, task.output_size):
            raise UserError(
                f"the model maps {sizes[0]} inputs to {sizes[1]} outputs, "
                f"but these data have {task.input_size} and {task.output_size}"
            )
        weight = task.weight(batch)
        prediction = network(batch.inputs.to(torch.get_default_dtype()))
        loss += weight * task.loss(prediction, batch.targets).item()
        metric += weight * task.measure(prediction, batch.targets).item()
        count += weight
    if not count:
        raise UserError("there is nothing to measure: the part is empty")
    return loss / count, metric / count
