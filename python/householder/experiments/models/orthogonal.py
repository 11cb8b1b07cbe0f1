"""The paper's oRNN: the transition matrix is a product of Householder reflections."""

from typing import Literal

from typing_extensions import override

from householder.experiments.models.base import ModelSettings, Positive, SequenceModel
from householder.torch import OrthogonalRNN


class ORNNSettings(ModelSettings):
    """``householder.torch.OrthogonalRNN`` with a learned initial state."""

    kind: Literal["ornn"] = "ornn"
    num_reflections: Positive
    nonlinearity: Literal["identity", "tanh", "relu", "leaky_relu"] = "leaky_relu"

    @override
    def recurrence(self, input_size: int) -> OrthogonalRNN:
        return OrthogonalRNN(
            input_size,
            self.hidden_size,
            num_reflections=self.num_reflections,
            nonlinearity=self.nonlinearity,
            learn_h0=True,
        )

    @override
    def num_parameters(self, model: SequenceModel) -> int:
        above_diagonal = self.num_reflections * (self.num_reflections - 1) // 2  # of the reflections: not parameters
        return super().num_parameters(model) - above_diagonal
