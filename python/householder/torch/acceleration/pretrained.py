"""Recurrences of models of ``transformers``, computed by our functions on the CPU, and elsewhere where that gains.

Where a model has no kernels, its layers call fallback functions. Qwen3-Next and its kind hold them as attributes of a
layer, which are replaced there. Others are globals of the module of the layer's class. Such a global is replaced once
in a process: it calls our function while a layer of class :class:`AcceleratedRecurrence` runs, and the function before
for all others. :func:`restore_attributes` and the change of the class back undo both.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from householder.torch._base.dtypes import fitting
from householder.torch._ops.delta import DeltaRuleInputs
from householder.torch.acceleration import devices, mamba, subclasses
from householder.torch.functions.convolution import causal_convolution
from householder.torch.functions.delta import run
from householder.torch.functions.gated_norm import gated_norm

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from householder._base.types import AnyFunction, Argument


_ATTRIBUTES = ("chunk_gated_delta_rule", "recurrent_gated_delta_rule")
_PACKED = ("cu_seqlens", "cu_seq_lens_q", "seq_idx")
"""Options that keep packed sequences apart. Attention needs more than these, so the model must decide."""


class _CurrentCall(threading.local):
    """Per thread: whether an accelerated layer makes the current call."""

    def __init__(self) -> None:  # runs in each thread: compiled code guards on what the thread has before a call
        self.accelerated = False


_current = _CurrentCall()


def _delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, *, in_place: bool = False, **options: Argument
) -> tuple[Tensor, Tensor | None]:
    """Return outputs and, if asked for, final states in float32. Options without effect on these are ignored.

    ``in_place``: the final states may take the place of the initial ones, which are in the cache of a layer.
    """
    key, value, g, beta = (fitting(t, query.dtype) for t in (key, value, g, beta))
    state = options.get("initial_state")
    state = None if state is None else fitting(state, query.dtype)
    normalize, is_wanted = (options.get(name, False) for name in ("use_qk_l2norm_in_kernel", "output_final_state"))
    o, last = run(
        DeltaRuleInputs(query, key, value, beta, g, state, None, None),
        scale=None,
        num_householder=1,
        normalize=normalize,
        output_final_state=is_wanted,
        erases=True,
        in_place=in_place,
    )
    return o, None if last is None else last.float()


_delta_step = functools.partial(_delta_rule, in_place=True)

_GLOBALS: dict[str, AnyFunction] = {
    "torch_chunk_gated_delta_rule": _delta_rule,
    "torch_recurrent_gated_delta_rule": _delta_step,
    "chunk_kimi_delta_attention": _delta_rule,
    "recurrent_kimi_delta_attention": _delta_step,
    "mamba2_chunk_scan": mamba.chunk_scan,
    "mamba2_selective_state_update": mamba.state_update,
}
"""Recurrences of transformers, and our functions for them."""

_LEAST_TOKENS = {
    "chunk_gated_delta_rule": 1089,
    "torch_chunk_gated_delta_rule": 1089,
    "chunk_kimi_delta_attention": 1,
}
"""Tokens from which our expression takes fewer operations than one of these, with and without gradients.

