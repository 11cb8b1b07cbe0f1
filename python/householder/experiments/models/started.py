"""The simple recurrent network with an orthogonal or identity matrix at the start."""

from typing import Literal

import torch
from torch import nn
from typing_extensions import override

from householder.experiments.models.base import LearnedState
from householder.experiments.models.simple import SRNNSettings


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
