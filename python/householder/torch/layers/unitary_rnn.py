"""``UnitaryRNN``, the complex counterpart of ``OrthogonalRNN``, and its cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from householder.torch._base import checks
from householder.torch.layers.recurrent_cell import RecurrentCell
from householder.torch.layers.recurrent_layer import RecurrentLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch.types import Device

    from householder.torch.layers.recurrent_layer import Cells


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

    @checks.constructor
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "modrelu",
        device: Device = None,
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

    @checks.constructor
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
        device: Device = None,
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
