"""The long short-term memory."""

from typing import Literal

import torch
from torch import nn
from typing_extensions import override

from householder_experiments.models.base import LearnedState, ModelSettings, SequenceModel


class LSTMSettings(ModelSettings):
    """``torch.nn.LSTM`` with a learned initial state and a positive forget bias, which keeps memory open at first."""

    kind: Literal["lstm"] = "lstm"
    forget_bias: float = 1.0
    """The forget gate's bias at the start."""

    @override
    def recurrence(self, input_size: int) -> LearnedState:
        model = LearnedState(nn.LSTM(input_size, self.hidden_size))
        forget = slice(self.hidden_size, 2 * self.hidden_size)  # torch's order of gates: input, forget, cell, output
        with torch.no_grad():
            model.rnn.get_parameter("bias_ih_l0")[forget] = self.forget_bias
        return model

    @override
    def transition(self, model: SequenceModel) -> None:
        return None
