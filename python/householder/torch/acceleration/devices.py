"""Which calls of accelerated layers our functions compute: all on the CPU, and on other devices those that gain there.

Without kernels, a call is as many launches as its expression has operations. ``python -m benches.pages.operations``
counts them beside those of transformers.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

from householder.torch._base import undocumented

if TYPE_CHECKING:
    from torch import Tensor

NEVER = math.inf
"""The least tokens of a function that takes fewer operations than ours for any number."""


def is_ours(tokens: Tensor, least_tokens: float = NEVER, *, axis: int = 1) -> bool:
    """Return whether our function computes a call for ``tokens (B, T, ..)``, or with tokens along another axis.

    From the least tokens on, our expression takes fewer operations than the function that it replaces.
    """
    if tokens.device.type == "cpu":
        return True
    return tokens.shape[axis] >= least_tokens and not _models_have_kernels()


@undocumented.constant
def _models_have_kernels() -> bool:
    """Return whether transformers has imported a package from which its models may take kernels."""
    return "fla" in sys.modules or "kernels" in sys.modules
