"""Tasks: data, loss and metric. A new task is one file here and one name in ``TaskSettings``."""

from typing import Annotated, get_args

from pydantic import Discriminator, Field, Tag

from householder_experiments.settings import CUSTOM, PACKAGED, Settings, origin_of_kind
from householder_experiments.tasks.addition import AdditionSettings
from householder_experiments.tasks.audio import AudioSettings
from householder_experiments.tasks.base import Batch, Task
from householder_experiments.tasks.characters import CharactersSettings
from householder_experiments.tasks.copying import CopySettings
from householder_experiments.tasks.digits import DigitsSettings
from householder_experiments.tasks.mnist import MNISTSettings, PermutedMNISTSettings
from householder_experiments.tasks.own import OwnTaskSettings
from householder_experiments.tasks.recall import RecallSettings
from householder_experiments.tasks.tracking import TrackingSettings

PackagedTask = Annotated[
    AdditionSettings
    | AudioSettings
    | CharactersSettings
    | CopySettings
    | DigitsSettings
    | MNISTSettings
    | PermutedMNISTSettings
    | RecallSettings
    | TrackingSettings,
    Field(discriminator="kind"),
]

TaskSettings = Annotated[
    Annotated[PackagedTask, Tag(PACKAGED)] | Annotated[OwnTaskSettings, Tag(CUSTOM)], Discriminator(origin_of_kind)
]

PACKAGED_TASKS: dict[str, type[Settings]] = {
    settings.model_fields["kind"].default: settings for settings in get_args(get_args(PackagedTask)[0])
}
"""The settings of each kind that comes with the package."""

__all__ = ["PACKAGED_TASKS", "Batch", "PackagedTask", "Task", "TaskSettings"]
