"""The adapters of a whole model: wrapped by name, saved and loaded without the model, merged."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from householder.torch._base import checks
from householder.torch.layers.adapter import OrthogonalAdapter, is_adaptable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from householder._base.types import Argument


_SHOWN = 12
"""Names that a message lists."""


def adapt(model: nn.Module, names: str | Iterable[str], num_reflections: int = 8, method: str = "auto") -> list[str]:
    """Wrap layers of a model in :class:`OrthogonalAdapter` and freeze everything else.

    A pattern may also match layers that have adapters already. If the model has a method ``save_pretrained``, this then
    warns as long as there are adapters, because ``from_pretrained`` does not load them.

    Parameters
    ----------
    model : nn.Module
        Changed in place.
    names : str or iterable of str
        Shell-style patterns for the dotted names of the layers, or for their ends after a dot: ``"q_proj"``,
        ``"h.*.attn.c_*"``.
    num_reflections : int
        As for :class:`OrthogonalAdapter`, whose reflections have the shape (in_features, num_reflections).
    method : str
        As for :class:`OrthogonalAdapter`.

    Returns
    -------
    list of str
        The names of the layers that were wrapped.

    Raises
    ------
    ValueError
        There is no pattern, or one matches no layer that can be adapted, or all its layers have adapters already. As
        for :class:`OrthogonalAdapter`, whose errors name the layer. The model then keeps its layers.
    TypeError
        ``names`` are not strings, a layer is complex, or a parameter is lazy and has no size yet.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> model = torch.nn.TransformerEncoderLayer(16, 4, 32)
    >>> ht.adapt(model, "linear*", num_reflections=2)
    ['linear1', 'linear2']
    """
    checks.module("model", model)
    patterns = _patterns(names)
    for name, p in model.named_parameters():
        if isinstance(p, nn.UninitializedParameter):
            raise TypeError(f"{name} is lazy and has no size yet: call the model once before")
    inside = {id(module.linear) for module in model.modules() if isinstance(module, OrthogonalAdapter)}
    layers: dict[str, nn.Module] = {}
    for pattern in patterns:
        matches = {name: module for name, module in model.named_modules() if _matches(name, pattern)}
        linear = {name: module for name, module in matches.items() if is_adaptable(module) and id(module) not in inside}
        if not linear:
            adapted = [name for name, module in matches.items() if isinstance(module, OrthogonalAdapter)]
            raise ValueError(
                f"{pattern!r} matches only layers that have adapters already: {', '.join(adapted)}"
                if adapted
                else f"{pattern!r} matches no name of a linear layer in the model, which has {_named(model)}"
            )
        layers |= linear
    trained = [p for p in model.parameters() if p.requires_grad]
    adapters = {}
    for name, module in layers.items():
        try:
            adapters[name] = OrthogonalAdapter(module, num_reflections, method)
        except (TypeError, ValueError) as error:
            for p in trained:
                p.requires_grad_(True)
            raise type(error)(f"{name} cannot be adapted: {error}") from None
    model.requires_grad_(False)
    for name, adapter in adapters.items():
        _replace(model, name, adapter)
    for _, adapter in _adapters(model):
        adapter.reflections.requires_grad_(True)
    for module in model.modules():
        if hasattr(type(module), "save_pretrained"):
            vars(module).setdefault("save_pretrained", partial(_save_pretrained, module))
    return list(layers)


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """Return only the reflections of a model's adapters, to save them without the model.

    Parameters
    ----------
    model : nn.Module

    Returns
    -------
    dict from str to Tensor, shape (in_features, num_reflections)
        The keys are the names of the wrapped layers. ``torch.save`` and ``safetensors.torch.save_file`` write it.

    Raises
    ------
    ValueError
        The model has no adapters.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> model = torch.nn.Sequential(ht.OrthogonalAdapter(torch.nn.Linear(16, 3), 2))
    >>> {name: tuple(u.shape) for name, u in ht.adapter_state(model).items()}
    {'0': (16, 2)}
    """
    return {name: adapter.reflections.detach() for name, adapter in _adapters(model)}


def load_adapter_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load the reflections that :func:`adapter_state` returned into the adapters of a model.

    You can load one set after another, and keep several by name in a dictionary.

    Parameters
    ----------
    model : nn.Module
        With adapters at the same layers, not merged.
    state : mapping from str to Tensor, shape (in_features, num_reflections)

    Raises
    ------
    ValueError
        Names or shapes differ.
    TypeError
        ``state`` is no mapping, or its values are not real tensors.
    RuntimeError
        An adapter is merged.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> model = torch.nn.Sequential(ht.OrthogonalAdapter(torch.nn.Linear(16, 3), 2))
    >>> ht.load_adapter_state(model, {"0": torch.randn(16, 2)})
    """
    adapters = dict(_adapters(model))
    if not isinstance(state, Mapping):
        raise TypeError(f"state is {checks.kind_of(state)}, expected a mapping from names of layers to tensors")
    if adapters.keys() != state.keys():
        raise ValueError(
            f"adapters and state differ: the state lacks {sorted(adapters.keys() - state.keys())} "
            f"and also has {sorted(state.keys() - adapters.keys(), key=str)}"
        )
    for name, adapter in adapters.items():
        if adapter.merged:
            raise RuntimeError(f"the adapter {name} is merged into its layer's weight: unmerge it first")
        checks.tensor(f"state[{name!r}]", state[name])
        if adapter.reflections.shape != state[name].shape:
            shapes = tuple(state[name].shape), tuple(adapter.reflections.shape)
            raise ValueError(f"reflections of {name} have shape {shapes[0]}, expected {shapes[1]}")
        if state[name].is_complex():
            raise TypeError(f"reflections of {name} have dtype {state[name].dtype}, expected real numbers")
    with torch.no_grad():
        for name, adapter in adapters.items():
            adapter.reflections.copy_(state[name])


