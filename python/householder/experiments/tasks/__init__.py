"""Tasks: data, loss and metric. A new task is one file here and one name in ``TaskSettings``."""

from typing import Annotated

from pydantic import Field

from householder.experiments.tasks.addition import AdditionSettings
from householder.experiments.tasks.audio import AudioSettings
from householder.experiments.tasks.base import Batch, Task
from householder.experiments.tasks.characters import CharactersSettings
from householder.experiments.tasks.copying import CopySettings
from householder.experiments.tasks.digits import DigitsSettings
from householder.experiments.tasks.mnist import MNISTSettings, PermutedMNISTSettings

TaskSettings = Annotated[
    AdditionSettings
    | AudioSettings
    | CharactersSettings
    | CopySettings
    | DigitsSettings
    | MNISTSettings
    | PermutedMNISTSettings,
    Field(discriminator="kind"),
]

__all__ = ["Batch", "Task", "TaskSettings"]
