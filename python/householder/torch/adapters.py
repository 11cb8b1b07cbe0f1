"""The adapters of a whole model: wrapped by name, saved and loaded without the model, merged."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from householder.torch.adapter import OrthogonalAdapter, is_adaptable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


def adapt(model: nn.Module, names: str | Iterable[str], num_reflections: int = 8, method: str = "auto") -> list[str]:
    """Wrap layers of a model in :class:`OrthogonalAdapter` and freeze everything else.

    Parameters
    ----------
    model : nn.Module
        Changed in place.
    names : str or iterable of str
        Shell-style patterns for the dotted names of the layers: ``"*.q_proj"``, ``"h.*.attn.c_*"``.
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
        A pattern matches no layer that can be adapted.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> model = torch.nn.TransformerEncoderLayer(16, 4, 32)
    >>> ht.adapt(model, "linear*", num_reflections=2)
    ['linear1', 'linear2']
    """
    patterns = [names] if isinstance(names, str) else list(names)
    inside = {id(module.linear) for module in model.modules() if isinstance(module, OrthogonalAdapter)}
    found: dict[str, nn.Module] = {}
    for pattern in patterns:
        matches = {
            name: module
            for name, module in model.named_modules()
            if name and fnmatchcase(name, pattern) and is_adaptable(module) and id(module) not in inside
        }
        if not matches:
            raise ValueError(f"{pattern!r} matches no name of a linear layer in the model")
        found |= matches
    model.requires_grad_(False)
    for name, module in found.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, OrthogonalAdapter(module, num_reflections, method))
    for _, adapter in _adapters(model):
        adapter.reflections.requires_grad_(True)
    return list(found)


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
    if adapters.keys() != state.keys():
        raise ValueError(
            f"adapters and state differ: the state lacks {sorted(adapters.keys() - state.keys())} "
            f"and also has {sorted(state.keys() - adapters.keys())}"
        )
    for name, adapter in adapters.items():
        if adapter.merged:
            raise RuntimeError(f"the adapter {name} is merged into its layer's weight: unmerge it first")
        if adapter.reflections.shape != state[name].shape:
            shapes = tuple(state[name].shape), tuple(adapter.reflections.shape)
            raise ValueError(f"reflections of {name} have shape {shapes[0]}, expected {shapes[1]}")
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
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, linear)
    return model


def _users(model: nn.Module, weight: Tensor) -> int:
    return sum(weight is p for module in model.modules() for p in module._parameters.values())


def _adapters(model: nn.Module) -> Iterator[tuple[str, OrthogonalAdapter]]:
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, OrthogonalAdapter)]
    if not found:
        raise ValueError(f"{type(model).__name__} has no adapters: wrap its layers with householder.torch.adapt")
    yield from found
