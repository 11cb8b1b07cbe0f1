"""``Unitary``: the complex counterpart of ``Orthogonal``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from householder.torch._base import checks
from householder.torch.layers.linear import FrameLayer

if TYPE_CHECKING:
    import torch
    from torch.types import Device

    from householder._base.types import Keywords


class Unitary(FrameLayer):
    r"""Compute :math:`y = W x + b` with a unitary weight: complex reflections times ``diag(exp(i theta))``.

    Like :class:`Orthogonal`, for complex vectors. Square weights are unitary, others are frames of orthonormal columns
    or rows, and no matrix is formed. U(n) is connected, so training reaches every weight without a jump.

    Shape: ``(..., in_features)`` to ``(..., out_features)``. Inputs are complex, or real in the same precision or less.

    Parameters
    ----------
    in_features : int
        Size of the inputs.
    out_features : int, optional
        Size of the outputs, ``in_features`` by default. n is the greater and k the smaller of both sizes; n >= 2.
    bias : bool
        Learn an additive, complex bias, zero at the start.
    device, dtype
        Of the parameters. ``dtype`` is the complex dtype, or the dtype of its real part. ``double()``, ``float()`` and
        ``to(dtype)`` convert by precision: complex128 and float64, or complex64 and float32, also for half types. Up to
        here, the order is that of ``torch.nn.Linear``; the others are keyword-only.
    num_reflections : int, optional
        m, at most k and n - 1; ``max(32, k // 8)`` by default, or all if these are fewer. ``n - 1`` reflections and the
        phases reach all of U(n).
    method : {"auto", "reflections", "wy", "dense"}
        The algorithm, as in :func:`apply`; "auto" takes the fastest for the shape.

    Attributes
    ----------
    reflections : Parameter, shape (n, m), complex
    phases : Parameter, shape (n,), real
        theta, uniform in [-pi, pi] at the start.
    bias : Parameter, shape (out_features,) or None
    weight : Tensor, shape (out_features, in_features)
        The matrix, formed anew at each access.
    logdet : Tensor, shape ()
        :math:`\log |\det W| = 0` of a square layer.

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
    >>> layer = ht.Unitary(6, num_reflections=2, dtype=torch.complex128)
    >>> z = torch.randn(3, 6, dtype=torch.complex128)
    >>> torch.allclose(layer(z).norm(dim=-1), z.norm(dim=-1))
    True
    """

    is_complex: ClassVar[bool] = True

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
        method: str = "auto",
    ) -> None:
        options: Keywords = {"num_reflections": num_reflections, "method": method}
        super().__init__(in_features, out_features, bias, device, dtype, **options)
