"""``OrthogonalRNN``, in the place of ``torch.nn.RNN``, and its cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from householder.torch._recurrent import RecurrentCell, RecurrentLayer

if TYPE_CHECKING:
    from householder.torch._recurrent import Cells


class OrthogonalRNNCell(RecurrentCell):
    r"""One step of an orthogonal recurrence: :math:`h' = \phi(W h + V x + b)`, W a product of m reflections.

    For loops of one's own, where a step depends on more than the step before, and for one step at a time; over
    sequences :class:`OrthogonalRNN` is faster.

    Parameters
    ----------
    input_size, hidden_size : int
        d and n.
    num_reflections : int, optional
        m, at most n; ``max(1, n // 8)`` by default.
    nonlinearity, negative_slope, bias, constraint, learn_h0, method, device, dtype
        As for :class:`OrthogonalRNN`.

    Attributes
    ----------
    reflections : Parameter, shape (n, m)
    weight_ih : Parameter, shape (n, d)
    bias : Parameter, shape (n,) or None
    h0 : Parameter, shape (n,) or None
        Learned initial state, used where ``hx`` is not given.
    nonlinearity_bias : Parameter, shape (n / 2,) or None
        The bias of modReLU.

    Shape: ``input (B, d)`` or ``(d,)`` and ``hx (B, n)`` or ``(n,)``, zero by default, to the next state.

    Raises
    ------
    TypeError
        Another dtype, or a size or number that is not one.
    ValueError
        A size, the number of reflections or a name is out of range.

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

    is_complex: ClassVar[bool] = False


class OrthogonalRNN(RecurrentLayer):
    r"""Recurrent layers :math:`h_t = \phi(W h_{t-1} + V x_t + b)` with orthogonal W, in the place of ``torch.nn.RNN``.

    W is a product of m Householder reflections, so it stays orthogonal whatever the optimizer does, and a step costs
    O(n m). A sequence is one native call, forward and backward.

    Parameters
    ----------
    input_size, hidden_size : int
        d and n.
    num_layers : int
        Layers, each running over the outputs of the one before.
    num_reflections : int or list of int, optional
        m, at most n, for all layers or for each; ``max(1, n // 8)`` by default. With leaky ReLU a small m
        remembers best, for W is then the identity in n - m directions; where the task is to copy, more is better.
    nonlinearity : {"leaky_relu", "relu", "tanh", "identity", "oplu", "modrelu"}
        :math:`\phi`. The leaky ReLU is the paper's; "tanh" and "relu" are those of ``torch.nn.RNN`` and forget faster.
        OPLU and modReLU act on pairs ``(i, i + n/2)``: OPLU exchanges them, so that neither states nor gradients lose
        any norm, modReLU changes their moduli by a learned bias.
    negative_slope : float
        Slope of the leaky ReLU: near 1 it remembers long, near 0 it is more of a nonlinearity.
    bias : bool
        Learn b; there is one for each cell (``torch.nn.RNN`` has two, which are redundant).
    batch_first : bool
        Take and give ``(B, T, ...)`` instead of ``(T, B, ...)``.
    dropout : float
        Probability of dropout between layers.
    bidirectional : bool
        Run over the reversed sequence as well, with parameters of its own.
    constraint : {"hard", "soft"}
        What becomes of ``u_1`` when ``m == n``: 1 or -1, or a number in [-1, 1]; :class:`Orthogonal` tells which to
        take.
    learn_h0 : bool
        Learn the initial state that is used where ``hx`` is not given; otherwise that is zero.
    method : {"auto", "wy", "dense"}
        The algorithm, as in :func:`apply`; "auto" takes the fastest for the shape.
    device, dtype
        Of the parameters.

    Attributes
    ----------
    cells : ModuleList of OrthogonalRNNCell
        ``cells[D * layer + direction]``, D being 2 if bidirectional, else 1. Parameters are theirs, under the names of
        :class:`OrthogonalRNNCell`.

    Shape: ``(T, B, d)`` to ``(T, B, D n)`` and ``(D * num_layers, B, n)``, or as :meth:`forward` lists.

    Raises
    ------
    TypeError
        Another dtype, or a size or number that is not one.
    ValueError
        A size, the number of reflections or a name is out of range, or a shape does not fit.

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
