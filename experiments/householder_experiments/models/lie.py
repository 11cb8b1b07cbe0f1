"""The unitary RNN of Hyland and Rätsch (2017): the exponential of an element of the Lie algebra."""

from math import pi, sqrt
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from householder_experiments.models.base import ModelSettings
from householder_experiments.models.looped import ComplexRNN


class LieRNN(ComplexRNN):
    r"""The transition :math:`W = \exp(\sum_{jk} \lambda_{jk} T_{jk})`, T the usual basis of skew-Hermitian matrices.

    Above the diagonal T is real and antisymmetric, below imaginary and symmetric, on it imaginary and diagonal:
    n^2 real numbers that reach all of U(n). The exponential costs O(n^3), once per sequence.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        # Eigenvalues of the sum lie within 2 sqrt(2 n) standard deviations: W's spread over the whole circle.
        bound = sqrt(3) * pi / (2 * sqrt(2 * hidden_size))
        self.coefficients = nn.Parameter(torch.empty(hidden_size, hidden_size).uniform_(-bound, bound))

    @override
    def matrix(self) -> Tensor:
        above, rest = self.coefficients.triu(1), self.coefficients.tril()
        return torch.matrix_exp(torch.complex(above - above.mT, rest + rest.tril(-1).mT))


class LieSettings(ModelSettings):
    """Unitary matrices through the exponential map."""

    is_complex: ClassVar[bool] = True

    kind: Literal["lie-rnn"] = "lie-rnn"

    @override
    def recurrence(self, input_size: int) -> LieRNN:
        return LieRNN(input_size, self.hidden_size)
