"""How layers appear to tracers of Python code: one node to ``torch.fx``, a one-line error to ``torch.jit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.fx import Proxy

if TYPE_CHECKING:
    from householder._base.types import Argument


class Opaque(nn.Module):
    """A module that tracers do not trace into."""

    def __prepare_scriptable__(self) -> Any:
        name = type(self).__name__
        raise RuntimeError(f"torch.jit.script does not take {name}: torch.compile and torch.export do")


def node(module: nn.Module, *inputs: Argument) -> Any:
    """Return the node that ``torch.fx`` records for a call of the module, or None if ``torch.fx`` is not tracing."""
    for one in inputs:
        if isinstance(one, Proxy):
            tracer: Any = one.tracer
            return tracer.create_proxy("call_module", tracer.path_of_module(module), inputs, {})
    return None
