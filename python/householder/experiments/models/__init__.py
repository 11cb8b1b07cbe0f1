"""Models behind one interface. A new model is one file here and one name in ``AnyModel``."""

from typing import Annotated, get_args

from pydantic import Discriminator, Field, Tag

from householder.experiments.models.base import ModelSettings, SequenceModel
from householder.experiments.models.delta import DeltaProductSettings, DeltaSettings, GatedDeltaSettings
from householder.experiments.models.full_capacity import FullCapacitySettings
from householder.experiments.models.gated import LSTMSettings
from householder.experiments.models.lie import LieSettings
from householder.experiments.models.orthogonal import ORNNSettings, SoftORNNSettings
from householder.experiments.models.own import OwnModelSettings
from householder.experiments.models.simple import IdentityStartSettings, OrthogonalStartSettings, SRNNSettings
from householder.experiments.models.unitary import UnitarySettings
from householder.experiments.models.urnn import RestrictedCapacitySettings, URNNSettings
from householder.experiments.models.usv import USVSettings
from householder.experiments.settings import OWN, PACKAGED, origin_of_kind

PackagedModel = Annotated[
    ORNNSettings
    | SoftORNNSettings
    | UnitarySettings
    | LSTMSettings
    | SRNNSettings
    | OrthogonalStartSettings
    | IdentityStartSettings
    | URNNSettings
    | RestrictedCapacitySettings
    | FullCapacitySettings
    | LieSettings
    | USVSettings
    | DeltaSettings
    | GatedDeltaSettings
    | DeltaProductSettings,
    Field(discriminator="kind"),
]

AnyModel = Annotated[
    Annotated[PackagedModel, Tag(PACKAGED)] | Annotated[OwnModelSettings, Tag(OWN)], Discriminator(origin_of_kind)
]

PACKAGED_MODELS: dict[str, type[ModelSettings]] = {
    settings.model_fields["kind"].default: settings for settings in get_args(get_args(PackagedModel)[0])
}
"""The settings of each kind that comes with the package."""

__all__ = ["PACKAGED_MODELS", "AnyModel", "ModelSettings", "PackagedModel", "SequenceModel"]
