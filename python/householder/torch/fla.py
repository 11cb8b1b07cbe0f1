"""Our functions among the backends of flash-linear-attention, for tensors on the CPU."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from torch import Tensor

from householder.torch.functions.delta import delta_rule

if TYPE_CHECKING:
    from householder._base.types import Argument

_log = logging.getLogger("householder")

_FUNCTIONS = ("chunk_gated_delta_rule", "chunk_kda", "fused_recurrent_kda_fwd")
"""Functions of flash-linear-attention that we compute."""
_WITHOUT_EFFECT = (
    "cu_seqlens_cpu",
    "chunk_indices",
    "chunk_size",
    "disable_recompute",
    "safe_gate",
    "inplace_final_state",
)
"""Options that change how its kernels compute, but not their results."""


def register() -> list[str]:
    """Let flash-linear-attention compute on the CPU with our functions.

    Tensors on other devices go to its own kernels as before. Only operations with a registry in that library can be
    replaced: the chunked gated delta rule, and the chunked and the recurrent Kimi delta attention.

    Returns
    -------
    list of str
        The functions replaced. The logger ``householder`` names them, too.

    Raises
    ------
    ImportError
        flash-linear-attention is not installed, or is older than 0.6 and has no ``fla.backends.register``.
    """
    try:
        backends: Any = importlib.import_module("fla.backends")
        kda = importlib.import_module("fla.ops.kda")
    except ImportError as error:
        raise ImportError(
            "flash-linear-attention has no fla.backends here: install fla-core 0.6 or later to register with it"
        ) from error

    class Native(backends.BaseBackend):  # type: ignore[misc]
        """The delta rule on the CPU."""

        backend_type = "householder"
        priority = -1  # before all others, which are for other devices

        def verify(self, function_name: str, *arguments: Argument, **options: Argument) -> tuple[bool, str | None]:  # noqa: ARG002
            q = arguments[0] if arguments else options.get("q")
            is_ours = isinstance(q, Tensor) and q.device.type == "cpu"
            return is_ours, None if is_ours else "householder computes tensors on the CPU"

    for name in _FUNCTIONS:
        setattr(Native, name, staticmethod(_computed))
    for entry in ("gated_delta_rule", "kda", kda.chunk_kda):  # the last has a registry of its own
        backends.register(entry)(Native)
    _log.info("flash-linear-attention computes on the CPU by householder: %s", ", ".join(_FUNCTIONS))
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
    **others: Argument,
) -> tuple[Tensor, Tensor | None]:
    """Compute a call of flash-linear-attention."""
    asked = [name for name, value in others.items() if value is not None and value is not False]
    if unknown := [name for name in asked if name not in _WITHOUT_EFFECT]:
        raise ValueError(f"{unknown[0]} is not computed on the CPU: compute it before the call and leave it out")
    return delta_rule(
        q,
        k,
        v,
        beta=beta,
        g=g,
        scale=scale,
        initial_state=initial_state,
        output_final_state=output_final_state,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        cu_seqlens=cu_seqlens,
    )
