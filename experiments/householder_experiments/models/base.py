"""The interface between a model and the training loop."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, TypeAlias

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Adam

from householder._base.spec import NONLINEARITIES, OF_COMPLEX
from householder_experiments.settings import Settings, Unit
from householder_experiments.tasks import Task

if TYPE_CHECKING:
    NonlinearityName: TypeAlias = str
    ComplexNonlinearityName: TypeAlias = str
else:
    NonlinearityName, ComplexNonlinearityName = Literal[tuple(NONLINEARITIES)], Literal[OF_COMPLEX]

Positive = Annotated[int, Field(ge=1)]
LARGEST_SIZE = 1 << 16


class ModelSettings(Settings, ABC):
    """Size of a model and how it is trained."""

    is_complex: ClassVar[bool] = False
    """Whether states are complex; they are given to the readout as [Re; Im]."""

    hidden_size: Annotated[int, Field(ge=1, le=LARGEST_SIZE), Unit("units")]
    """Units of the state. One model must have it; one that does not gets as many parameters as the first that does."""
    learning_rate: Annotated[float, Field(gt=0)]
    """Learning rate of Adam, before the schedule's factor."""
    schedule: Literal["constant", "cosine", "hold"] = "constant"
    """Factor on the learning rate: 1; half a cosine wave from 1 to 0; 1 for 70 % of the steps, then linearly to 0."""
    warm_up: Annotated[float, Field(ge=0, lt=1), Unit("fraction of the steps")] = 0.0
    """Fraction of the steps in which a second factor on the learning rate rises linearly to 1."""
    epochs_factor: Annotated[float, Field(gt=0)] = 1.0
    """Epochs of this model per epoch of the experiment. With cheaper epochs, more fit into the same time."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates of the first and second moments."""
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """The largest total norm of all gradients; by default there is no limit."""

    @abstractmethod
    def recurrence(self, input_size: int) -> nn.Module:
        """Return a module that maps (T, B, input_size) to all states and the last, as ``torch.nn.RNN`` does."""

    def build(self, task: Task) -> "SequenceModel":
        """Return the network for a task, initialised from torch's current seed."""
        readout = affine(2 * self.hidden_size if self.is_complex else self.hidden_size, task.output_size)
        return SequenceModel(self.recurrence(task.input_size), readout, task.every_step, task.input_size)

    def optimizer(self, model: "SequenceModel") -> Adam:
        """Return what updates a model: Adam, unless a constraint asks for more."""
        return Adam(model.parameters(), lr=self.learning_rate, betas=self.betas)

    def transition(self, model: "SequenceModel") -> Tensor | None:
        """Return the matrix W (n, n) that takes a state to the next, or None where there is no one matrix."""
        matrix: Tensor = model.recurrence.matrix()  # type: ignore[operator]
        return matrix

    def num_parameters(self, model: "SequenceModel") -> int:
        """Return how many real numbers training can choose: stored ones, without those that a constraint fixes."""
        trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
        return sum(parameter.numel() * (2 if parameter.is_complex() else 1) for parameter in trained)


class SequenceModel(nn.Module):
    """A recurrence and an affine readout of its states."""

    def __init__(self, recurrence: nn.Module, readout: nn.Linear, every_step: bool, input_size: int) -> None:
        super().__init__()
        self.recurrence = recurrence
        self.readout = readout
        self.every_step = every_step
        self.input_size = input_size

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (T, B, input_size) to (T, B, output_size), or to (B, output_size) where only the last step is read."""
        states, last = self.recurrence(inputs)
        prediction: Tensor = self.readout(states if self.every_step else last[-1])
        return prediction


class LearnedState(nn.Module):
    """One of torch's recurrences with an initial state that is learned.

    torch adds two biases per unit, of which one is redundant: the second is fixed at zero, so that
    parameters are counted fairly.
    """

    def __init__(self, rnn: nn.RNN | nn.LSTM) -> None:
        super().__init__()
        self.rnn = rnn
        states = 2 if isinstance(rnn, nn.LSTM) else 1
        self.initial = nn.Parameter(initial_state(states, 1, 1, rnn.hidden_size))
        parameters = dict(rnn.named_parameters())
        nn.init.zeros_(parameters["bias_ih_l0"])
        nn.init.zeros_(parameters["bias_hh_l0"]).requires_grad_(False)
        nn.init.xavier_uniform_(parameters["weight_ih_l0"])

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return all states (T, B, n) and the last (1, B, n)."""
        initial = self.initial.expand(-1, -1, inputs.shape[1], -1).contiguous()
        if isinstance(self.rnn, nn.LSTM):
            states, (last, _) = self.rnn(inputs, (initial[0], initial[1]))
        else:
            states, last = self.rnn(inputs, initial[0])
        return states, last


def initial_state(*shape: int) -> Tensor:
    """Return the paper's start of a learned initial state: uniform within sqrt(3 / 2n)."""
    bound = (1.5 / shape[-1]) ** 0.5
    return torch.empty(shape).uniform_(-bound, bound)


def affine(inputs: int, outputs: int) -> nn.Linear:
    """Return an affine map with Glorot's uniform weights and zero bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
