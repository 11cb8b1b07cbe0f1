"""The full-capacity uRNN of Wisdom et al. (2016): any unitary matrix, moved on the manifold by Cayley steps."""

from typing import ClassVar, Literal

from torch import Tensor, nn
from typing_extensions import override

from householder_experiments.models.base import SequenceModel
from householder_experiments.models.cayley import CayleySettings, haar
from householder_experiments.models.looped import ComplexRNN


class FullCapacityRNN(ComplexRNN):
    """W itself is the parameter."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.w = nn.Parameter(haar(hidden_size, self.initial.dtype))

    @override
    def matrix(self) -> Tensor:
        return self.w

    def unitary_parameters(self) -> list[nn.Parameter]:
        """Return the matrices that Cayley steps move."""
        return [self.w]


class FullCapacitySettings(CayleySettings):
    """Unitary matrices trained on their manifold; n^2 of the 2 n^2 stored numbers are free."""

    is_complex: ClassVar[bool] = True

    kind: Literal["fc-urnn"] = "fc-urnn"

    @override
    def recurrence(self, input_size: int) -> FullCapacityRNN:
        return FullCapacityRNN(input_size, self.hidden_size)

    @override
    def num_parameters(self, model: SequenceModel) -> int:
        return super().num_parameters(model) - self.hidden_size**2
