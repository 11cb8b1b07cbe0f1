"""``orthogonal``: constrain a parameter of any module, in the place of torch's ``parametrizations.orthogonal``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

from householder.torch import _check, _factor, _frames, _reflections


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
        """Form the weight of reflections ``(..., n, m)``; an empty one has none."""
        if not self.num_reflections:
            return u.reshape(self.shape)
        return _frames.weight(self._seen(u), None, self.sizes).reshape(self.shape)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Give reflections of an orthogonal weight; refuse any other."""
        if weight.shape != self.shape:
            raise ValueError(f"a weight of shape {tuple(weight.shape)} is assigned, expected {tuple(self.shape)}")
        if weight.dtype in _check.HALF_TYPES:
            return self._of_rounded(weight)
        return self._each(weight, lambda w: _factor.exact_reflections(w, self.num_reflections))

    def _of_rounded(self, weight: Tensor) -> Tensor:
        """Give reflections of a weight of a half type, which is orthogonal up to its rounding and no further.

        Assign a weight before the layer is converted: fewer reflections than all may not be found from a rounded one.
        """
        u = self._each(weight.float(), lambda w: _factor.reflections(_factor.nearest_frame(w), self.num_reflections)[0])
        along = -1 if self.sizes[0] < self.sizes[1] else -2
        difference = (self(u) - weight).reshape(self.matrices).norm(dim=along)
        if not (difference <= 4 * torch.finfo(weight.dtype).eps).all():
            raise ValueError(
                f"weight {tuple(weight.shape)} of {weight.dtype} is not orthogonal or not reached by "
                f"{self.num_reflections} reflections: they leave a difference of {difference.max().item():.3g}"
            )
        return u.to(weight.dtype)

    def start(self, weight: Tensor) -> Tensor:
        """Give reflections of the nearest weight: an orthogonal one is kept if so many reflections reach it."""
        return self._each(weight, lambda w: _factor.nearest_reflections(w, self.num_reflections))

    def multiply(self, u: Tensor, vectors: Tensor) -> Tensor:
        """Multiply by the weight without forming it."""
        return _frames.multiply(self._seen(u), None, vectors, self.sizes)

    def extra_repr(self) -> str:
        """Show the shape of the weight and the number of reflections."""
        return f"{tuple(self.shape)}, num_reflections={self.num_reflections}"

    def _seen(self, u: Tensor) -> Tensor:
        return _reflections.constrain(u, self.constraint)

    def _each(self, weight: Tensor, function: Any) -> Tensor:
        shape = (*self.matrices[:-2], max(self.sizes), self.num_reflections)
        if weight.is_meta or not weight.numel():
            return weight.new_empty(shape)
        return torch.stack([function(w) for w in weight.detach().reshape(-1, *self.sizes)]).reshape(shape)


def orthogonal(
    module: nn.Module, name: str = "weight", num_reflections: int | None = None, *, constraint: str = "hard"
) -> nn.Module:
    r"""Constrain a parameter to orthonormal columns, or rows where there are fewer, by Householder reflections.

    Takes the place of ``torch.nn.utils.parametrizations.orthogonal`` and is used like it: the weight is computed from
    reflections when it is read, ``parametrize.cached()`` and ``parametrize.remove_parametrizations`` work, and an
    orthogonal matrix may be assigned to it. It differs in that fewer reflections may be used, that the constraint
    survives weight decay, and that the weight of a convolution is taken as one matrix, not as a stack of small ones.
    An ``nn.Linear`` never forms its weight: it multiplies by the reflections. Their shape is another than the weight's
    where that is wider than tall or they are fewer than all: make the optimizer after this, and again after removal.

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
        The module. An orthogonal weight that the reflections reach stays as it is. Of any other, Q of its QR
        decomposition is taken, or the nearest matrix to it that ``num_reflections`` give.

    Warns
    -----
    UserWarning
        The weight is orthogonal, but so many reflections do not reach it. The message says how far it moves.

    Raises
    ------
    ValueError
        The parameter does not exist, is parametrized already or has fewer than two dimensions, or
        ``num_reflections`` is out of range. Later: a matrix is assigned that is not orthogonal, or that so many
        reflections do not reach; the message says by how much.
    TypeError
        The parameter is complex (:class:`Unitary` is a layer of its own), or of a half type; ``num_reflections`` is no
        integer, as where torch takes the name of a map.

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
    weight.grad = None  # of another shape than its reflections'
    register_parametrization(module, name, frames)
    if type(module).__mro__[1] is nn.Linear and name == "weight" and weight.numel():
        type(module).forward = _linear_forward  # of the class made for this module alone
    return module


def _linear_forward(module: Any, vectors: Tensor) -> Tensor:
    """Apply an ``nn.Linear`` by its reflections, as long as nothing else transforms the weight."""
    steps: Any = module.parametrizations.weight if is_parametrized(module, "weight") else ()
    if len(steps) != 1 or not isinstance(steps[0], Frames):
        return nn.Linear.forward(module, vectors)
    product = steps[0].multiply(steps.original, vectors)
    return product if module.bias is None else product + module.bias.to(product.dtype)
