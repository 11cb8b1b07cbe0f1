"""``SVDLinear``: a linear layer given by its singular value decomposition, with singular values near one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from householder._base import validate
from householder.torch._base import checks
from householder.torch.layers.linear import LinearLayer
from householder.torch.layers.orthogonal import Orthogonal

if TYPE_CHECKING:
    from torch.types import Device

    from householder._base.types import Keywords


class SVDLinear(LinearLayer):
    r"""Compute :math:`y = P \,\mathrm{diag}(s)\, Q^T x + b`, P and Q products of Householder reflections.

    The soft margin of Vorontsov et al. (2017), :math:`s = 1 + r (2 \sigma(p) - 1)`, keeps the singular values in
    ``[1 - margin, 1 + margin]``. The weight is between orthogonal and free; gradients neither vanish nor explode.
    The inverse and the determinant cost O(n m + n), and no matrix is formed.

    Shape: ``(..., in_features)`` to ``(..., out_features)``.

    Parameters
    ----------
    in_features : int
        Size of the inputs.
    out_features : int, optional
        Size of the outputs, ``in_features`` by default. k is the smaller of both sizes.
    bias : bool
        Learn an additive bias, zero at the start.
    device, dtype
        Of the parameters. Up to here, the order is that of ``torch.nn.Linear``; the others are keyword-only.
    num_reflections : int, optional
        Number for P and for Q, at most k each; ``min(k, max(32, k // 8))`` by default. With k, the layer reaches every
        weight whose singular values are within the margin.
    margin : float
        r, in [0, 1). 0 keeps the weight orthogonal. A layer scales gradients by factors from ``1 - r`` to ``1 + r``, so
        deep networks need a small one.
    method : {"auto", "reflections", "wy", "dense"}
        The algorithm, as in :func:`apply`; "auto" takes the fastest for the shape.

    Attributes
    ----------
    left : Orthogonal
        P, ``(out_features, k)``.
    right : Orthogonal
        The transpose of Q, ``(k, in_features)``.
    spectrum : Parameter, shape (k,)
        p, zero at the start: all singular values are 1.
    bias : Parameter, shape (out_features,) or None
    weight : Tensor, shape (out_features, in_features)
        The matrix, formed anew at each access.
    logdet : Tensor, shape ()
        :math:`\log |\det W| = \sum \log s` of a square layer.

    Raises
    ------
    TypeError
        An unsupported dtype, or a size that is not an integer.
    ValueError
        A size, the number of reflections or the margin is out of range, or a name is unknown.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> layer = ht.SVDLinear(6, margin=0.5, dtype=torch.float64)
    >>> x = torch.randn(3, 6, dtype=torch.float64)
    >>> torch.allclose(layer.inverse(layer(x)), x)
    True
    """

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
        margin: float = 0.1,
        method: str = "auto",
    ) -> None:
        super().__init__(in_features, out_features)
        self.margin = validate.number("margin", margin)
        if not 0 <= self.margin < 1:
            raise ValueError(f"margin is {margin!r}, expected a number in [0, 1)")
        k = min(self.in_features, self.out_features)
        options: Keywords = {"num_reflections": num_reflections, "method": method}
        self.left = Orthogonal(k, self.out_features, False, device, dtype, **options)
        self.right = Orthogonal(self.in_features, k, False, device, dtype, **options)
        self.spectrum = nn.Parameter(torch.empty(k, device=device, dtype=dtype))
        self._register_bias(bias, self.spectrum)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new reflections; set all singular values to one and the bias to zero."""
        self.left.reset_parameters()
        self.right.reset_parameters()
        nn.init.zeros_(self.spectrum)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def singular_values(self) -> Tensor:
        """Return s, ``(k,)``."""
        return 1 + self.margin * (2 * self.spectrum.sigmoid() - 1)

    def _multiply(self, vectors: Tensor) -> Tensor:
        projected = self.right(vectors)
        return self.left(projected * self.singular_values().to(projected.dtype))

    def inverse(self, output: Tensor) -> Tensor:
        """Map ``output (..., out_features)`` back: the inverse of a square layer, else the pseudo-inverse."""
        projected = self.left.inverse(self._without_bias(output, self.spectrum))
        return self.right.inverse(projected / self.singular_values().to(projected.dtype))

    def matrix(self) -> Tensor:
        """Form the weight, ``(out_features, in_features)``."""
        return (self.left.matrix() * self.singular_values()) @ self.right.matrix()

    @property
    def logdet(self) -> Tensor:
        """The logarithm of ``|det W|`` of a square layer."""
        if self.in_features != self.out_features:
            raise ValueError(f"a weight of shape ({self.out_features}, {self.in_features}) has no determinant")
        return self.singular_values().log().sum()

    def extra_repr(self) -> str:
        """Show sizes and the margin."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, margin={self.margin}, bias={self.bias is not None}"
