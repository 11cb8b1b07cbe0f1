"""Constrain a parameter of any module, as torch's ``parametrizations.orthogonal`` does.

:func:`orthogonal` does all of it. :class:`Frames` is the parametrization for ``register_parametrization``.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized, register_parametrization

from householder._base import validate
from householder.torch._base import checks, tracing, undocumented
from householder.torch._base.dtypes import HALF_TYPES
from householder.torch._base.expressions import turn
from householder.torch.functions import factor_frame, weights
from householder.torch.layers import base

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["Frames", "orthogonal"]


class Frames(tracing.Opaque):
    """Parametrization: reflections (and phases) to and from a weight with orthonormal columns or rows.

    :func:`householder.torch.orthogonal` registers it and does more: it chooses the initial weight, and an
    ``nn.Linear`` then multiplies by reflections. Use the class where you register parametrizations yourself.

    Parameters
    ----------
    weight : Tensor, shape (..., rows, columns)
        A weight of the shape and dtype that the parametrization is for. Weights of more than two dimensions are stacks
        of matrices.
    num_reflections : int, optional
        From 1 to ``min(rows, columns)`` (for a square complex matrix, ``rows - 1``), the largest by default.
    constraint : {"hard", "soft"}
        The constraint on ``u_1`` of a square weight with all reflections, as for :class:`householder.torch.Orthogonal`.
    one_matrix : bool
        The weight is one matrix, with a row for each index of the first axis.

    Raises
    ------
    TypeError
        ``num_reflections`` is not an integer.
    ValueError
        ``num_reflections`` is out of range, or the constraint is unknown.

    Examples
    --------
    >>> import torch
    >>> from torch.nn.utils.parametrize import register_parametrization
    >>> from householder.torch.parametrizations import Frames
    >>> layer = torch.nn.Linear(4, 4, dtype=torch.float64)
    >>> torch.nn.init.eye_(layer.weight).shape
    torch.Size([4, 4])
    >>> frames = register_parametrization(layer, "weight", Frames(layer.weight))
    >>> layer.parametrizations.weight.original.shape, torch.allclose(layer.weight, torch.eye(4, dtype=torch.float64))
    (torch.Size([4, 4]), True)
    """

    @checks.constructor
    def __init__(
        self,
        weight: Tensor,
        num_reflections: int | None = None,
        constraint: str = "hard",
        *,
        one_matrix: bool = False,
    ) -> None:
        super().__init__()
        self.shape = shape = weight.shape
        self.is_complex = weight.is_complex()
        stack: tuple[int, ...] = () if one_matrix else tuple(shape[:-2])
        rows, columns = (shape[0], shape[1:].numel()) if one_matrix else shape[-2:]
        self.matrices = (*stack, rows, columns)
        self.sizes = (rows, columns)
        most = min(rows, columns, max(rows, columns) - self.is_complex)
        if self.is_complex and weight.numel() and not most:
            raise ValueError(f"a complex weight of shape {tuple(shape)} is a phase, expected 2 rows or columns or more")
        self.num_reflections = most if num_reflections is None else base.count(num_reflections, most, most)
        self.constraint = validate.one_of("constraint", constraint, base.CONSTRAINTS)
        self.known: tuple[Tensor, ...] | None = None

    def forward(self, u: Tensor, phases: Tensor | None = None) -> Tensor:
        """Form the weight of reflections ``(..., n, m)`` and phases ``(..., n)``; an empty one has none."""
        if not self.num_reflections:
            return u.reshape(self.shape)
        weight = weights.weight(self._constrained(u), None, self.sizes)
        if phases is not None:
            rows, columns = self.sizes
            turns = phases[..., None, : min(rows, columns)]
            weight = turn(weight, turns) if columns <= rows else turn(weight.mT, -turns).mT
        return weight.reshape(self.shape)

    def right_inverse(self, weight: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return reflections of a weight, or of the nearest weight that they reach; warn of the distance."""
        if weight.shape != self.shape:
            raise ValueError(f"a weight of shape {tuple(weight.shape)} is assigned, expected {tuple(self.shape)}")
        tensors = self._factored(weight) if self.known is None else self.known
        if self.known is None and weight.numel() and not weight.is_meta:
            self._warn_of_distance(weight, self(*tensors))
        return tensors if self.is_complex else tensors[0]

    def start(self, weight: Tensor) -> Tensor:
        """Return the initial weight: an orthogonal one is kept if the number of reflections suffices for it."""
        self.known = self._factored(weight, warn=True)
        started: Tensor = self(*self.known)
        return started

    def multiply(self, vectors: Tensor, u: Tensor, phases: Tensor | None = None) -> Tensor:
        """Multiply by the weight without forming it."""
        return weights.multiply(self._constrained(u), phases, vectors, self.sizes)

    def extra_repr(self) -> str:
        """Show the shape of the weight and the number of reflections."""
        return f"{tuple(self.shape)}, num_reflections={self.num_reflections}"

    def _constrained(self, u: Tensor) -> Tensor:
        return base.constrain(u, self.constraint)

    def _factored(self, weight: Tensor, *, warn: bool = False) -> tuple[Tensor, ...]:
        n, m = max(self.sizes), self.num_reflections
        stack = self.matrices[:-2]
        if weight.is_meta or not weight.numel():
            u = weight.new_empty((*stack, n, m))
            return (u, u.new_empty((*stack, n), dtype=u.dtype.to_real())) if self.is_complex else (u,)
        wide = weight.detach().float() if weight.dtype in HALF_TYPES else weight.detach()
        if not wide.isfinite().all():
            raise ValueError(f"the weight of shape {tuple(self.shape)} has entries that are not finite")
        each = [factor_frame.nearest_reflections(w, m, warn=warn) for w in wide.reshape(-1, *self.sizes)]
        columns = [torch.stack(parts).to(weight.device) for parts in zip(*each, strict=True)]
        if not self.is_complex:
            return (columns[0].to(weight.dtype).reshape(*stack, n, m),)
        return columns[0].reshape(*stack, n, m), columns[1].reshape(*stack, n)

    def _warn_of_distance(self, weight: Tensor, reached: Tensor) -> None:
        along = -1 if self.sizes[0] < self.sizes[1] else -2
        change = (reached - weight).reshape(self.matrices)
        eps = torch.finfo(weight.dtype).eps
        negligible = 4 * eps if weight.dtype in HALF_TYPES else max(1e-11, 10 * max(self.sizes) * eps)
        if not (change.norm(dim=along) <= negligible).all():
            warnings.warn(
                f"the assigned weight {tuple(weight.shape)} is not orthogonal or not made of {self.num_reflections} "
                f"reflections: the nearest weight found replaces it; entries change by up to {change.abs().max():.3g}",
                stacklevel=6,
            )


