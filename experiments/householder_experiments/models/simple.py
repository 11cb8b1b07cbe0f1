"""The simple recurrent network ``h_t = phi(W h_{t-1} + V x_t + b)`` with an unconstrained W, started in three ways."""

from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from householder_experiments.models.base import LearnedState, ModelSettings, SequenceModel


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


class OrthogonalStartSettings(SRNNSettings):
    """``torch.nn.RNN`` whose recurrence is a random orthogonal matrix at the start, and any matrix afterwards."""

    kind: Literal["srnn-orthogonal"] = "srnn-orthogonal"  # type: ignore[assignment]

    @override
    def recurrence(self, input_size: int) -> LearnedState:
        model = super().recurrence(input_size)
        nn.init.orthogonal_(model.rnn.get_parameter("weight_hh_l0"))
        return model


class IdentityStartSettings(SRNNSettings):
    """The IRNN of Le, Jaitly and Hinton (2015): ReLU, the identity at the start, and small input weights."""

    kind: Literal["irnn"] = "irnn"  # type: ignore[assignment]
    nonlinearity: Literal["tanh", "relu"] = "relu"
    """Nonlinearity of the recurrence."""

    @override
    def recurrence(self, input_size: int) -> LearnedState:
        model = super().recurrence(input_size)
        with torch.no_grad():
            nn.init.eye_(model.rnn.get_parameter("weight_hh_l0"))
            nn.init.normal_(model.rnn.get_parameter("weight_ih_l0"), std=0.001)
            nn.init.zeros_(model.initial)
        return model
