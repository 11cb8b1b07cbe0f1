"""Checkpoints that survive a kill at any moment."""

import os
from pathlib import Path
from typing import Any

import torch

from householder.experiments.errors import UserError

NAME = "checkpoint.pt"
PREVIOUS = "checkpoint.previous.pt"


def save_checkpoint(directory: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint in a directory, keeping the one before.

    The new file is complete on disk before it takes its name; a kill between the two renames leaves
    the previous one, which :func:`load_checkpoint` then finds.
    """
    temporary = directory / f"{NAME}.tmp"
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    current = directory / NAME
    if current.exists():
        current.replace(directory / PREVIOUS)
    temporary.replace(current)


def load_checkpoint(directory: Path) -> dict[str, Any] | None:
    """Return the newest readable checkpoint of a directory, or None where there is none.

    Raises
    ------
    UserError
        If there are checkpoints but none can be read.
    """
    unreadable = []
    for name in (NAME, PREVIOUS):
        path = directory / name
        if not path.exists():
            continue
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch reports garbled files by many kinds
            unreadable.append(f"{path} ({str(error).splitlines()[0] if str(error) else type(error).__name__})")
            continue
        if isinstance(state, dict):
            return state
        unreadable.append(f"{path} (not a checkpoint)")
    if unreadable:
        raise UserError(f"no readable checkpoint: {unreadable[0]}")
    return None
