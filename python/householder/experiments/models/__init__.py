"""Models behind one interface. A new model is one file here and one name in ``AnyModel``."""

from typing import Annotated

from pydantic import Field

from householder.experiments.models.base import ModelSettings, SequenceModel
from householder.experiments.models.gated import LSTMSettings
from householder.experiments.models.orthogonal import ORNNSettings
from householder.experiments.models.simple import SRNNSettings

AnyModel = Annotated[ORNNSettings | LSTMSettings | SRNNSettings, Field(discriminator="kind")]

__all__ = ["AnyModel", "LSTMSettings", "ModelSettings", "ORNNSettings", "SRNNSettings", "SequenceModel"]
