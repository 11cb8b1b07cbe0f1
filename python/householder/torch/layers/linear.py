"""The bases of linear layers: ``W x + b`` without forming W, an orthogonal or unitary matrix or a frame of one."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from householder._base import spec, validate
from householder.torch._base import checks, tracing
from householder.torch.functions import weights
from householder.torch.layers import base

if TYPE_CHECKING:
    from torch.types import Device


class LinearLayer(base.Layer):
    """The base of layers ``W x + b`` that apply W without forming it."""

    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int | None) -> None:
        super().__init__()
        self.in_features = validate.integer("in_features", in_features, 1)
        self.out_features = self.in_features
        if out_features is not None:
            self.out_features = validate.integer("out_features", out_features, 1)

    def _register_bias(self, bias: bool, like: Tensor) -> None:
        has_bias = validate.flag("bias", bias)
        self.register_parameter("bias", nn.Parameter(like.new_empty(self.out_features)) if has_bias else None)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Map ``input (..., in_features)`` to ``(..., out_features)``."""
        node: Tensor | None = tracing.node(self, input)
        if node is not None:
            return node
        output = self._multiply(self._promoted(input))
        return output if self.bias is None else output + self.bias.to(output.dtype)

    @abstractmethod
    def _multiply(self, vectors: Tensor) -> Tensor: ...

    def _without_bias(self, output: Tensor, parameter: Tensor) -> Tensor:
        output = self._promoted(output)
        checks.vectors("output", output, parameter, self.out_features)
        return output if self.bias is None else output - self.bias.to(output.dtype)

    @property
    def weight(self) -> Tensor:
        """The weight ``(out_features, in_features)``, a new tensor each time: changes in place have no effect."""
        return self.matrix()

    @abstractmethod
    def matrix(self) -> Tensor:
        """Form the weight, ``(out_features, in_features)``."""


class FrameLayer(LinearLayer):
    """The base of ``Orthogonal`` and ``Unitary``."""

    reflections: nn.Parameter
    phases: nn.Parameter | None

    @checks.constructor
    def __init__(
        self,
        in_features: int,
        out_features: int | None = None,
        bias: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        num_reflections: int | None = None,
        constraint: str = "hard",
        method: str = "auto",
    ) -> None:
        super().__init__(in_features, out_features)
        n, k = max(self.in_features, self.out_features), min(self.in_features, self.out_features)
        if n < 1 + self.is_complex:
            raise ValueError("in_features and out_features are 1, expected n = max(in_features, out_features) >= 2")
        self.num_reflections = base.count(num_reflections, k, min(k, n - self.is_complex))
        self.constraint = validate.one_of("constraint", constraint, base.CONSTRAINTS)
        self.method = validate.one_of("method", method, spec.METHODS)

        real = base.real_type(dtype, is_complex=self.is_complex)
        kind = real.to_complex() if self.is_complex else real
        self.reflections = nn.Parameter(torch.empty(n, self.num_reflections, device=device, dtype=kind))
        phases = nn.Parameter(torch.empty(n, device=device, dtype=real)) if self.is_complex else None
        self.register_parameter("phases", phases)
        self._register_bias(bias, self.reflections)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new reflections and phases, and set the bias to zero."""
        base.initialise_(self.reflections)
        if self.phases is not None:
            base.initialise_phases_(self.phases)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def inverse(self, output: Tensor) -> Tensor:
        """Map ``output (..., out_features)`` back: the inverse of a square layer, the pseudo-inverse of a frame.

        Under the soft constraint, ``u_1 = 0`` has no inverse: results are not finite then.
        """
        restored = self._multiply(self._without_bias(output, self.reflections), adjoint=True)
        u_1 = self._soft_sign()
        if u_1 is not None:
            factors = torch.cat([torch.ones_like(self.reflections[1:, -1]), u_1])
            restored = (restored / factors / factors).to(restored.dtype)  # the adjoint has u_1, whose square may vanish
        return restored

    def matrix(self) -> Tensor:
        """Form the weight, ``(out_features, in_features)``."""
        return weights.weight(self._constrained(), self.phases, (self.out_features, self.in_features))

    @property
    def logdet(self) -> Tensor:
        """The logarithm of ``|det W|`` of a square layer: zero, or ``log |u_1|`` under the soft constraint."""
        if self.in_features != self.out_features:
            raise ValueError(f"a frame of shape ({self.out_features}, {self.in_features}) has no determinant")
        u_1 = self._soft_sign()
        return self.reflections.new_zeros(()).abs() if u_1 is None else u_1.abs().log().squeeze()

    def extra_repr(self) -> str:
        """Show sizes."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, num_reflections={self.num_reflections}, bias={self.bias is not None}"

    def _constrained(self) -> Tensor:
        return base.constrain(self.reflections, self.constraint)

    def _soft_sign(self) -> Tensor | None:
        """Return ``u_1`` under the soft constraint, ``(1,)``, where it may make W not orthogonal; else None."""
        soft = self.constraint == "soft" and self.num_reflections == len(self.reflections)
        return self._constrained()[-1:, -1] if soft else None

    def _multiply(self, vectors: Tensor, *, adjoint: bool = False) -> Tensor:
        sizes = (self.out_features, self.in_features)
        return weights.multiply(self._constrained(), self.phases, vectors, sizes, adjoint=adjoint, method=self.method)
