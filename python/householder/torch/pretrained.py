"""Speed up models of other libraries: delta rules of ``transformers`` on the CPU, HRA adapters of ``peft``."""

from __future__ import annotations

import types
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from householder.torch import hra
from householder.torch.delta import delta_rule

if TYPE_CHECKING:
    from collections.abc import Callable

_RULES = (
    "torch_chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule",
    "chunk_kimi_delta_attention",
    "recurrent_kimi_delta_attention",
)
"""Functions that a layer's ``forward`` calls by name."""
_ATTRIBUTES = ("chunk_gated_delta_rule", "recurrent_gated_delta_rule")
"""Functions that layers of older versions store as attributes."""
_CONVOLUTION = "causal_conv1d_fn"
_BEFORE = "_before_accelerate"


def accelerate(model: nn.Module) -> dict[str, list[str]]:
    """Speed up the delta rules of a ``transformers`` model and the HRA adapters of a ``peft`` model.

    Delta rules: Qwen3-Next, Qwen3.5, OLMo hybrid, Kimi Linear and every other model of ``transformers`` whose layers
    call the same fallback functions change in place, layer by layer. On other devices than the CPU, layers compute as
    before. Packed sequences, given as ``cu_seq_lens_q`` with ``use_cache=False``, then also train on the CPU.

    Adapters: HRA layers of ``peft``, linear and convolutional, with or without Gram-Schmidt, apply their reflections
    and form no matrix, on every device. If you add adapters later, call this function again.

    Parameters
    ----------
    model : Module
        The model, or a part of it. Shapes and dtypes of its tensors do not change.

    Returns
    -------
    dict
        For each layer's name, the functions replaced or the kind of adapter. It is printed as well. It is empty if
        there was nothing to replace.

    Raises
    ------
    TypeError
        Not a module.
    ValueError
        A layer's ``forward`` was replaced, as hooks do.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> ht.accelerate(torch.nn.Linear(2, 2))
    nothing to accelerate: Linear has neither delta rules of transformers nor HRA adapters of peft
    {}
    """
    _check_module(model)
    found = {}
    for name, layer in model.named_modules():
        if _BEFORE in vars(layer):
            continue
        replaced = _replace_globals(name, layer) or _replace_attributes(layer) or _replace_reflections(name, layer)
        if replaced:
            found[name] = replaced
    kind = type(model).__name__
    if found:
        functions = sorted({function for names in found.values() for function in names})
        print(f"accelerated {len(found)} layers of {kind}: {', '.join(functions)}")
    else:
        print(f"nothing to accelerate: {kind} has neither delta rules of transformers nor HRA adapters of peft")
    return found


def restore(model: nn.Module) -> int:
    """Undo :func:`accelerate`.

    Parameters
    ----------
    model : Module
        The model, or a part of it. Shapes and dtypes of its tensors do not change.

    Returns
    -------
    int
        The number of layers restored.

    Raises
    ------
    TypeError
        Not a module.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> ht.restore(torch.nn.Linear(2, 2))
    0
    """
    _check_module(model)
    layers = [layer for layer in model.modules() if _BEFORE in vars(layer)]
    for layer in layers:
        for name, value in vars(layer).pop(_BEFORE).items():
            if value is None:
                del vars(layer)[name]
            else:
                setattr(layer, name, value)
    return len(layers)


def _check_module(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__module__}.{type(model).__qualname__}, expected a torch.nn.Module")


def _replace_globals(name: str, layer: nn.Module) -> list[str]:
    """Give the layer a ``forward`` in which the names of the replaced functions refer to ours."""
    forward = type(layer).forward
    inner = forward
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    code = getattr(inner, "__code__", None)
    if code is None:
        return []
    known: dict[str, Any] = inner.__globals__
    rules = [rule for rule in _RULES if rule in code.co_names and callable(known.get(rule))]
    if not rules:
        return []
    ours = {rule: partial(_delta_rule, known[rule]) for rule in rules}
    if _CONVOLUTION in code.co_names and callable(known.get(_CONVOLUTION)):
        ours[_CONVOLUTION] = partial(_convolution, known[_CONVOLUTION])
    _replace_forward(name, layer, _rebuilt(forward, ours))
    return rules


def _replace_reflections(name: str, layer: nn.Module) -> list[str]:
    """Give an adapter of ``peft`` a ``forward`` that applies its reflections."""
    forward = hra.forward_of(layer)
    if forward is None:
        return []
    _replace_forward(name, layer, forward)
    return [type(layer).__name__]


def _replace_forward(name: str, layer: nn.Module, forward: Any) -> None:
    if "forward" in vars(layer):
        raise ValueError(
            f"layer {name!r} has a forward of its own: accelerate the model before hooks are attached to it"
        )
    vars(layer)[_BEFORE] = {"forward": None}
    layer.forward = types.MethodType(forward, layer)


def _rebuilt(function: Any, ours: dict[str, Any]) -> Any:
    """Copy a function, and what it wraps, with other globals."""
    inner = getattr(function, "__wrapped__", None)
    names, cells = function.__globals__, function.__closure__
    if inner is None:
        names = names | ours
    else:
        copied = _rebuilt(inner, ours)
        cells = tuple(types.CellType(copied) if cell.cell_contents is inner else cell for cell in cells or ())
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, cells)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__.update(function.__dict__)
    if inner is not None:
        vars(copy)["__wrapped__"] = copied
    return copy


def _replace_attributes(layer: nn.Module) -> list[str]:
    rules = [rule for rule in _ATTRIBUTES if callable(vars(layer).get(rule))]
    if rules:
        vars(layer)[_BEFORE] = {rule: getattr(layer, rule) for rule in rules}
    for rule in rules:
        setattr(layer, rule, partial(_delta_rule, getattr(layer, rule)))
    return rules


def _delta_rule(
    before: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **options: Any,
) -> Any:
    """Compute what the replaced function ``before`` does."""
    flags = {"output_final_state": output_final_state, "use_qk_l2norm_in_kernel": use_qk_l2norm_in_kernel}
    if query.device.type != "cpu":
        return before(query, key, value, g=g, beta=beta, initial_state=initial_state, **flags, **options)
    ends = _ends(options)
    state = None if initial_state is None else initial_state.float()
    return delta_rule(query, key, value, beta, g, initial_state=state, cu_seqlens=ends, **flags)


def _ends(options: dict[str, Any]) -> Tensor | None:
    """Offsets of packed sequences, under either name."""
    ends: Tensor | None = options.get("cu_seqlens")
    return options.get("cu_seq_lens_q") if ends is None else ends


def _convolution(
    before: Callable[..., Any],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **options: Any,
) -> Any:
    """Compute the causal convolution ``before`` does, of packed sequences each by itself: ``x (B, D, T)``."""
    ends = _ends(options)
    if ends is None or x.device.type != "cpu":
        return before(x, weight, bias, activation=activation, **options)
    if int(ends[-1]) != x.shape[-1]:
        raise ValueError(
            f"cu_seq_lens_q ends at {int(ends[-1])}, expected {x.shape[-1]}: packed sequences cannot continue a cache, "
            "so pass use_cache=False"
        )
    parts = [x[..., begin:end] for begin, end in pairwise(ends.tolist()) if begin < end]
    return torch.cat([before(part, weight, bias, activation=activation) for part in parts], -1)
