"""``Unitary`` and ``UnitaryRNN``: the complex counterparts of ``Orthogonal`` and ``OrthogonalRNN``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from householder.torch import _check
from householder.torch._linear import FrameLayer
from householder.torch._recurrent import RecurrentCell, RecurrentLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from householder.torch._recurrent import Cells


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
        method: str = "auto",
    ) -> None:
        options: Any = {"num_reflections": num_reflections, "method": method}
        super().__init__(in_features, out_features, bias, device, dtype, **options)


class UnitaryRNNCell(RecurrentCell):
    r"""One step of a unitary recurrence: :math:`h' = \phi(W h + V x + b)`, all of it complex.

    Use it in your own loops, where a step depends on more than the step before, or for single steps. Over sequences,
    :class:`UnitaryRNN` is faster.

    Shape: ``input (B, d)`` or ``(d,)``, real or complex, and ``hx (B, n)`` or ``(n,)``, zero by default, to the next
    state.

    Parameters
    ----------
    input_size, hidden_size : int
        d and n; n >= 2.
    bias : bool
        Add ``b``.
    nonlinearity : str
        As for :class:`UnitaryRNN`.
    device, dtype
        As for :class:`UnitaryRNN`. Up to here, the order is that of ``torch.nn.RNNCell``; the others are keyword-only.
    num_reflections : int, optional
        m, at most n - 1; ``min(n - 1, max(32, n // 8))`` by default.
    negative_slope : float
        As for :class:`UnitaryRNN`.
    learn_h0 : bool
        As for :class:`UnitaryRNN`.
    method : str
        As for :class:`UnitaryRNN`.

    Attributes
    ----------
    reflections : Parameter, shape (n, m), complex
    phases : Parameter, shape (n,), real
    weight_ih : Parameter, shape (n, d), complex
    bias : Parameter, shape (n,), complex, or None
    h0 : Parameter, shape (n,), complex, or None
        Learned initial state, used if ``hx`` is not given.
    nonlinearity_bias : Parameter, shape (n,), real, or None
        The bias of modReLU.

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
    >>> ht.UnitaryRNNCell(3, 16)(torch.randn(5, 3)).shape
    torch.Size([5, 16])
    """

    is_complex: ClassVar[bool] = True

    @_check.constructor
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "modrelu",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        num_reflections: int | None = None,
        negative_slope: float = 0.1,
        learn_h0: bool = False,
        method: str = "auto",
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            bias,
            nonlinearity,
            device,
            dtype,
            num_reflections=num_reflections,
            negative_slope=negative_slope,
            learn_h0=learn_h0,
            method=method,
        )


class UnitaryRNN(RecurrentLayer):
    r"""Recurrent layers :math:`h_t = \phi(W h_{t-1} + V x_t + b)` with unitary W and complex states.

    The interface is the same as for :class:`OrthogonalRNN`; only differences are explained. Inputs are complex, or real
    in the same precision or less.

    Parameters
    ----------
    input_size, hidden_size : int
        d and n; n >= 2.
    num_layers : int
        As for :class:`OrthogonalRNN`.
    nonlinearity : str, default "modrelu"
        One for complex states; the guide to choosing n, m and the method explains them. modReLU shrinks or stretches
        moduli by a learned bias and keeps phases. The others act on real and imaginary parts.
    bias : bool
        As for :class:`OrthogonalRNN`.
    batch_first : bool
        As for :class:`OrthogonalRNN`.
    dropout : float
        As for :class:`OrthogonalRNN`.
    bidirectional : bool
        As for :class:`OrthogonalRNN`. The others are keyword-only.
    num_reflections : int or list of int, optional
        m, at most n - 1; ``min(n - 1, max(32, n // 8))`` by default.
    negative_slope : float
        Slope of the leaky ReLU.
    learn_h0 : bool
        As for :class:`OrthogonalRNN`.
    proj_size : int
        As for :class:`OrthogonalRNN`.
    device : torch.device, optional
        As for :class:`OrthogonalRNN`.
    dtype : torch.dtype, optional
        The complex dtype of the parameters, or the dtype of its real part; conversions are as for :class:`Unitary`.
    method : str
        Accepted for symmetry. W is always formed, because phases turn every state.

    Attributes
    ----------
    cells : ModuleList of UnitaryRNNCell
        ``cells[D * layer + direction]``, D being 2 if bidirectional, else 1.

    Raises
    ------
    TypeError
        An unsupported dtype, or a size that is not an integer.
    ValueError
        A size or the number of reflections is out of range, a name is unknown, or a shape does not fit.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> output, h_n = ht.UnitaryRNN(2, 64, num_reflections=8)(torch.randn(100, 20, 2))
    >>> output.dtype, h_n.shape
    (torch.complex64, torch.Size([1, 20, 64]))
    """

    cell_type: ClassVar[type[RecurrentCell]] = UnitaryRNNCell
    cells: Cells[UnitaryRNNCell]

    @_check.constructor
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "modrelu",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        num_reflections: int | Sequence[int | None] | None = None,
        negative_slope: float = 0.1,
        learn_h0: bool = False,
        method: str = "auto",
        proj_size: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            nonlinearity,
            bias,
            batch_first,
            dropout,
            bidirectional,
            num_reflections=num_reflections,
            negative_slope=negative_slope,
            learn_h0=learn_h0,
            method=method,
            proj_size=proj_size,
            device=device,
            dtype=dtype,
        )
