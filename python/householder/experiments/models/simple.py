"""The simple recurrent network ``h_t = phi(W h_{t-1} + V x_t + b)`` with an unconstrained W."""

from typing import Literal

from torch import Tensor, nn
from typing_extensions import override

from householder.experiments.models.base import LearnedState, ModelSettings, SequenceModel


class SRNNSettings(ModelSettings):
    """``torch.nn.RNN`` with a learned initial state."""

    kind: Literal["srnn"] = "srnn"
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    """Nonlinearity of the recurrence."""

    @override
    def recurrence(self, input_size: int) -> LearnedState:
        return LearnedState(nn.RNN(input_size, self.hidden_size, nonlinearity=self.nonlinearity))

    @override
    def transition(self, model: SequenceModel) -> Tensor:
        return model.get_parameter("recurrence.rnn.weight_hh_l0")
