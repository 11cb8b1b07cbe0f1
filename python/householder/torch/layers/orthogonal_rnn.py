"""``OrthogonalRNN``, which replaces ``torch.nn.RNN``, and its cell."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor, nn

from householder.torch._base import checks
from householder.torch.functions import factor_frame
from householder.torch.functions.apply import matrix
from householder.torch.functions.matrices import nearest
from householder.torch.layers.recurrent_cell import RecurrentCell
from householder.torch.layers.recurrent_layer import RecurrentLayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from householder.torch.layers.recurrent_layer import Cells

# Arguments at the same places here and in torch.nn.RNN.
_SHARED = ("input_size", "hidden_size", "num_layers", "nonlinearity", "bias", "batch_first", "dropout", "bidirectional")


class OrthogonalRNNCell(RecurrentCell):
    r"""One step of an orthogonal recurrence: :math:`h' = \phi(W h + V x + b)`, W a product of m reflections.

    Use it in your own loops, where a step depends on more than the step before, or for single steps. Over sequences,
    :class:`OrthogonalRNN` is faster.

    Shape: ``input (B, d)`` or ``(d,)`` and ``hx (B, n)`` or ``(n,)``, zero by default, to the next state.

    Parameters
    ----------
    input_size, hidden_size : int
        d and n.
    bias : bool
        Add ``b``.
    nonlinearity : str
        As for :class:`OrthogonalRNN`.
    device, dtype
        As for :class:`OrthogonalRNN`. Up to here, the order is that of ``torch.nn.RNNCell``; the others are
        keyword-only.
    num_reflections : int, optional
        m, at most n; ``min(n, max(32, n // 8))`` by default.
    negative_slope : float
        As for :class:`OrthogonalRNN`.
    constraint : str
        As for :class:`OrthogonalRNN`.
    learn_h0 : bool
        As for :class:`OrthogonalRNN`.
    method : str
        As for :class:`OrthogonalRNN`.

    Attributes
    ----------
    reflections : Parameter, shape (n, m)
    weight_ih : Parameter, shape (n, d)
    bias : Parameter, shape (n,) or None
    h0 : Parameter, shape (n,) or None
        Learned initial state, used if ``hx`` is not given.
    nonlinearity_bias : Parameter, shape (n,) or, for a nonlinearity of pairs, (n / 2,), or None
        The bias of a modReLU.

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
    >>> cell = ht.OrthogonalRNNCell(3, 16, num_reflections=4)
    >>> h = None
    >>> for x in torch.randn(7, 5, 3):
    ...     h = cell(x, h)
    >>> h.shape
    torch.Size([5, 16])
    """


class OrthogonalRNN(RecurrentLayer):
    r"""Recurrent layers :math:`h_t = \phi(W h_{t-1} + V x_t + b)` with orthogonal W, used as ``torch.nn.RNN``.

    W is a product of m Householder reflections, so it stays orthogonal throughout training, and a step costs O(n m). A
    sequence is one native call, forward and backward. Arguments up to ``bidirectional`` have the same order as in
    ``torch.nn.RNN``. The others are keyword-only.

    Shape: ``(T, B, d)`` to ``(T, B, D n)`` and ``(D * num_layers, B, n)``; :meth:`forward` lists the other forms.

    Parameters
    ----------
    input_size, hidden_size : int
        d and n.
    num_layers : int
        Number of layers; each runs over the outputs of the previous layer.
    nonlinearity : str, default "leaky_relu"
        :math:`\phi`, one of the names that the guide to choosing n, m and the method explains. The leaky ReLU is the
        paper's. "tanh" and "relu", as in ``torch.nn.RNN``, forget faster. OPLU keeps the norms of states and gradients,
        and each modReLU learns a bias.
    bias : bool
        Learn b, one per cell. (``torch.nn.RNN`` has two, which are redundant.)
    batch_first : bool
        Take and return ``(B, T, ...)`` instead of ``(T, B, ...)``.
    dropout : float
        Probability of dropout between layers.
    bidirectional : bool
        Also run over the reversed sequence, with separate parameters.
    num_reflections : int or list of int, optional
        m, at most n, one number or one per layer; ``min(n, max(32, n // 8))`` by default. With leaky ReLU a small m
        remembers best, because W is then the identity in n - m directions. For copying tasks, more are better.
    negative_slope : float
        Slope of the leaky ReLU. Near 1 the layer remembers long; near 0 it is more nonlinear.
    constraint : {"hard", "soft"}
        The constraint on ``u_1`` if ``m == n``: 1 or -1, or a number in [-1, 1]. :class:`Orthogonal` explains the
        choice.
    learn_h0 : bool
        Learn the initial state that is used if ``hx`` is not given. Otherwise it is zero.
    method : {"auto", "wy", "dense"}
        The algorithm, as in :func:`apply`; "auto" takes the fastest for the shape.
    proj_size : int
        Must be zero; present because ``torch.nn.RNN`` has it.
    device, dtype
        Of the parameters.

    Attributes
    ----------
    cells : ModuleList of OrthogonalRNNCell
        ``cells[D * layer + direction]``, where D is 2 if bidirectional, else 1. The cells hold the parameters, under
        the names of :class:`OrthogonalRNNCell`.

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
    >>> layer = ht.OrthogonalRNN(2, 128, num_reflections=16)
    >>> output, h_n = layer(torch.randn(400, 50, 2))
    >>> output.shape, h_n.shape
    (torch.Size([400, 50, 128]), torch.Size([1, 50, 128]))
    """

    cell_type: ClassVar[type[RecurrentCell]] = OrthogonalRNNCell
    cells: Cells[OrthogonalRNNCell]

    @classmethod
    def from_rnn(cls, rnn: nn.RNN, *, num_reflections: int | Sequence[int | None] | None = None) -> Self:
        """Convert a ``torch.nn.RNN``; each recurrent weight becomes the nearest orthogonal matrix.

        Parameters
        ----------
        rnn : nn.RNN
            It is not changed. Frozen parameters stay frozen; on the meta device only shapes are taken.
        num_reflections : int or list of int, optional
            m, one number or one per layer; by default n, which reach every orthogonal matrix. If fewer do not reach the
            nearest orthogonal matrix, another one that they reach replaces it.

        Warns
        -----
        UserWarning
            Recurrent weights moved. The message says how far, relative to their Frobenius norms.

        Raises
        ------
        TypeError
            ``rnn`` is another module, such as an LSTM.
        """
        checks.module("rnn", rnn, "a torch.nn.RNN", nn.RNN)
        first = next(rnn.parameters())
        layer = cls(
            *(getattr(rnn, name) for name in _SHARED),
            num_reflections=rnn.hidden_size if num_reflections is None else num_reflections,
            device=first.device,
            dtype=first.dtype,
        )
        moves = []
        with torch.no_grad():
            for cell, end in zip(layer.cells, _endings(layer), strict=True):
                weight: Tensor = getattr(rnn, f"weight_hh_{end}")
                if not weight.is_meta:
                    wide = weight if weight.dtype == torch.float64 else weight.float()
                    u, _ = factor_frame.reflections(nearest(wide), cell.num_reflections)
                    cell.reflections.copy_(u)
                    distance = ((matrix(u) - wide).norm() / wide.norm()).item()
                    if not distance <= 10 * rnn.hidden_size * torch.finfo(weight.dtype).eps:
                        moves.append(f"weight_hh_{end} by {distance:.3g}")
                cell.reflections.requires_grad_(weight.requires_grad)
                weight_ih = getattr(rnn, f"weight_ih_{end}")
                _set(cell.weight_ih, weight_ih, learn=weight_ih.requires_grad)
                if cell.bias is not None:
                    bias_ih, bias_hh = getattr(rnn, f"bias_ih_{end}"), getattr(rnn, f"bias_hh_{end}")
                    _set(cell.bias, bias_ih + bias_hh, learn=bias_ih.requires_grad or bias_hh.requires_grad)
        if moves:
            warnings.warn(f"recurrent weights moved, relative to their norms: {', '.join(moves)}", stacklevel=2)
        return layer.train(rnn.training)

    def to_rnn(self) -> nn.RNN:
        """Return a ``torch.nn.RNN`` with the same results, for other runtimes and formats.

        Raises
        ------
        ValueError
            The nonlinearity is neither "tanh" nor "relu", or the initial state is learned.
        """
        if self.nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity is {self.nonlinearity!r}, but torch.nn.RNN has only 'tanh' and 'relu'")
        if any(cell.h0 is not None for cell in self.cells):
            raise ValueError("the initial state is learned, but torch.nn.RNN only takes it as an argument")
        first = self.cells[0].weight_ih
        rnn = nn.RNN(*(getattr(self, name) for name in _SHARED), device=first.device, dtype=first.dtype)
        with torch.no_grad():
            for cell, end in zip(self.cells, _endings(self), strict=True):
                values = {"weight_hh": (cell.matrix(), cell.reflections), "weight_ih": (cell.weight_ih, cell.weight_ih)}
                if cell.bias is not None:
                    values |= {"bias_ih": (cell.bias, cell.bias), "bias_hh": (torch.zeros_like(cell.bias), cell.bias)}
                for name, (value, source) in values.items():
                    _set(getattr(rnn, f"{name}_{end}"), value, learn=source.requires_grad)
        return rnn.train(self.training)


def _set(parameter: Tensor, value: Tensor, *, learn: bool) -> None:
    parameter.copy_(value).requires_grad_(learn)


def _endings(layer: OrthogonalRNN) -> list[str]:
    """Return the suffixes of the parameter names of a ``torch.nn.RNN``, in the order of the cells."""
    directions = ("", "_reverse") if layer.bidirectional else ("",)
    return [f"l{k}{direction}" for k in range(layer.num_layers) for direction in directions]
