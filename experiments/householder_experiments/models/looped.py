"""Recurrences that have no kernel of their own: the loop over time runs in Python."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor, nn
from typing_extensions import override

from householder._base import validate
from householder._base.spec import NONLINEARITIES
from householder.torch._base.expressions import activate
from householder_experiments.models.base import initial_state


class LoopedRNN(nn.Module, ABC):
    r"""The recurrence :math:`h_t = \phi(W h_{t-1} + V x_t)` with a learned initial state, one step at a time."""

    initial: nn.Parameter
    input_weight: nn.Parameter

    @abstractmethod
    def matrix(self) -> Tensor:
        """Form W, ``(n, n)``."""

    @abstractmethod
    def activate(self, a: Tensor) -> Tensor:
        """Apply the nonlinearity, and the bias, to ``a (B, n)``."""

    def multiplication(self) -> Callable[[Tensor], Tensor]:
        """Return the function that maps ``h (B, n)`` to ``W h``; it is requested once per sequence."""
        transposed = self.matrix().mT
        return lambda h: h @ transposed

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return all states and the last, (T, B, n) and (1, B, n), complex ones as [Re; Im]."""
        times_w = self.multiplication()
        drive = inputs.to(self.input_weight.dtype) @ self.input_weight.mT
        state = self.initial.expand(inputs.shape[1], -1)
        states = []
        for pushed in drive.unbind():
            state = self.activate(times_w(state) + pushed)
            states.append(state)
        return real_parts(torch.stack(states)), real_parts(state[None])


class RealRNN(LoopedRNN):
    """Real states, any of the library's nonlinearities, an additive bias."""

    nonlinearity_bias: nn.Parameter | None

    def __init__(self, input_size: int, hidden_size: int, nonlinearity: str) -> None:
        super().__init__()
        self.nonlinearity = nonlinearity
        self.initial = nn.Parameter(initial_state(hidden_size))
        self.input_weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(hidden_size, input_size)))
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        moduli = validate.moduli(nonlinearity, hidden_size, is_complex=False)
        phi_bias = nn.Parameter(torch.zeros(moduli)) if NONLINEARITIES[nonlinearity].has_bias else None
        self.register_parameter("nonlinearity_bias", phi_bias)

    @override
    def activate(self, a: Tensor) -> Tensor:
        return activate(a + self.bias, self.nonlinearity, 0.1, self.nonlinearity_bias)


class ComplexRNN(LoopedRNN):
    """The unitary networks of the literature. Their states are complex, and modReLU's bias is their only one."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.initial = nn.Parameter(complex_uniform(sqrt(1.5 / hidden_size), hidden_size))
        self.input_weight = nn.Parameter(complex_uniform(sqrt(3 / (input_size + hidden_size)), hidden_size, input_size))
        self.bias = nn.Parameter(torch.empty(hidden_size).uniform_(-0.01, 0.01))

    @override
    def activate(self, a: Tensor) -> Tensor:
        return activate(a, "modrelu", 0.0, self.bias)


class RealParts(nn.Module):
    """A complex recurrence whose states are given as [Re; Im]."""

    def __init__(self, recurrence: nn.Module) -> None:
        super().__init__()
        self.recurrence = recurrence

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return all states (T, B, 2 n) and the last (1, B, 2 n)."""
        states, last = self.recurrence(inputs)
        return real_parts(states), real_parts(last)


def real_parts(states: Tensor) -> Tensor:
    """Return complex ``(..., n)`` as [Re; Im], ``(..., 2 n)``; real numbers as they are."""
    return torch.cat([states.real, states.imag], -1) if states.is_complex() else states


def complex_uniform(bound: float, *shape: int) -> Tensor:
    """Return complex numbers whose real and imaginary parts are uniform in [-bound, bound]."""
    return torch.view_as_complex(torch.empty(*shape, 2).uniform_(-bound, bound))
