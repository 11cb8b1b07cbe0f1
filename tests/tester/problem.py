"""A problem: tensors, a call of the package, and the same in explicit reflections."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Problem:
    """What a case computes, whatever is then asked of it: values, derivatives, transforms."""

    name: str
    tensors: dict[str, torch.Tensor]
    ours: Callable[[dict], Any]
    """From tensors by name to one tensor or several."""
    theirs: Callable[[dict], Any]
    """The same in double precision."""
    operations: int
    """Roundings in a row; their random sum is as their square root."""
    reflections: tuple[str, ...] = ("u",)
    """Names of tensors whose gradients are inverse to the length of their columns."""
    module: torch.nn.Module | None = None
    """The module whose parameters are among the tensors."""
    transforms: bool = True
    """Whether forward mode, ``torch.func`` and second derivatives are there."""
    compiles: bool = True
    """Whether calls may be compiled and exported."""
    reach: float = 1.0
    """What numbers that vanish because they are subnormal may be multiplied by afterwards."""
    whole: bool = True
    """Whether it may be one of several under vmap."""
    options: dict[str, Any] = field(default_factory=dict)
    """What to tell about it."""

    @property
    def dtypes(self):
        return {t.dtype for t in self.tensors.values() if t.is_floating_point() or t.is_complex()}

    @property
    def eps(self):
        """The rounding of the coarsest type that takes part."""
        return max(torch.finfo(dtype).eps for dtype in self.dtypes)

    @property
    def is_half(self):
        return any(dtype in (torch.bfloat16, torch.float16) for dtype in self.dtypes)

    def describe(self):
        shapes = ", ".join(f"{name} {_short(t)}" for name, t in self.tensors.items())
        return f"{self.name}: {shapes}; {', '.join(f'{k}={v!r}' for k, v in self.options.items())}"


def _short(t):
    return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"


def outputs(result):
    """Results as a tuple."""
    return result if isinstance(result, tuple) else (result,)