All others take fewer than ours: steps of decoding, Mamba-2, convolutions and gated norms.
"""


def least_tokens_of(name: str) -> float:
    """Return from how many tokens on ours takes the place of a function on other devices than the CPU."""
    return _LEAST_TOKENS.get(name, devices.NEVER)


def _convolve(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Argument
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
    **_: Argument,
) -> Any:
    """Continue ``_convolve`` after the tokens in ``conv_state (B, C, L)``, and update it in place."""
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


_CONVOLUTIONS: dict[str, AnyFunction] = {
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
        is_ours = _current.accelerated and devices.is_ours(hidden_states)
        if gate is None or silu is None or is_wide or not is_ours:
            return before(self, hidden_states, gate)
        return gated_norm(hidden_states, gate, self.weight, epsilon=self.variance_epsilon, silu=silu)

    kind.forward = forward


class ReplacedFunction:
    """A function of ``transformers``, computed by ours on the CPU, and elsewhere from a number of tokens on."""

    def __init__(self, before: AnyFunction, ours: AnyFunction, least_tokens: float = devices.NEVER) -> None:
        self.before, self.ours, self.least_tokens = before, ours, least_tokens

    def __call__(self, *tensors: Tensor, **options: Argument) -> Any:
        """Return what the layer that calls expects."""
        is_packed = any(options.get(name) is not None for name in _PACKED)
        is_ours = not is_packed and devices.is_ours(tensors[0], self.least_tokens)
        result = self.ours(*tensors, **options) if is_ours else NotImplemented
        return self.before(*tensors, **options) if result is NotImplemented else result


class ReplacedGlobal(ReplacedFunction):
    """A function of a module: ours for accelerated layers, the original for others."""

    def __call__(self, *tensors: Tensor, **options: Argument) -> Any:
        """Return what the layer that calls expects."""
        return super().__call__(*tensors, **options) if _current.accelerated else self.before(*tensors, **options)


class AcceleratedRecurrence(subclasses.Accelerated):
    """A layer whose module has the fallback functions."""

    @classmethod
    def prepare(cls, before: type[nn.Module]) -> None:
        """Replace the functions in the module of the class."""
        module = _module(before)
        for name in functions_of(before):
            function = getattr(module, name)
            if not isinstance(function, ReplacedGlobal):
                setattr(
                    module,
                    name,
                    ReplacedGlobal(function, (_GLOBALS | _CONVOLUTIONS)[name], least_tokens_of(name)),
                )
        for name, kind in vars(module).items():
            if name.endswith("RMSNormGated"):
                _replace_gated_norm(kind)

    def forward(self, *args: Argument, **options: Argument) -> Any:
        """Compute the same as the original class, by our functions."""
        outer, _current.accelerated = _current.accelerated, True
        try:
            return super().forward(*args, **options)
        finally:
            _current.accelerated = outer


def is_recurrence(layer: nn.Module) -> bool:
    """Return whether this is a layer with a short convolution, of a class in a module with fallback functions."""
    attributes = ("conv1d", "conv") if _is_convolution(type(layer)) else ("conv1d",)
    has_convolution = any(isinstance(getattr(layer, name, None), nn.Module) for name in attributes)
    return has_convolution and bool(functions_of(type(layer)))


def functions_of(kind: type[nn.Module]) -> list[str]:
    """Return the names of the fallback functions in the module of a class or of its bases."""
    module = _module(kind)
    return [] if module is None else _names(module, kind)


def _module(kind: type[nn.Module]) -> ModuleType | None:
    modules = (sys.modules.get(base.__module__) for base in kind.__mro__)
    return next((module for module in modules if module is not None and _names(module, kind)), None)


def _names(module: ModuleType, kind: type[nn.Module]) -> list[str]:
    """Return the names of the recurrences and convolutions. A layer without recurrence must be a convolution."""
    recurrences, convolutions = (
        [name for name in functions if callable(getattr(module, name, None))] for functions in (_GLOBALS, _CONVOLUTIONS)
    )
    return recurrences + convolutions if recurrences or _is_convolution(kind) else []


def _is_convolution(kind: type[nn.Module]) -> bool:
    """Return whether the layers of a class are short convolutions alone, as in LFM2 and Inkling."""
    return any("ShortConv" in base.__name__ for base in kind.__mro__)


def replace_attributes(layer: nn.Module) -> list[str]:
    """Replace the functions that the layer has as attributes, and return their names."""
    functions = {name: vars(layer).get(name) for name in _ATTRIBUTES}
    replaced = {
        name: ReplacedFunction(function, _delta_rule, least_tokens_of(name))
        for name, function in functions.items()
        if callable(function)
    }
    vars(layer).update(replaced)
    return list(replaced)


def restore_attributes(layer: nn.Module) -> None:
    """Restore the functions that the layer had."""
    vars(layer).update({name: rule.before for name, rule in vars(layer).items() if isinstance(rule, ReplacedFunction)})
