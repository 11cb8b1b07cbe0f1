"""The restricted-capacity uRNN of Wisdom et al. (2016)."""

from collections.abc import Callable
from typing import ClassVar, Literal

from torch import Tensor
from typing_extensions import override

from householder.experiments.models.base import ModelSettings
from householder.experiments.models.looped import ComplexRNN
from householder.experiments.models.urnn import FourierRNN


class FormedFourierRNN(FourierRNN):
    """Arjovsky's transition, formed once per sequence in O(n^2 log n), with a dense product in each step."""

    @override
    def multiplication(self) -> Callable[[Tensor], Tensor]:
        return ComplexRNN.multiplication(self)


class RestrictedCapacitySettings(ModelSettings):
    """The matrices of ``urnn`` as dense ones, which are faster if n is small or batches are large."""

    is_complex: ClassVar[bool] = True

    kind: Literal["rc-urnn"] = "rc-urnn"

    @override
    def recurrence(self, input_size: int) -> FormedFourierRNN:
        return FormedFourierRNN(input_size, self.hidden_size)
