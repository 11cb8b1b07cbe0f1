"""``Orthogonal``: a linear layer whose weight is orthogonal, or a frame of orthonormal columns or rows."""

from __future__ import annotations

from householder.torch.layers.linear import FrameLayer


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
