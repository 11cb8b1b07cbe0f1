"""Tasks: data, loss and metric. A new task is one file here and one name in ``TaskSettings``."""

from householder.experiments.tasks.base import Batch, Task
from householder.experiments.tasks.digits import DigitsSettings

TaskSettings = DigitsSettings  # further tasks: Annotated[DigitsSettings | ..., Field(discriminator="kind")]

__all__ = ["Batch", "DigitsSettings", "Task", "TaskSettings"]
