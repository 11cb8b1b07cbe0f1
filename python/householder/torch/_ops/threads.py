"""The threads of the core are torch's once ``householder.torch`` is imported.

torch's threads spin for milliseconds after each parallel loop, so other threads would share processors with them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from householder import _core

_TORCH_CPU = {"win32": "torch_cpu.dll", "darwin": "libtorch_cpu.dylib"}.get(sys.platform, "libtorch_cpu.so")

shares_threads = _core.share_torch_threads(str(Path(torch.__file__).with_name("lib") / _TORCH_CPU))
"""Whether calls run on torch's threads, as on every system that the tests know."""

followed = -1
"""The number of torch's threads when the core was last handed it."""


def follow_torch_threads() -> None:
    """Hand torch's number of threads to the core."""
    global followed
    followed = torch.get_num_threads()
    _core.set_num_threads(followed)
