"""Experiments: ``householder train TASK`` and what is behind it.

Each room has one purpose: ``tasks`` hold data, loss and metric; ``models`` the networks; ``configs``
the settings of each experiment; ``training`` the loop; ``launch`` runs several models side by side;
``figures`` draws. The command line is :mod:`householder.cli`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from householder.experiments.models import SequenceModel


def load(run: str | Path, model: str | None = None, *, weights: Literal["best", "last"] = "best") -> "SequenceModel":
    """Return a trained model of a run, ready to call; its task's data are not needed.

    Parameters
    ----------
    run : str or Path
        A directory that ``householder train`` has left, or one ``seed-K`` of a comparison.
    model : str, optional
        Which of its models; may be left out where there is one.
    weights : {"best", "last"}
        Those that judged the run, which differ from the last ones where it had patience or was judged in training.

    Returns
    -------
    SequenceModel
        A ``torch.nn.Module`` in evaluation mode on the CPU. It maps ``(T, B, input_size)`` to ``(T, B, output_size)``,
        or to ``(B, output_size)`` where the task reads the last step alone.

    Raises
    ------
    householder.experiments.errors.UserError
        There is no such run or model, or its checkpoint is missing or damaged.

    Examples
    --------
    >>> from householder.experiments import load
    >>> network = load("runs/digits", "ornn")  # doctest: +SKIP
    >>> network(images).argmax(-1)  # images of shape (64, B, 1)  # doctest: +SKIP
    """
    from householder.experiments.trained import load_trained  # here, because it takes torch a second to load

    return load_trained(run, model, weights=weights)
