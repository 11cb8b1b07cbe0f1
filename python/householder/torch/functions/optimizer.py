"""Between optimizer steps: the paper's rule for ``u_1``, and columns of unit norm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn, optim

from householder._base import norms, validate
from householder._base.spec import reflection_count
from householder.torch._base import checks
from householder.torch._base.dtypes import HALF_TYPES

if TYPE_CHECKING:
    from householder._base.types import ArrayLike

_MOMENTS = {"exp_avg": 1, "exp_avg_sq": 2, "max_exp_avg_sq": 2}
_DEGREES: dict[type, dict[str, int]] = {
    optim.SGD: {"momentum_buffer": 1},
    optim.Adam: _MOMENTS,
    optim.AdamW: _MOMENTS,
    optim.NAdam: _MOMENTS,
    optim.RAdam: _MOMENTS,
    optim.Adamax: {"exp_avg": 1, "exp_inf": 1},
    optim.RMSprop: {"grad_avg": 1, "square_avg": 2, "momentum_buffer": 0},  # of gradients over their root mean square
    optim.Adagrad: {"sum": 2},
    optim.Adadelta: {"square_avg": 2, "acc_delta": 0},  # of steps, whose size eps sets and not the gradients
}
"""The state of optimizers, and the power of the gradient that each average is proportional to."""


@torch.no_grad()
def snap_(u: Tensor) -> Tensor:
    """Replace ``u_1`` of a real ``m == n`` by its sign in place: 1 if it is positive, else -1; NaN stays NaN.

    The paper does this after each update, so W is orthogonal at every step. It always undoes a step smaller than 1, so
    the sign hardly ever changes. Layers with ``constraint="hard"`` keep a latent ``u_1`` instead and need no snapping.

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
    _check_reflections(u)
    if u.shape[-1] == u.shape[-2]:
        last = u[..., -1, -1]
        last.copy_(torch.where(last <= 0, -1.0, torch.where(last > 0, 1.0, last)))
    return u


@torch.no_grad()
def renormalize_(u: Tensor, optimizer: torch.optim.Optimizer | None = None) -> Tensor:
    r"""Scale the reflection vectors to unit norm in place; W does not change, nor does ``u_1``.

    A gradient is orthogonal to its column, so plain steps lengthen columns. The gradient of a column of norm r is
    :math:`1/r` times that of its direction, so training slows down. Renormalising after each step, or now and then,
    keeps the step size meaningful. If you pass the optimizer, its averages of gradients are rescaled like the
    gradients, by r (:math:`r^2` for squares). Averages of steps, such as RMSprop's momentum, are kept.

    Parameters
    ----------
    u : Tensor, shape (..., n, m)
        Usually a parameter. Zero columns stay zero.
    optimizer : torch.optim.Optimizer, optional
        The optimizer of u: SGD, Adam, AdamW, NAdam, RAdam, Adamax, RMSprop, Adagrad, Adadelta or derived from one.

    Returns
    -------
    Tensor
        u itself.

    Raises
    ------
    TypeError, ValueError
        As in :func:`apply`.
    TypeError
        It is not known how to rescale what the optimizer keeps for u.

    Examples
    --------
    >>> import torch, householder.torch as ht
    >>> ht.renormalize_(torch.tensor([[3e20], [4e20]]))
    tensor([[0.6000],
            [0.8000]])
    """
    _check_reflections(u)
    averages = [] if optimizer is None else _averages(u, optimizer)
    n, m = u.shape[-2:]
    columns = u[..., : reflection_count(n, m, ends_in_sign=not u.is_complex())]
    lower = columns.tril()
    lower = lower.float() if u.dtype in HALF_TYPES else lower
    power = norms.power_of_two(torch, lower.abs().amax(-2, keepdim=True))
    length = torch.linalg.vector_norm(lower * power, dim=-2, keepdim=True)
    vanishing = norms.vanishes(torch, length, power)
    length = torch.where(length == 0, 1.0, length)
    columns.copy_(torch.where(vanishing, 0.0, lower * power / length))
    root = power.sqrt()  # r = length / root / root: both factors shrink or both grow, so neither loses digits
    for average, degree in averages:
        for _ in range(degree):  # factor by factor: r^2 overflows where r does not
            average[..., : columns.shape[-1]].mul_(length / root).div_(root)
    return u


def _check_reflections(u: ArrayLike) -> None:
    if isinstance(u, nn.Module):
        endings = ("reflections", "original", "original0")
        names = [name for name, _ in u.named_parameters() if name.endswith(endings)]
        advice = f", such as its {names[0]}" if names else ""
        raise TypeError(f"u is {checks.kind_of(u)}, expected a tensor of reflections{advice}")
    checks.operands(u)
    validate.reflections(u)


def _averages(u: Tensor, optimizer: Any) -> list[tuple[Tensor, int]]:
    """Return the tensors that the optimizer holds for u, without scalars such as a step count, and their degrees."""
    degrees = next((_DEGREES[kind] for kind in type(optimizer).__mro__ if kind in _DEGREES), None)
    if degrees is None:
        known = ", ".join(kind.__name__ for kind in _DEGREES)
        raise TypeError(f"optimizer is {checks.kind_of(optimizer)}, expected one of {known}")
    if not any(parameter is u for group in optimizer.param_groups for parameter in group["params"]):
        raise ValueError(
            f"optimizer does not update u of shape {tuple(u.shape)}: pass the parameter itself, not its data or a copy"
        )
    averages = {
        name: average
        for name, average in optimizer.state.get(u, {}).items()
        if isinstance(average, Tensor) and average.dim()
    }
    unknown = averages.keys() - degrees
    if unknown:
        raise TypeError(
            f"optimizer is {checks.kind_of(optimizer)} that keeps {', '.join(sorted(unknown))} for u, "
            f"expected {', '.join(degrees)} only"
        )
    return [(average, degrees[name]) for name, average in averages.items()]
