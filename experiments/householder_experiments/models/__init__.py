"""Models behind one interface. A new model is one file here and one name in ``AnyModel``."""

from typing import Annotated, get_args

from pydantic import Discriminator, Field, Tag

from householder_experiments.models.base import ModelSettings, SequenceModel
from householder_experiments.models.delta import DeltaProductSettings, DeltaSettings, GatedDeltaSettings
from householder_experiments.models.free import FreeSettings
from householder_experiments.models.full_capacity import FullCapacitySettings
from householder_experiments.models.gated import LSTMSettings
from householder_experiments.models.lie import LieSettings
from householder_experiments.models.orthogonal import ORNNSettings, SoftORNNSettings
from householder_experiments.models.own import OwnModelSettings
from householder_experiments.models.simple import IdentityStartSettings, OrthogonalStartSettings, SRNNSettings
from householder_experiments.models.unitary import UnitarySettings
from householder_experiments.models.urnn import RestrictedCapacitySettings, URNNSettings
from householder_experiments.models.usv import USVSettings
from householder_experiments.settings import CUSTOM, PACKAGED, origin_of_kind

PackagedModel = Annotated[
    ORNNSettings
    | SoftORNNSettings
    | UnitarySettings
    | LSTMSettings
    | SRNNSettings
    | OrthogonalStartSettings
    | IdentityStartSettings
    | FreeSettings
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
    Annotated[PackagedModel, Tag(PACKAGED)] | Annotated[OwnModelSettings, Tag(CUSTOM)], Discriminator(origin_of_kind)
]

PACKAGED_MODELS: dict[str, type[ModelSettings]] = {
    settings.model_fields["kind"].default: settings for settings in get_args(get_args(PackagedModel)[0])
}
"""The settings of each kind that comes with the package."""

__all__ = ["PACKAGED_MODELS", "AnyModel", "ModelSettings", "PackagedModel", "SequenceModel"]