def merge_adapters(model: nn.Module) -> nn.Module:
    """Replace all adapters with plain layers that have the reflections in their weights.

    Parameters
    ----------
    model : nn.Module
        Changed in place; its parameters then have the names and shapes that they had before :func:`adapt`. A weight
        that is shared, as with an embedding, is copied, so that the other modules keep the original.

    Returns
    -------
    nn.Module
        The model, or the merged layer if the model is itself an adapter.

    Raises
    ------
    ValueError
        The model has no adapters.
    RuntimeError
        A weight cannot be written, as for :meth:`OrthogonalAdapter.merge`.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> model = torch.nn.Sequential(ht.OrthogonalAdapter(torch.nn.Linear(16, 3), 2))
    >>> ht.merge_adapters(model)
    Sequential(
      (0): Linear(in_features=16, out_features=3, bias=True)
    )
    """
    for name, adapter in list(_adapters(model)):
        linear = adapter.linear
        if not adapter.merged:
            if _users(model, linear.weight) > 1:
                linear.weight = nn.Parameter(linear.weight.detach().clone(), requires_grad=False)
            adapter.merge()
        if not name:
            only: nn.Module = linear
            return only
        _replace(model, name, linear)
    for module in model.modules():
        if getattr(vars(module).get("save_pretrained"), "func", None) is _save_pretrained:
            del vars(module)["save_pretrained"]
    return model


def _save_pretrained(model: Any, *args: Argument, **options: Argument) -> Any:
    """Save as the model's class does, with a warning if there are adapters."""
    if any(isinstance(module, OrthogonalAdapter) for module in model.modules()):
        warnings.warn(
            f"from_pretrained does not load the adapters of this {type(model).__name__}: "
            "save adapter_state(model) too, or call merge_adapters(model) first",
            stacklevel=2,
        )
    return type(model).save_pretrained(model, *args, **options)


def _patterns(names: str | Iterable[str]) -> list[str]:
    """Return at least one pattern."""
    if not isinstance(names, Iterable):
        raise TypeError(f"names is {checks.kind_of(names)}, expected a str or an iterable of str")
    patterns = [names] if isinstance(names, str) else list(names)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"names contains {checks.kind_of(pattern)}, expected a str")
    if not patterns:
        raise ValueError("names is empty, expected at least one pattern for the names of layers")
    return patterns


def _matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches a name or what follows a dot in it, as names of layers do in ``peft``."""
    return bool(name) and (fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}"))


def _named(model: nn.Module) -> str:
    """List the last parts of the names of linear layers."""
    names = dict.fromkeys(name.rpartition(".")[2] for name, module in model.named_modules() if is_adaptable(module))
    names.pop("", None)
    return ", ".join(list(names)[:_SHOWN]) + ", .." * (len(names) > _SHOWN) or "none inside"


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


def _users(model: nn.Module, weight: Tensor) -> int:
    by_module = (module.named_parameters(recurse=False, remove_duplicate=False) for module in model.modules())
    return sum(weight is p for parameters in by_module for _, p in parameters)


def _adapters(model: nn.Module) -> Iterator[tuple[str, OrthogonalAdapter]]:
    checks.module("model", model)
    adapters = [(name, module) for name, module in model.named_modules() if isinstance(module, OrthogonalAdapter)]
    if not adapters:
        raise ValueError(f"{type(model).__name__} has no adapters: wrap its layers with householder.torch.adapt")
    yield from adapters
