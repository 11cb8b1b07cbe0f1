"""``orthogonal``: constrain a parameter of any module, in the place of torch's ``parametrizations.orthogonal``."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

from householder.torch import _factor, _frames, _reflections


class Frames(nn.Module):
    """The map between reflections and a weight of orthonormal columns or rows.

    Weights of more than two dimensions are stacks of matrices, except that of a convolution, which is one matrix with
    a row for each of its first axis.
    """

    def __init__(self, shape: torch.Size, num_reflections: int | None, constraint: str, *, one_matrix: bool) -> None:
        super().__init__()
        self.shape = shape
        stack: tuple[int, ...] = () if one_matrix else tuple(shape[:-2])
        rows, columns = (shape[0], shape[1:].numel()) if one_matrix else shape[-2:]
        self.matrices = (*stack, rows, columns)
        self.sizes = (rows, columns)
        k = min(rows, columns)
        self.num_reflections = k if num_reflections is None else _reflections.count(num_reflections, k, k)
        self.constraint = _reflections.check_constraint(constraint)

    def forward(self, u: Tensor) -> Tensor:
        """Form the weight of reflections ``(..., n, m)``."""
        return _frames.weight(self._seen(u), None, self.sizes).reshape(self.shape)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Give reflections of an orthogonal weight; refuse any other."""
        return self._each(weight, lambda w: _factor.reflections(w, self.num_reflections))

    def start(self, weight: Tensor) -> Tensor:
        """Give reflections of the nearest weight: an orthogonal one is kept if so many reflections reach it."""
        return self._each(weight, lambda w: _factor.leading_reflections(_factor.nearest_frame(w), self.num_reflections))

    def multiply(self, u: Tensor, vectors: Tensor) -> Tensor:
        """Multiply by the weight without forming it."""
        return _frames.multiply(self._seen(u), None, vectors, self.sizes)

    def _seen(self, u: Tensor) -> Tensor:
        return _reflections.constrain(u, self.constraint)

    def _each(self, weight: Tensor, function: Any) -> Tensor:
        matrices = weight.detach().reshape(self.matrices)
        flat = [function(w) for w in matrices.reshape(-1, *self.sizes)]
        return torch.stack(flat).reshape(*self.matrices[:-2], max(self.sizes), self.num_reflections)


def orthogonal(
    module: nn.Module, name: str = "weight", num_reflections: int | None = None, *, constraint: str = "hard"
) -> nn.Module:
    r"""Constrain a parameter to orthonormal columns, or rows where there are fewer, by Householder reflections.

    Takes the place of ``torch.nn.utils.parametrizations.orthogonal`` and is used like it: the weight is computed from
    reflections when it is read, ``parametrize.cached()`` and ``parametrize.remove_parametrizations`` work, and an
    orthogonal matrix may be assigned to it. It differs in that fewer reflections may be used, that the constraint
    survives weight decay, and that the weight of a convolution is taken as one matrix, not as a stack of small ones.
    An ``nn.Linear`` never forms its weight: it multiplies by the reflections.

    Parameters
    ----------
    module : nn.Module
        Changed in place.
    name : str
        Of a real parameter: a matrix ``(rows, columns)``, a stack ``(..., rows, columns)``, or the weight of a
        convolution, which is the matrix ``(shape[0], -1)``.
    num_reflections : int, optional
        Between 1 and ``min(rows, columns)``, the default, with which every weight of this kind is reached.
    constraint : {"hard", "soft"}
        What becomes of ``u_1`` of a square weight with all reflections, as for :class:`Orthogonal`.

    Returns
    -------
    nn.Module
        The module. Its weight is as before if that was orthogonal and is reached, else the nearest that shares its
        first columns: Q of its QR decomposition.

    Raises
    ------
    ValueError
        The parameter does not exist, is parametrized already or has fewer than two dimensions, or
        ``num_reflections`` is out of range; later, a matrix that is not orthogonal, or not reached, is assigned.
    TypeError
        The parameter is complex (:class:`Unitary` is a layer of its own), or of a half type.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> layer = ht.orthogonal(torch.nn.Linear(20, 40, dtype=torch.float64))
    >>> w = layer.weight
    >>> torch.allclose(w.T @ w, torch.eye(20, dtype=torch.float64))
    True
    >>> layer.weight = torch.eye(40, 20, dtype=torch.float64)
    >>> torch.allclose(layer.weight, torch.eye(40, 20, dtype=torch.float64))
    True
    """
    if is_parametrized(module, name):
        raise ValueError(f"{name} of {type(module).__name__} is parametrized already")
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor) or weight.dim() < 2:
        found = f"of shape {tuple(weight.shape)}" if isinstance(weight, Tensor) else repr(weight)
        raise ValueError(
            f"{name} of {type(module).__name__} is {found}, expected a parameter of two or more dimensions"
        )
    if weight.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} has dtype {weight.dtype}, expected torch.float32 or torch.float64")
    frames = Frames(weight.shape, num_reflections, constraint, one_matrix=isinstance(module, nn.modules.conv._ConvNd))
    with torch.no_grad():
        weight.copy_(frames(frames.start(weight)))
    register_parametrization(module, name, frames)
    if type(module).__mro__[1] is nn.Linear and name == "weight":
        type(module).forward = _linear_forward  # of the class made for this module alone
    return module


def _linear_forward(module: Any, vectors: Tensor) -> Tensor:
    """Apply an ``nn.Linear`` by its reflections, as long as nothing else transforms the weight."""
    if not is_parametrized(module, "weight") or len(module.parametrizations.weight) > 1:
        return nn.functional.linear(vectors, module.weight, module.bias)
    frames = cast("Frames", module.parametrizations.weight[0])
    product = frames.multiply(module.parametrizations.weight.original, vectors)
    return product if module.bias is None else product + module.bias.to(product.dtype)
