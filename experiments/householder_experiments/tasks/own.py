"""A task of the user's own."""

from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field

from householder_experiments.own import PATTERN, called
from householder_experiments.settings import Settings
from householder_experiments.tasks.base import Task


class OwnTaskSettings(Settings):
    """A class derived from ``householder_experiments.tasks.Task``; other settings are its keyword arguments."""

    model_config = ConfigDict(extra="allow")

    kind: Annotated[str, Field(pattern=PATTERN)]

    def load(self) -> Task:
        """Return the task."""
        settings = dict(self.model_extra or {})
        if "data" in settings:
            settings["data"] = Path(settings["data"])
        task: Task = called(self.kind, Task, **settings)
        return task
