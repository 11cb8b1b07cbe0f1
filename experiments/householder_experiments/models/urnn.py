"""The unitary evolution RNN of Arjovsky, Shah and Bengio (2016), also with its matrix formed once."""

from collections.abc import Callable
from math import pi
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from householder.torch import apply
from householder_experiments.models.base import ModelSettings
from householder_experiments.models.looped import ComplexRNN, complex_uniform


class FourierRNN(ComplexRNN):
    r"""The transition :math:`W = D_3 R_2 F^{-1} D_2 \Pi R_1 F D_1`.

    D are diagonal matrices of phases, R reflections, F is the Fourier transform and Pi a fixed random permutation:
    7 n real numbers, and O(n log n) operations for a vector.
    """

    permutation: Tensor

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.phases = nn.Parameter(torch.empty(3, hidden_size).uniform_(-pi, pi))
        self.reflections = nn.Parameter(complex_uniform(1.0, 2, hidden_size))
        self.register_buffer("permutation", torch.randperm(hidden_size))

    @override
    def multiplication(self) -> Callable[[Tensor], Tensor]:
        first, second, third = torch.polar(torch.ones_like(self.phases), self.phases)
        u_1, u_2 = self.reflections.unsqueeze(-1)

        def multiply(h: Tensor) -> Tensor:
            h = apply(u_1, torch.fft.fft(first * h, norm="ortho"))
            h = torch.fft.ifft(second * h[:, self.permutation], norm="ortho")
            turned: Tensor = third * apply(u_2, h)
            return turned

        return multiply

    @override
    def matrix(self) -> Tensor:
        eye = torch.eye(self.phases.shape[1], dtype=self.reflections.dtype, device=self.phases.device)
        return FourierRNN.multiplication(self)(eye).mT


class URNNSettings(ModelSettings):
    """A product of diagonal matrices, reflections, Fourier transforms and a permutation, factor by factor."""

    is_complex: ClassVar[bool] = True

    kind: Literal["urnn"] = "urnn"

    @override
    def recurrence(self, input_size: int) -> FourierRNN:
        return FourierRNN(input_size, self.hidden_size)


class FormedFourierRNN(FourierRNN):
    """The restricted-capacity uRNN of Wisdom et al. (2016): the matrix is formed once a sequence, in O(n^2 log n)."""

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
