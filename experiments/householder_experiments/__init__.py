"""Experiments: ``householder train TASK`` and its parts.

Each part has one purpose. ``tasks`` has data, loss and metric, ``models`` the networks, ``configs`` the settings of
each experiment and ``training`` the loop. ``launch`` runs several models side by side, and ``figures`` draws. The
command line is :mod:`householder.cli`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from householder_experiments.own import permitted

if TYPE_CHECKING:
    from householder_experiments.models import SequenceModel


def load(
    run: str | Path,
    model: str | None = None,
    *,
    weights: Literal["best", "last"] = "best",
    imports: Iterable[str] = (),
) -> "SequenceModel":
    """Return a trained model of a run, ready to call, without its task's data.

    Parameters
    ----------
    run : str or Path
        A directory that ``householder train`` has written, or a ``seed-K`` directory of a comparison.
    model : str, optional
        Name of the model; optional if the run has only one.
    weights : {"best", "last"}
        "best" are the weights whose metric is the run's result. They differ from the last weights if ``patience`` was
        set, or if the task is judged in training.
    imports : iterable of str
        Modules that may be imported, and thereby run, if the model's class is in one of them, such as
        ``["my_module"]``. Without them, nothing of a run is executed.

    Returns
    -------
    SequenceModel
        A ``torch.nn.Module`` in evaluation mode on the CPU. It maps ``(T, B, input_size)`` to ``(T, B, output_size)``,
        or to ``(B, output_size)`` if the task reads only the last step.

    Raises
    ------
    householder.cli.errors.UserError
        There is no such run or model, or its checkpoint is missing or damaged. Or its class is in a module that
        ``imports`` does not name.

    Examples
    --------
    >>> from householder_experiments import load
    >>> network = load("runs/digits", "ornn")  # doctest: +SKIP
    >>> network(images).argmax(-1)  # images of shape (64, B, 1)  # doctest: +SKIP
    """
    from householder_experiments.trained import load_trained  # here, because it takes torch a second to load

    with permitted(imports):
        return load_trained(run, model, weights)
