"""Speed up models of other libraries: recurrences of ``transformers`` on the CPU, HRA adapters of ``peft``.

Layers of transformers call fallback functions, which are globals of their module. Such a global is replaced once: it
calls our function for accelerated layers, and the function before for others.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from householder.torch import _accelerated, _check, _hra, _mamba
from householder.torch._delta import run
from householder.torch._dtypes import fitting
from householder.torch._linear_layer import causal_convolution, gated_norm
from householder.torch._ops.delta import Inputs

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_log = logging.getLogger("householder")

_ATTRIBUTES = ("chunk_gated_delta_rule", "recurrent_gated_delta_rule")
_PACKED = ("cu_seqlens", "cu_seq_lens_q", "seq_idx")
"""Options that keep packed sequences apart. Attention needs more than these, so the model must decide."""


def accelerate(model: nn.Module) -> dict[str, list[str]]:
    """Speed up linear attention of a ``transformers`` model and the HRA adapters of a ``peft`` model.

    Linear attention: layers of Qwen3-Next, Qwen3.5, OLMo hybrid, Kimi Linear and every other model of ``transformers``
    that calls the same fallback functions change in place. So do those of models with Mamba-2: Nemotron-H, Granite 4,
    Falcon-H1, Bamba, Zamba2 and Mamba-2 itself. Other models do not change. On other devices than the CPU, layers
    compute as before. Packed sequences are refused or computed as before, too.

    Adapters: HRA layers of ``peft``, linear and convolutional, with or without Gram-Schmidt, apply their reflections
    and form no matrix, on every device. If you add adapters later, call this function again.

    The class of each layer becomes a subclass of its own class, with the same name. Hooks stay. Copies and pickled
    layers are accelerated, too.

    Parameters
    ----------
    model : Module
        The model, or a part of it. Shapes and dtypes of its tensors do not change.

    Returns
    -------
    dict
        From names of layers to the functions replaced or the kind of adapter. It is empty if there was nothing to
        replace. The logger ``householder`` reports the same (INFO), or that nothing was found (WARNING).

    Raises
    ------
    TypeError
        Not a module.
    ValueError
        A layer's ``forward`` was replaced by one that does not lead to that of its class.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> ht.accelerate(torch.nn.Linear(2, 2))
    {}
    """
    _check.module("model", model)
    kind, already, found = type(model).__name__, 0, {}
    for name, layer in model.named_modules():
        if _is_accelerated(layer):
            already += 1
        elif replaced := _accelerate_layer(name, layer):
            found[name] = replaced
    if found:
        functions = sorted({function for names in found.values() for function in names})
        _log.info("accelerated %d layers of %s: %s", len(found), kind, ", ".join(functions))
    elif already:
        _log.info("already accelerated: %d layers of %s", already, kind)
    else:
        told = "nothing to accelerate: %s has neither delta rules or Mamba-2 of transformers nor HRA adapters of peft"
        _log.warning(told, kind)
    return found


def restore(model: nn.Module) -> int:
    """Undo :func:`accelerate`. Hooks stay, even those that were added later.

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
    RuntimeError
        The class of a layer was changed again, for example by a parametrization of the layer.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> ht.restore(torch.nn.Linear(2, 2))
    0
    """
    _check.module("model", model)
    layers = {name: layer for name, layer in model.named_modules() if _is_accelerated(layer)}
    for name, layer in layers.items():
        if isinstance(layer, _accelerated.Accelerated):
            _accelerated.restore(name, layer)
        else:
            _restore_attributes(layer)
    return len(layers)


def _accelerate_layer(name: str, layer: nn.Module) -> list[str]:
    """Return the functions replaced, or the kind of adapter."""
    if replaced := _replace_attributes(layer):
        return replaced
    if _is_recurrent_layer(layer):
        _accelerated.accelerate(name, layer, RecurrentLayer)
        return _functions(type(layer))
    if base := _hra.base_for(layer):
        _accelerated.accelerate(name, layer, base)
        return [type(layer).__name__]
    return []


def _is_accelerated(layer: nn.Module) -> bool:
    has_rules = any(isinstance(value, Rule) for value in vars(layer).values())
    return has_rules or isinstance(layer, _accelerated.Accelerated)


class _Call(threading.local):
    """What this thread calls."""

    accelerated = False


_call = _Call()


def _delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, *, in_place: bool = False, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Return outputs and, if asked for, final states in float32. Options without effect on these are ignored.

    ``in_place``: the final states may take the place of the initial ones, which are in the cache of a layer.
    """
    key, value, g, beta = (fitting(t, query.dtype) for t in (key, value, g, beta))
    state = options.get("initial_state")
    state = None if state is None else fitting(state, query.dtype)
    normalize, is_wanted = (options.get(name, False) for name in ("use_qk_l2norm_in_kernel", "output_final_state"))
    o, last = run(
        Inputs(query, key, value, beta, g, state, None, None),
        scale=None,
        num_householder=1,
        normalize=normalize,
        output_final_state=is_wanted,
        erases=True,
        in_place=in_place,
    )
    return o, None if last is None else last.float()


_delta_step = functools.partial(_delta_rule, in_place=True)

_GLOBALS: dict[str, Callable[..., Any]] = {
    "torch_chunk_gated_delta_rule": _delta_rule,
    "torch_recurrent_gated_delta_rule": _delta_step,
    "chunk_kimi_delta_attention": _delta_rule,
    "recurrent_kimi_delta_attention": _delta_step,
    "mamba2_chunk_scan": _mamba.chunk_scan,
    "mamba2_selective_state_update": _mamba.state_update,
}
"""Recurrences of transformers, and what computes the same."""


