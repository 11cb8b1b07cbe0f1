"""The factorised RNN of Vorontsov et al. (2017): singular values within a margin of one."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import override

from householder_experiments.models.base import NonlinearityName, SequenceModel
from householder_experiments.models.cayley import CayleySettings, haar
from householder_experiments.models.looped import RealRNN


class FactorisedRNN(RealRNN):
    r"""The transition :math:`W = U S V^T`, :math:`S = I + r (2 \sigma(p) - 1)`, U and V orthogonal.

    With a margin r of zero, the hard constraint, S is left out.
    """

    spectrum: nn.Parameter | None

    def __init__(self, input_size: int, hidden_size: int, nonlinearity: str, margin: float) -> None:
        super().__init__(input_size, hidden_size, nonlinearity)
        self.margin = margin
        self.u = nn.Parameter(haar(hidden_size, self.initial.dtype))
        self.v = nn.Parameter(haar(hidden_size, self.initial.dtype))
        self.register_parameter("spectrum", nn.Parameter(torch.zeros(hidden_size)) if margin > 0 else None)

    @override
    def matrix(self) -> Tensor:
        if self.spectrum is None:
            return self.u @ self.v.mT
        return self.u * (1 + self.margin * (2 * self.spectrum.sigmoid() - 1)) @ self.v.mT

    def unitary_parameters(self) -> list[nn.Parameter]:
        """Return the matrices that Cayley steps move."""
        return [self.u, self.v]


class USVSettings(CayleySettings):
    """A singular value decomposition trained on its manifold; n (n - 1) of the 2 n^2 stored numbers are free."""

    kind: Literal["usv"] = "usv"
    margin: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """The largest distance of singular values from one."""
    nonlinearity: NonlinearityName = "leaky_relu"
    """Nonlinearity of the recurrence."""

    @override
    def recurrence(self, input_size: int) -> FactorisedRNN:
        return FactorisedRNN(input_size, self.hidden_size, self.nonlinearity, self.margin)

    @override
    def num_parameters(self, model: SequenceModel) -> int:
        return super().num_parameters(model) - self.hidden_size * (self.hidden_size + 1)
