"""The oRNN under the paper's soft constraint: ``u_1`` varies between -1 and 1."""

from typing import ClassVar, Literal

from householder.experiments.models.orthogonal import ReflectionSettings


class SoftORNNSettings(ReflectionSettings):
    """As ``ornn``, but W may shrink one direction if there are as many reflections as units, as by default."""

    constraint: ClassVar[str] = "soft"

    kind: Literal["ornn-soft"] = "ornn-soft"