def _convolve(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Any
) -> Any:
    """Return the causal convolution of ``(B, C, T)``, of which memory holds token after token."""
    if not _has_convolution(hidden_states, weight, activation):
        return NotImplemented
    return causal_convolution(hidden_states.mT, weight, bias, silu=activation is not None).mT


def _convolve_step(
    hidden_states: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> Any:
    """Return the same for tokens that follow those of ``conv_state (B, C, L)``, and update it."""
    before = weight.shape[-1] - 1
    fits = conv_state.shape[:2] == hidden_states.shape[:2] and conv_state.shape[-1] >= before
    if not (fits and _has_convolution(hidden_states, weight, activation)):
        return NotImplemented
    tokens = torch.cat([conv_state.mT, hidden_states.mT], dim=1)
    conv_state.copy_(tokens[:, -conv_state.shape[-1] :].mT)
    tokens = tokens[:, -before - hidden_states.shape[-1] :].to(hidden_states.dtype)
    return causal_convolution(tokens, weight, bias, silu=activation is not None)[:, before:].mT


def _has_convolution(hidden_states: Tensor, weight: Tensor, activation: str | None) -> bool:
    is_exact = (hidden_states.dtype is torch.float64) is (weight.dtype is torch.float64)
    return is_exact and activation in (None, "silu", "swish")


_CONVOLUTIONS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _convolve,
    "causal_conv1d_update": _convolve_step,
}
"""Convolutions of the layers with these recurrences."""


_gated_norms: set[type[nn.Module]] = set()
"""Classes whose ``forward`` has been replaced."""


def _replace_gated_norm(kind: type[nn.Module]) -> None:
    """Let the norms of a class compute ours in accelerated layers, once."""
    if kind in _gated_norms:
        return
    _gated_norms.add(kind)
    before: Callable[..., Tensor] = kind.forward

    @functools.wraps(before)
    def forward(self: Any, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        silu = {"silu": True, "swish": True, "sigmoid": False}.get(getattr(self, "activation", ""))
        # In float64, these classes compute in float32.
        is_wide = torch.float64 in (hidden_states.dtype, self.weight.dtype)
        if gate is None or silu is None or is_wide or not _call.accelerated or hidden_states.device.type != "cpu":
            return before(self, hidden_states, gate)
        return gated_norm(hidden_states, gate, self.weight, epsilon=self.variance_epsilon, silu=silu)

    kind.forward = forward


class Rule:
    """A function of ``transformers``, computed by ours on the CPU."""

    def __init__(self, before: Callable[..., Any], ours: Callable[..., Any]) -> None:
        self.before, self.ours = before, ours

    def __call__(self, *tensors: Tensor, **options: Any) -> Any:
        """Return what the layer that calls expects."""
        is_ours = tensors[0].device.type == "cpu" and all(options.get(name) is None for name in _PACKED)
        found = self.ours(*tensors, **options) if is_ours else NotImplemented
        return self.before(*tensors, **options) if found is NotImplemented else found


class GlobalRule(Rule):
    """A rule for accelerated layers, and the function before for others."""

    def __call__(self, *tensors: Tensor, **options: Any) -> Any:
        """Return what the layer that calls expects."""
        return super().__call__(*tensors, **options) if _call.accelerated else self.before(*tensors, **options)


class RecurrentLayer(_accelerated.Accelerated):
    """A layer whose module has the fallback functions."""

    @classmethod
    def prepare(cls, before: type[nn.Module]) -> None:
        """Replace the functions in the module of the class."""
        module = _module(before)
        for name in _functions(before):
            function = getattr(module, name)
            if not isinstance(function, GlobalRule):
                setattr(module, name, GlobalRule(function, (_GLOBALS | _CONVOLUTIONS)[name]))
        for name, kind in vars(module).items():
            if name.endswith("RMSNormGated"):
                _replace_gated_norm(kind)

    def forward(self, *args: Any, **options: Any) -> Any:
        """Compute what the class before computes, by our functions."""
        outer, _call.accelerated = _call.accelerated, True
        try:
            return super().forward(*args, **options)
        finally:
            _call.accelerated = outer


def _is_recurrent_layer(layer: nn.Module) -> bool:
    """Return whether this is a layer with a short convolution, of a class in a module with fallback functions."""
    return isinstance(getattr(layer, "conv1d", None), nn.Module) and bool(_functions(type(layer)))


def _functions(kind: type[nn.Module]) -> list[str]:
    """Return the names of the fallback functions in the module of a class or of its bases."""
    module = _module(kind)
    return [] if module is None else _names(module)


def _module(kind: type[nn.Module]) -> ModuleType | None:
    modules = (sys.modules.get(base.__module__) for base in kind.__mro__)
    return next((module for module in modules if module is not None and _names(module)), None)


def _names(module: ModuleType) -> list[str]:
    found = [name for name in _GLOBALS if callable(getattr(module, name, None))]
    return found and found + [name for name in _CONVOLUTIONS if callable(getattr(module, name, None))]


def _replace_attributes(layer: nn.Module) -> list[str]:
    """Replace the functions that the layer has as attributes, and return their names."""
    found = {name: vars(layer).get(name) for name in _ATTRIBUTES}
    replaced = {name: Rule(function, _delta_rule) for name, function in found.items() if callable(function)}
    vars(layer).update(replaced)
    return list(replaced)


def _restore_attributes(layer: nn.Module) -> None:
    """Give the layer the functions that it had."""
    vars(layer).update({name: rule.before for name, rule in vars(layer).items() if isinstance(rule, Rule)})
