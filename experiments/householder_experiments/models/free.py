"""The simple recurrent network with any nonlinearity: W starts orthogonal, and nothing constrains it afterwards."""

from typing import Literal

from torch import Tensor, nn
from typing_extensions import override

from householder_experiments.models.base import ModelSettings, NonlinearityName
from householder_experiments.models.cayley import haar
from householder_experiments.models.looped import RealRNN


class FreeRNN(RealRNN):
    """W itself is the parameter."""

    def __init__(self, input_size: int, hidden_size: int, nonlinearity: str) -> None:
        super().__init__(input_size, hidden_size, nonlinearity)
        self.w = nn.Parameter(haar(hidden_size, self.initial.dtype))

    @override
    def matrix(self) -> Tensor:
        return self.w


class FreeSettings(ModelSettings):
    """``ornn`` without its constraint: ``srnn-orthogonal`` with any nonlinearity, step by step in Python."""

    kind: Literal["free-rnn"] = "free-rnn"
    nonlinearity: NonlinearityName = "oplu"
    """Nonlinearity of the recurrence."""

    @override
    def recurrence(self, input_size: int) -> FreeRNN:
        return FreeRNN(input_size, self.hidden_size, self.nonlinearity)
