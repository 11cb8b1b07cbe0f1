"""Undocumented names of torch. Only this file uses names of torch that begin with an underscore.

They may change with any version of torch. Where one is gone, a function here gives the answer that is always safe. The
test of this file names the versions that were tried.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad, profiler
from torch.utils import _python_dispatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from householder._base.types import AnyFunction

    CallableT = TypeVar("CallableT", bound=AnyFunction)

are_transforms_active: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
"""Return whether a transform of ``torch.func`` is active."""
is_observed: Callable[[], bool] = getattr(_python_dispatch, "is_in_torch_dispatch_mode", lambda: True)
"""Return whether a mode sees the operators that are called."""
unwrap_if_dead: Callable[[Tensor], Tensor] = getattr(torch._C._functorch, "unwrap_if_dead", lambda t: t)
"""Return the tensor inside one that has outlived its transform, which is otherwise mistaken for one of the next."""
forward_level: Callable[[], int] = partial(getattr, forward_ad, "_current_level", 0)
"""Return the level of forward mode, negative if tensors carry no tangents."""
is_profiled: Callable[[], bool] = partial(getattr, profiler, "_is_profiler_enabled", False)
"""Return whether a profile is being recorded."""
has_storage: Callable[[Tensor], bool] = getattr(torch._C, "_has_storage", lambda _: False)
"""Return whether a tensor has memory of its own."""
CONVOLUTIONS: Any = getattr(nn.modules.conv, "_ConvNd", (nn.Conv1d, nn.Conv2d, nn.Conv3d))
"""The base of convolutions."""


def is_forward_mode() -> bool:
    """Return whether tensors may carry tangents."""
    return forward_level() >= 0


def has_hooks(module: nn.Module) -> bool:
    """Return whether hooks run when a module is called, its own or those of all modules."""
    of_module = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    of_all = getattr(nn.modules.module, "_has_any_global_hook", lambda: True)
    return of_all() or any(getattr(module, name, True) for name in of_module)


def computed_weights(module: nn.Module) -> list[Tensor]:
    """Return the weights that a recurrent network of torch computed from its parameters and holds for its next call."""
    held: list[Tensor | None] = getattr(module, "_flat_weights", [])
    return [weight for weight in held if weight is not None and not weight.is_leaf]


def constant(function: CallableT) -> CallableT:
    """Mark a function whose result ``torch.compile`` may compute once, while it compiles.

    ``torch.compiler.assume_constant_result`` would import the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant
def is_differentiated() -> bool:
    """Return whether a transform of ``torch.func`` differentiates the call, inside of all that map it."""
    interpreters: Any = getattr(torch._C._functorch, "get_interpreter_stack", list)() or ()
    return any(interpreter.key() != torch._C._functorch.TransformType.Vmap for interpreter in interpreters)
