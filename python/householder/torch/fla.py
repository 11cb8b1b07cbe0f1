"""flash-linear-attention: its kernels for tensors on CUDA, and our functions among its backends on the CPU."""

from __future__ import annotations

import importlib
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from householder.torch import _check
from householder.torch._autograd import needs_expression, needs_general_function

_FUNCTIONS = ("chunk_gated_delta_rule", "chunk_kda", "fused_recurrent_kda_fwd")
"""What we compute of them."""
_WITHOUT_EFFECT = (
    "cu_seqlens_cpu",
    "chunk_indices",
    "chunk_size",
    "disable_recompute",
    "safe_gate",
    "inplace_final_state",
)
"""Options that change how its kernels compute but not what."""
_WIDEST = 256
"""Of the keys that its kernels take."""


def register() -> list[str]:
    """Let flash-linear-attention compute on the CPU with our functions.

    Tensors on other devices go to its own kernels as before. Only operations that have a registry there can be replaced
    in this way: the gated delta rule and Kimi delta attention by chunks, and the recurrent form of the latter.

    Returns
    -------
    list of str
        The functions replaced. They are printed as well.

    Raises
    ------
    ImportError
        flash-linear-attention is not installed, or is older than 0.6 and has no ``fla.backends.register``.
    """
    try:
        backends, kda = (importlib.import_module(name) for name in ("fla.backends", "fla.ops.kda"))
    except ImportError as error:
        raise ImportError(
            "flash-linear-attention has no fla.backends here: install fla-core 0.6 or later to register with it"
        ) from error

    class Native(backends.BaseBackend):  # type: ignore[misc, name-defined]
        """The delta rule on the CPU."""

        backend_type = "householder"
        priority = -1  # before all others, which are for other devices

        def verify(self, function_name: str, *arguments: Any, **options: Any) -> tuple[bool, str | None]:  # noqa: ARG002
            q = arguments[0] if arguments else options.get("q")
            is_ours = isinstance(q, Tensor) and q.device.type == "cpu"
            return is_ours, None if is_ours else "householder computes tensors on the CPU"

    for name in _FUNCTIONS:
        setattr(Native, name, staticmethod(_computed))
    for entry in (
        "gated_delta_rule",
        "kda",
        kda.chunk_kda,
    ):  # two operations, and a function with a registry of its own
        backends.register(entry)(Native)
    print(f"flash-linear-attention computes on the CPU by householder: {', '.join(_FUNCTIONS)}")
    return list(_FUNCTIONS)


def _computed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    *,
    cu_seqlens: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute a call of flash-linear-attention."""
    from householder.torch.delta import delta_rule

    asked = [name for name, value in others.items() if value is not None and value is not False]
    if unknown := [name for name in asked if name not in _WITHOUT_EFFECT]:
        raise ValueError(f"{unknown[0]} is not computed on the CPU: compute it before the call and leave it out")
    return delta_rule(
        q,
        k,
        v,
        beta,
        g,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        cu_seqlens=cu_seqlens,
    )


@cache
def _installed() -> bool:
    return find_spec("fla") is not None


def takes(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None) -> bool:
    """Tell whether its kernels compute a call: half types on CUDA, once differentiable, in sizes that they have."""
    if q.device.type != "cuda" or q.dtype not in _check.HALF_TYPES or not _installed():
        return False
    if needs_expression() or needs_general_function() or not (q.numel() and v.numel()):
        return False
    several = k.shape[1] > q.shape[1]
    grouped, by_channel = v.shape[2] > q.shape[2], g is not None and g.dim() == 4
    return q.shape[3] <= _WIDEST and not (several and (grouped or by_channel))


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    reflections: int,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    """Compute what :func:`takes` agreed to by its kernels."""
    options = {
        "scale": scale,
        "initial_state": None if initial_state is None else initial_state.float(),
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": normalize,
        "cu_seqlens": cu_seqlens,
    }
    name, module = "chunk_gated_delta_rule", "gated_delta_rule"
    if reflections > 1:
        name, module = "chunk_gated_delta_product", "gated_delta_product"
        options["num_householder"] = reflections
    elif g is None:
        g = beta.new_zeros(beta.shape, dtype=torch.float32)
    elif g.dim() == 4:
        name, module = "chunk_kda", "kda"
    function = getattr(importlib.import_module(f"fla.ops.{module}"), name)
    gates = None if g is None else g.float()
    results: tuple[Tensor, Tensor] = function(q, k.to(q.dtype), v.to(q.dtype), gates, beta.float(), **options)
    return results
