"""``Orthogonal``: a linear layer whose weight is orthogonal, or a frame of orthonormal columns or rows."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from householder import _spec, _validate
from householder.torch import _check, _frames, _reflections, _tracing


class LinearLayer(_reflections.Layer):
    """The base of layers ``W x + b`` that apply W without forming it."""

    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int | None) -> None:
        super().__init__()
        self.in_features = _validate.integer("in_features", in_features, 1)
        self.out_features = self.in_features
        if out_features is not None:
            self.out_features = _validate.integer("out_features", out_features, 1)

    def _register_bias(self, bias: bool, like: Tensor) -> None:
        has_bias = _validate.flag("bias", bias)
        self.register_parameter("bias", nn.Parameter(like.new_empty(self.out_features)) if has_bias else None)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Map ``input (..., in_features)`` to ``(..., out_features)``."""
        node: Tensor | None = _tracing.node(self, input)
        if node is not None:
            return node
        output = self._multiply(self._promoted(input))
        return output if self.bias is None else output + self.bias.to(output.dtype)

    @abstractmethod
    def _multiply(self, vectors: Tensor) -> Tensor: ...

    def _without_bias(self, output: Tensor, parameter: Tensor) -> Tensor:
        output = self._promoted(output)
        _check.vectors("output", output, parameter, self.out_features)
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

    @_check.constructor
    def __init__(
        self,
        in_features: int,
        out_features: int | None = None,
        bias: bool = True,
        device: Any = None,
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
        self.num_reflections = _reflections.count(num_reflections, k, min(k, n - self.is_complex))
        self.constraint = _validate.one_of("constraint", constraint, _reflections.CONSTRAINTS)
        self.method = _validate.one_of("method", method, _spec.METHODS)

        real = _reflections.real_type(dtype, is_complex=self.is_complex)
        kind = real.to_complex() if self.is_complex else real
        self.reflections = nn.Parameter(torch.empty(n, self.num_reflections, device=device, dtype=kind))
        phases = nn.Parameter(torch.empty(n, device=device, dtype=real)) if self.is_complex else None
        self.register_parameter("phases", phases)
        self._register_bias(bias, self.reflections)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new reflections and phases, and set the bias to zero."""
        _reflections.initialise_(self.reflections)
        if self.phases is not None:
            _reflections.initialise_phases_(self.phases)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def inverse(self, output: Tensor) -> Tensor:
        """Map ``output (..., out_features)`` back: the inverse of a square layer, the pseudo-inverse of a frame."""
        restored = self._multiply(self._without_bias(output, self.reflections), adjoint=True)
        u_1 = self._soft_sign()
        if u_1 is not None:
            factors = torch.cat([torch.ones_like(self.reflections[1:, -1]), u_1])
            restored = (restored / factors / factors).to(restored.dtype)  # the adjoint has u_1, whose square may vanish
        return restored

    def matrix(self) -> Tensor:
        """Form the weight, ``(out_features, in_features)``."""
        return _frames.weight(self._constrained(), self.phases, (self.out_features, self.in_features))

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
        return _reflections.constrain(self.reflections, self.constraint)

    def _soft_sign(self) -> Tensor | None:
        """Return ``u_1`` under the soft constraint, ``(1,)``, where it may make W not orthogonal; else None."""
        soft = self.constraint == "soft" and self.num_reflections == len(self.reflections)
        return self._constrained()[-1:, -1] if soft else None

    def _multiply(self, vectors: Tensor, *, adjoint: bool = False) -> Tensor:
        sizes = (self.out_features, self.in_features)
        return _frames.multiply(self._constrained(), self.phases, vectors, sizes, adjoint=adjoint, method=self.method)


class Orthogonal(FrameLayer):
    r"""Compute :math:`y = W x + b` with an orthogonal weight, a product of Householder reflections.

    With ``in_features == out_features = n`` the weight is orthogonal. Otherwise it is a frame. If ``out_features`` is
    greater, its columns are orthonormal and norms are kept (:math:`W^T W = I`). If it is smaller, its rows are
    orthonormal (:math:`W W^T = I`). The layer applies m reflections, at O(n m) per vector, and forms no matrix.

    Shape: ``(..., in_features)`` to ``(..., out_features)``.

    Parameters
    ----------
    in_features : int
        Size of the inputs.
    out_features : int, optional
        Size of the outputs, ``in_features`` by default. n is the greater and k the smaller of both sizes.
    bias : bool
        Learn an additive bias, zero at the start.
    device, dtype
        Of the parameters. Up to here, the order is that of ``torch.nn.Linear``; the others are keyword-only.
    num_reflections : int, optional
        m, at most k; ``min(k, max(32, k // 8))`` by default. Time and parameters are proportional to it. ``m = k``
        reaches every frame and every orthogonal matrix; ``m = n - 1`` reaches every orthogonal matrix of determinant
        ``(-1)^m``.
    constraint : {"hard", "soft"}
        For ``num_reflections == in_features == out_features`` the last number ``u_1`` is the sign of the determinant,
        up to :math:`(-1)^{n-1}`. "hard" makes it 1 or -1, and the function jumps when training changes it. "soft" lets
        it move smoothly in [-1, 1], and W is then not orthogonal in one direction. If the sign of the determinant does
        not matter, ``m = n - 1`` avoids the choice.
    method : {"auto", "reflections", "wy", "dense"}
        The algorithm, as in :func:`apply`; "auto" takes the fastest for the shape.

    Attributes
    ----------
    reflections : Parameter, shape (n, m)
        Random unit columns at the start. Only their directions count; entries above the diagonal are ignored.
    bias : Parameter, shape (out_features,) or None
    weight : Tensor, shape (out_features, in_features)
        The matrix, formed anew at each access.
    logdet : Tensor, shape ()
        :math:`\log |\det W|` of a square layer, zero unless ``u_1`` is soft, for use in normalising flows.

    Raises
    ------
    TypeError
        An unsupported dtype, or a size that is not an integer.
    ValueError
        A size or the number of reflections is out of range, or a name is unknown.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> layer = ht.Orthogonal(6, num_reflections=2, dtype=torch.float64)
    >>> x = torch.randn(3, 6, dtype=torch.float64)
    >>> torch.allclose(layer(x).norm(dim=-1), x.norm(dim=-1))
    True
    >>> torch.allclose(layer.inverse(layer(x)), x)
    True
    >>> ht.Orthogonal(6, 4).matrix().shape
    torch.Size([4, 6])
    """
