"""Checkpoints that survive a kill at any moment."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from householder.cli.errors import UserError
from householder_experiments.files import write_whole
from householder_experiments.readers import DamagedError, is_there, read_tensors
from householder_experiments.tasks.base import Task

NAME = "checkpoint.pt"
PREVIOUS = "checkpoint.previous.pt"


class Interface(NamedTuple):
    """What a checkpoint tells of its task: what a model needs to know about it, and what each epoch measures."""

    input_size: int
    output_size: int
    every_step: bool
    metric: str
    watched: bool


def interface(task: Task) -> dict[str, int | bool | str]:
    """Return what a checkpoint stores about a task, so that the model can be rebuilt without the data."""
    return Interface(*(getattr(task, name) for name in Interface._fields))._asdict()


def save_checkpoint(directory: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint in a directory, and keep the previous one.

    A kill between the two renames leaves the previous one, which :func:`load_checkpoint` then finds.
    """
    write_whole(directory / NAME, partial(torch.save, state), previous=directory / PREVIOUS)


def load_checkpoint(directory: Path, *, to_train: bool = True) -> dict[str, Any] | None:
    """Return the newest checkpoint of a directory, or None if there is none.

    If the newest is damaged, training continues from the previous one. Results never come from the previous one.

    Raises
    ------
    UserError
        There are checkpoints, but one is no file that may be read, or all are damaged; or the newest is damaged and
        ``to_train`` is False.
    """
    unreadable: list[str] = []
    for name in (NAME, PREVIOUS):
        path = directory / name
        if not is_there(path):
            continue
        try:
            state = read_tensors(path)
        except DamagedError:
            unreadable.append(str(path))
            continue
        if unreadable and not to_train:
            raise UserError(
                f"{unreadable[0]} is damaged: householder train --resume {directory.parent} makes it again "
                f"from {PREVIOUS}"
            )
        return state
    if unreadable:
        raise UserError(
            f"no readable checkpoint: {' and '.join(unreadable)} {'are' if len(unreadable) > 1 else 'is'} damaged; "
            f"delete {'them' if len(unreadable) > 1 else 'it'} to train the model from the beginning"
        )
    return None