class _ComplexOriginals(ParametrizationList):
    """Reflections and their phases; conversions turn the phases into the real dtype that fits the reflections."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        reflections: Any = self.original0
        real = fn(reflections.new_empty(0)).dtype.to_real()

        def convert(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if tensor.is_complex() or moved.dtype is real else tensor.to(moved.device, real)

        super()._apply(convert, recurse)  # type: ignore[no-untyped-call]
        return self


def orthogonal(
    module: nn.Module,
    name: str = "weight",
    num_reflections: int | None = None,
    *,
    constraint: str = "hard",
    stack: bool = False,
    orthogonal_map: str | None = None,
    use_trivialization: bool = True,
) -> nn.Module:
    r"""Constrain a parameter to orthonormal columns, or orthonormal rows if it is wide, by Householder reflections.

    Use it like ``torch.nn.utils.parametrizations.orthogonal``. The weight is computed from reflections when it is read.
    ``parametrize.cached()`` and ``parametrize.remove_parametrizations`` work, and a matrix may be assigned to it. There
    are three differences: you may use fewer reflections, the constraint survives weight decay, and the weight of a
    convolution is one matrix unless ``stack`` is set.
    An ``nn.Linear`` never forms its weight, but multiplies by the reflections. Their shape may differ from the
    weight's, so make the optimizer after this call, and again after removal.

    Parameters
    ----------
    module : nn.Module
        Changed in place. Another module that shares the parameter would compute with the reflections: untie it first.
    name : str
        Name of a parameter: a matrix ``(rows, columns)``, a stack ``(..., rows, columns)``, or the weight of a
        convolution, which is the matrix ``(shape[0], -1)``. A complex weight becomes unitary, by reflections and
        phases.
    num_reflections : int, optional
        From 1 to ``min(rows, columns)`` (for a square complex matrix, ``rows - 1``). The default is the largest, which
        reaches every weight of this kind.
    constraint : {"hard", "soft"}
        The constraint on ``u_1`` of a square weight with all reflections, as for :class:`householder.torch.Orthogonal`.
    stack : bool
        Treat the weight of a convolution as torch does: a stack of matrices in its last two axes.
    orthogonal_map : str, optional
        Present because torch has it. It must be None or "householder", because the weight is a product of reflections.
    use_trivialization : bool
        Present because torch has it, without effect: any orthogonal matrix can be assigned.

    Returns
    -------
    nn.Module
        The module. If the reflections reach the weight, it does not change, at the start or when it is assigned.
        Otherwise Q of its QR decomposition replaces it, or the nearest matrix that ``num_reflections`` reach. Too few
        complex reflections keep the first columns instead, and phases bring the others as near as possible.

    Warns
    -----
    UserWarning
        The weight is orthogonal but these reflections do not reach it, or an assigned matrix is not orthogonal or
        cannot be reached. The message says how far the weight moves.

    Raises
    ------
    ValueError
        The parameter does not exist, is already parametrized, or has fewer than two dimensions. ``num_reflections`` is
        out of range, or ``orthogonal_map`` is "matrix_exp" or "cayley". The weight has entries that are not finite, at
        the start or when it is assigned.
    TypeError
        The parameter is of a half type, ``num_reflections`` is not an integer (torch has the map's name there), or
        ``module`` is not a module.

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
    checks.module("module", module)
    if is_parametrized(module, name):
        raise ValueError(f"{name} of {type(module).__name__} is already parametrized")
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        parameters = ", ".join(parameter for parameter, _ in module.named_parameters(recurse=False)) or "none"
        raise ValueError(f"{type(module).__name__} has no parameter {name!r} of its own, expected one of: {parameters}")
    if weight.dim() < 2:
        raise ValueError(
            f"{name} of {type(module).__name__} has shape {tuple(weight.shape)}, expected two or more dimensions"
        )
    checks.computable(name, weight)
    if orthogonal_map not in (None, "householder"):
        raise ValueError(
            f"orthogonal_map is {orthogonal_map!r}, expected 'householder' or None: the weight is a product of "
            "reflections; torch.nn.utils.parametrizations.orthogonal has the other maps"
        )
    validate.flag("use_trivialization", use_trivialization)
    stack = validate.flag("stack", stack)
    one_matrix = isinstance(module, undocumented.CONVOLUTIONS) and not stack
    frames = Frames(weight, num_reflections, constraint, one_matrix=one_matrix)
    with torch.no_grad():
        weight.copy_(frames.start(weight))
    weight.grad = None  # of another shape than its reflections'
    if is_parametrized(module):
        _give_own_class(module)  # in a copy of a parametrized module it is the class of the original
    register_parametrization(module, name, frames)
    frames.known = None
    if frames.is_complex:
        module.parametrizations[name].__class__ = _ComplexOriginals  # type: ignore[index]
    kind: Any = type(module)  # a class made for this module alone
    kind.__deepcopy__ = _copied_with_own_class(kind.__deepcopy__)
    if kind.__mro__[1] is nn.Linear and name == "weight" and weight.numel():
        kind.forward, kind.__prepare_scriptable__ = _linear_forward, tracing.Opaque.__prepare_scriptable__
    return module


def _give_own_class(module: nn.Module) -> None:
    """Copy the class, which has a property for each parametrized name: removing one then changes no other module."""
    kind = type(module)
    module.__class__ = type(kind.__name__, kind.__bases__, dict(kind.__dict__))


def _copied_with_own_class(copied: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def deepcopy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
        # Tensors with a history cannot be copied. The replica computes its own at its first call.
        memo |= {id(weight): weight.detach() for weight in undocumented.computed_weights(module)}
        replica = copied(module, memo)
        _give_own_class(replica)
        return replica

    return deepcopy


def _linear_forward(module: Any, vectors: Tensor) -> Tensor:
    """Apply an ``nn.Linear`` by its reflections, as long as nothing else transforms the weight."""
    steps: Any = module.parametrizations.weight if is_parametrized(module, "weight") else ()
    if len(steps) != 1 or not isinstance(steps[0], Frames):
        return nn.Linear.forward(module, vectors)
    node: Tensor | None = tracing.node(module, vectors)
    if node is not None:
        return node
    frames = steps[0]
    parameters = (steps.original0, steps.original1) if frames.is_complex else (steps.original,)
    product = frames.multiply(vectors, *parameters)
    return product if module.bias is None else product + module.bias.to(product.dtype)
