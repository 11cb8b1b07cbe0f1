"""Models behind one interface. A new model is one file here and one name in ``AnyModel``."""

from typing import Annotated

from pydantic import Field

from householder.experiments.models.base import ModelSettings, SequenceModel
from householder.experiments.models.full_capacity import FullCapacitySettings
from householder.experiments.models.gated import LSTMSettings
from householder.experiments.models.lie import LieSettings
from householder.experiments.models.orthogonal import ORNNSettings
from householder.experiments.models.orthogonal_soft import SoftORNNSettings
from householder.experiments.models.restricted_capacity import RestrictedCapacitySettings
from householder.experiments.models.simple import SRNNSettings
from householder.experiments.models.unitary import UnitarySettings
from householder.experiments.models.urnn import URNNSettings
from householder.experiments.models.usv import USVSettings

AnyModel = Annotated[
    ORNNSettings
    | SoftORNNSettings
    | UnitarySettings
    | LSTMSettings
    | SRNNSettings
    | URNNSettings
    | RestrictedCapacitySettings
    | FullCapacitySettings
    | LieSettings
    | USVSettings,
    Field(discriminator="kind"),
]

__all__ = ["AnyModel", "ModelSettings", "SequenceModel"]
