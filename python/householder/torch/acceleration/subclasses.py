"""Layers of other libraries that compute with our functions.

Such a layer keeps its data and hooks. Only its class changes, to a subclass of its own class that has our ``forward``.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from householder.torch._base.checks import kind_of

if TYPE_CHECKING:
    from householder._base.types import Argument

_subclasses: dict[tuple[type, type], type[Accelerated]] = {}


class Accelerated(nn.Module):
    """First base of the subclasses. Pickled and copied layers stay accelerated."""

    before: ClassVar[type[nn.Module]]

    @classmethod
    def prepare(cls, before: type[nn.Module]) -> None:
        """Patch, once per process, the module that defines the class ``before``, if its layers need that."""

    def __reduce_ex__(self, protocol: Argument) -> Any:
        """Name the two bases, because the subclass is in no module."""
        kind = type(self)
        return _blank, kind.__bases__, *super().__reduce_ex__(protocol)[2:]


def accelerate(name: str, layer: nn.Module, base: type[Accelerated]) -> None:
    """Change the class of a layer to a subclass of ``base`` and its own class."""
    _change(name, layer, _subclass_for(base, type(layer)))


def restore(name: str, layer: Accelerated) -> None:
    """Restore the class of a layer."""
    if "before" not in vars(type(layer)):
        raise RuntimeError(f"layer {name!r} became {kind_of(layer)} after it was accelerated: undo that first")
    _change(name, layer, layer.before)


def _change(name: str, layer: nn.Module, kind: type[nn.Module]) -> None:
    """Change a layer's class, and the ``forward`` that hooks keep in its attributes."""
    before = type(layer).forward
    keys = [key for key, value in vars(layer).items() if isinstance(value, MethodType) and value.__func__ is before]
    if "forward" in vars(layer) and not keys:
        raise ValueError(
            f"layer {name!r} has a forward that does not lead to its class's: remove it, and set it afterwards"
        )
    layer.__class__ = kind
    for key in keys:
        vars(layer)[key] = MethodType(kind.forward, layer)


def _subclass_for(base: type[Accelerated], before: type[nn.Module]) -> type[Accelerated]:
    """Return the subclass, which has the name of the class before: other libraries know the layer by it."""
    base.prepare(before)
    if (base, before) not in _subclasses:
        kind = type(before.__name__, (base, before), {"__module__": before.__module__, "before": before})
        _subclasses[base, before] = kind
    return _subclasses[base, before]


def _blank(base: type[Accelerated], before: type[nn.Module]) -> nn.Module:
    kind = _subclass_for(base, before)
    return kind.__new__(kind)
