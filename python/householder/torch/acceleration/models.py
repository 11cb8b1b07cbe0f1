"""``accelerate`` and ``restore``: speed up models of other libraries, and undo it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from householder.torch._base import checks
from householder.torch.acceleration import hra, lightning, mlstm, pretrained, subclasses

if TYPE_CHECKING:
    from torch import nn

_log = logging.getLogger("householder")


def accelerate(model: nn.Module) -> dict[str, list[str]]:
    """Speed up linear attention of a ``transformers`` model and the HRA adapters of a ``peft`` model.

    Linear attention: layers of Qwen3-Next, Qwen3.5, OLMo hybrid, Kimi Linear and every other model of ``transformers``
    that calls the same fallback functions change in place. So do those of models with Mamba-2: Nemotron-H, Granite 4,
    Falcon-H1, Bamba, Zamba2 and Mamba-2 itself. MiniMax's lightning attention, the mLSTM of xLSTM, and the short
    convolutions of LFM2, LFM3 and Inkling change, too. Other models do not. Packed sequences are refused or computed as
    before.

    On other devices than the CPU, ours computes what takes fewer operations: the delta rule with more than 1,088
    tokens, and in Kimi Linear's kind with any number; the mLSTM with more than four chunks and single tokens; lightning
    attention with 20 tokens or more after a cache. All else computes as before there, and so does everything if
    transformers has imported flash-linear-attention or ``kernels``.

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
        From names of layers to the functions replaced or the kind of layer. It is empty if there was nothing to
        replace. The logger ``householder`` says the same on standard error, once a call, and what holds bfloat16
        layers back; ``logging.getLogger("householder").setLevel("ERROR")`` silences it.

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
    checks.module("model", model)
    kind, already, accelerated = type(model).__name__, 0, {}
    for name, layer in model.named_modules():
        if _is_accelerated(layer):
            already += 1
        elif replaced := _accelerate_layer(name, layer):
            accelerated[name] = replaced
    if accelerated:
        functions = sorted({function for names in accelerated.values() for function in names})
        _log.warning("accelerated %s of %s: %s", _layers(len(accelerated)), kind, ", ".join(functions))
        is_bfloat16 = any(p.dtype is torch.bfloat16 and p.is_cpu for p in model.parameters())
        if is_bfloat16 and not _multiplies_bfloat16():
            _log.warning(
                "this processor has no instructions for bfloat16, so torch's own products take most of the time: "
                "load the model with dtype=torch.float32, which is faster here if its weights fit into memory"
            )
    elif already:
        _log.info("already accelerated: %s of %s", _layers(already), kind)
    else:
        told = "nothing to accelerate: %s has neither linear attention of transformers nor HRA adapters of peft"
        _log.warning(told, kind)
    return accelerated


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
    ValueError
        A layer has a ``forward`` of its own, set after it was accelerated, that hides that of its class.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> ht.restore(torch.nn.Linear(2, 2))
    0
    """
    checks.module("model", model)
    layers = {name: layer for name, layer in model.named_modules() if _is_accelerated(layer)}
    for name, layer in layers.items():
        if isinstance(layer, subclasses.Accelerated):
            subclasses.restore(name, layer)
        else:
            pretrained.restore_attributes(layer)
    return len(layers)


def _accelerate_layer(name: str, layer: nn.Module) -> list[str]:
    """Return the functions replaced, or the kind of layer."""
    if replaced := pretrained.replace_attributes(layer):
        return replaced
    if pretrained.is_recurrence(layer):
        subclasses.accelerate(name, layer, pretrained.AcceleratedRecurrence)
        return pretrained.functions_of(type(layer))
    if base := hra.base_for(layer) or lightning.base_for(layer) or mlstm.base_for(layer):
        subclasses.accelerate(name, layer, base)
        return [type(layer).__name__]
    return []


def _layers(count: int) -> str:
    return "1 layer" if count == 1 else f"{count} layers"


def _multiplies_bfloat16() -> bool:
    """Return whether the processor has instructions for bfloat16, as far as this torch tells."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    names = ("avx512_bf16", "amx_bf16")
    return not all(name in capabilities for name in names) or any(map(capabilities.get, names))


def _is_accelerated(layer: nn.Module) -> bool:
    has_rules = any(isinstance(value, pretrained.ReplacedFunction) for value in vars(layer).values())
    return has_rules or isinstance(layer, subclasses.Accelerated)
