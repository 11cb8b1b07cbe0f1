"""Trained models of a run, ready to call."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from householder.cli.errors import UserError, nearest
from householder_experiments.checkpoint import NAME, Interface, load_checkpoint
from householder_experiments.experiment import Experiment, saved_experiment
from householder_experiments.models import SequenceModel
from householder_experiments.outcome import CONFIG
from householder_experiments.readers import is_there

if TYPE_CHECKING:
    from householder_experiments.tasks import Task

Weights = Literal["best", "last"]


def load_trained(run: str | Path, model: str | None = None, weights: Weights = "best") -> SequenceModel:
    """Return a model of a run directory; see :func:`householder_experiments.load`."""
    directory = Path(run)
    experiment = run_experiment(directory)
    names = list(experiment.models)
    if model is None:
        if len(names) > 1:
            raise UserError(f"{directory} holds {', '.join(names)}: name one of them")
        (model,) = names
    if model not in names:
        raise UserError(f"{directory} holds no model {model!r}: there are {', '.join(names)}{nearest(model, names)}")
    if weights not in ("best", "last"):
        raise UserError(f"weights is {weights!r}, expected 'best' or 'last'")
    checkpoint = load_checkpoint(directory / model, to_train=False)
    if checkpoint is None:
        raise UserError(f"{directory / model} holds no {NAME}: the model has not been trained")
    try:
        task = cast("Task", Interface(**checkpoint["task"]))
        parameters = (weights == "best" and checkpoint["state"]["best"]) or checkpoint["model"]
        network = experiment.network(model, task)
        network.load_state_dict(parameters)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise UserError(f"{directory / model / NAME} does not fit model {model!r} of {directory / CONFIG}") from error
    return network.eval()


def run_experiment(directory: Path) -> Experiment:
    """Return the experiment of a run."""
    if not is_there(directory / CONFIG):
        raise UserError(f"{directory} holds no run: there is no {CONFIG}")
    return saved_experiment(directory / CONFIG)
