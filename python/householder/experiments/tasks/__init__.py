"""Tasks: data, loss and metric. A new task is one file here and one name in ``TaskSettings``."""

from typing import Annotated

from pydantic import Field

from householder.experiments.tasks.addition import AdditionSettings
from householder.experiments.tasks.base import Batch, Task
from householder.experiments.tasks.copying import CopySettings
from householder.experiments.tasks.digits import DigitsSettings

TaskSettings = Annotated[AdditionSettings | CopySettings | DigitsSettings, Field(discriminator="kind")]

__all__ = ["AdditionSettings", "Batch", "CopySettings", "DigitsSettings", "Task", "TaskSettings"]
