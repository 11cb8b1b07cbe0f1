"""Between optimizer steps: the paper's rule for ``u_1``, and columns of unit norm."""

from __future__ import annotations

import torch
from torch import Tensor

from householder.torch import _check

_DEGREES = {"momentum_buffer": 1, "exp_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2}
"""Optimizer state of SGD and the Adams, and the power of the gradient that it averages."""


@torch.no_grad()
def snap_(u: Tensor) -> Tensor:
    """Replace ``u_1`` of a real ``m == n`` by its sign in place: 1 if it is positive, else -1.

    The paper does this after each update, and W is orthogonal at every step. A step smaller than 1 is always undone, so
    that the sign hardly ever changes: layers with ``constraint="hard"`` keep a latent ``u_1`` instead and need no
    snapping.

    Parameters
    ----------
    u : Tensor, shape (..., n, m)
        Usually a parameter.

    Returns
    -------
    Tensor
        u itself.

    Raises
    ------
    TypeError, ValueError
        As in :func:`apply`.

    Examples
    --------
    >>> import torch, householder.torch as ht
    >>> ht.snap_(torch.tensor([[3.0, 0.0], [4.0, -0.2]]))
    tensor([[ 3.,  0.],
            [ 4., -1.]])
    """
    _check.reflections(u)
    if u.shape[-1] == u.shape[-2]:
        last = u[..., -1, -1]
        last.copy_(torch.where(last > 0, 1.0, -1.0))
    return u


@torch.no_grad()
def renormalize_(u: Tensor, optimizer: torch.optim.Optimizer | None = None) -> Tensor:
    r"""Scale the reflection vectors to unit norm in place; W does not change, nor does ``u_1``.

    A gradient is orthogonal to its column, so plain steps lengthen columns, and the gradient of a column of norm r is
    :math:`1/r` times that of its direction: training slows down. Renormalising after each step, or now and then, keeps
    the step size meaningful. Given the optimizer, its averages of gradients are rescaled as the gradients are, by r
    (:math:`r^2` for squares): Adam's and AdamW's moments, SGD's momentum.

    Parameters
    ----------
    u : Tensor, shape (..., n, m)
        Usually a parameter. Zero columns stay zero.
    optimizer : torch.optim.Optimizer, optional
        The optimizer of u.

    Returns
    -------
    Tensor
        u itself.

    Raises
    ------
    TypeError, ValueError
        As in :func:`apply`.

    Examples
    --------
    >>> import torch, householder.torch as ht
    >>> ht.renormalize_(torch.tensor([[3e20], [4e20]]))
    tensor([[0.6000],
            [0.8000]])
    """
    _check.reflections(u)
    n, m = u.shape[-2:]
    columns = u[..., : m - (m == n and not u.is_complex())]
    largest = columns.tril().abs().amax(-2, keepdim=True)
    largest = torch.where(largest == 0, 1.0, largest)
    scaled = columns.tril() / largest
    length = torch.linalg.vector_norm(scaled, dim=-2, keepdim=True)
    length = torch.where(length == 0, 1.0, length)
    columns.copy_(scaled / length)
    state = optimizer.state.get(u, {}) if optimizer is not None else {}
    for name, degree in _DEGREES.items():
        if isinstance(state.get(name), Tensor):
            for _ in range(degree):  # factor by factor: r^2 overflows where r does not
                state[name][..., : columns.shape[-1]].mul_(length).mul_(largest)
    return u
