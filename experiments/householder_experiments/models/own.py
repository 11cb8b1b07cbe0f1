"""A recurrence of the user's own, or one of torch's."""

from typing import Annotated

from pydantic import ConfigDict, Field
from torch import Tensor, nn
from typing_extensions import override

from householder_experiments.models.base import ModelSettings, SequenceModel
from householder_experiments.own import PATTERN, called


class OwnModelSettings(ModelSettings):
    """``Class(input_size, hidden_size)`` makes a module that returns all states and the last, as ``torch.nn.RNN`` does.

    Other settings are its keyword arguments.
    """

    model_config = ConfigDict(extra="allow")

    kind: Annotated[str, Field(pattern=PATTERN)]

    @override
    def recurrence(self, input_size: int) -> nn.Module:
        module: nn.Module = called(self.kind, nn.Module, input_size, self.hidden_size, **(self.model_extra or {}))
        return module

    @override
    def transition(self, model: SequenceModel) -> Tensor | None:
        return None
