"""Single steps without gradients: a cell's weights are prepared once and used again while its parameters are the same.

Parameters change in many ways, and torch does not count all of them: ``.data`` and NumPy escape its counters. The
prepared weights therefore come with copies of the parameters, and serve only while all bits are the same. Comparing
them takes less time than preparing the weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from householder import _core
from householder.torch._ops.route import EAGER, route
from householder.torch.layers.base import constrain

if TYPE_CHECKING:
    from torch import Tensor, nn

    from householder.torch._ops.rnn import RnnInputs, RnnOptions

_MAX_BATCH_ON_CALLER = 16
"""Up to this many sequences, a step does not wake other threads."""

_known: WeakKeyDictionary[nn.Module, tuple[tuple[Any, ...], _core.Recurrence]] = WeakKeyDictionary()
"""The options of each cell, and the recurrence of its last parameters."""


def step(cell: nn.Module, constraint: str, inputs: RnnInputs[Tensor], options: RnnOptions) -> Tensor | None:
    """Return the next state, or None if another route has to compute it.

    Parameters
    ----------
    cell : Module
        Whose parameters these are.
    constraint : str
        On ``u_1``.
    inputs : RnnInputs
        Those of the operation ``rnn``, but with the latent u, ``x (B, d)`` and ``h0 (B, n)``, or ``(d,)`` and ``(n,)``.
    options : RnnOptions
        Those of the operation.
    """
    latent, x, h = inputs.u, inputs.x, inputs.h0
    if h is None or route() is not EAGER or not latent.is_cpu or (x.shape[0] > _MAX_BATCH_ON_CALLER and x.dim() == 2):
        return None
    try:
        before, recurrence = _known.get(cell, ((), None))
        if recurrence is not None and before == (constraint, *options):
            following = torch.empty_like(h)
            is_same = recurrence.step_of(inputs, following)
            if is_same is NotImplemented:
                return None
            if is_same:
                return following
        parameters = inputs._replace(u=constrain(latent, constraint), x=x.new_empty(0, 1, x.shape[-1]), h0=None)
        _known[cell] = (constraint, *options), _core.Recurrence(parameters, options, latent)
        return None
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None  # the checks of the arguments explain
