"""Calls without gradients: a cell's weights are prepared once and used again while its parameters are the same.

Parameters change in many ways, and torch does not count all of them: ``.data`` and NumPy escape its counters. The
prepared weights therefore come with copies of the parameters, and serve only while all bits are the same. Comparing
them takes less time than preparing the weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import torch

from householder import _core
from householder.torch._ops.route import EAGER, route
from householder.torch.layers.base import constrain

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import NotImplementedType

    from torch import Tensor, nn

    from householder.torch._ops.rnn import RnnInputs, RnnOptions

    StatesT = TypeVar("StatesT")
    Attempt = tuple[NotImplementedType | bool, StatesT]
    """Whether the parameters are the recurrence's, and memory that has the results if they are."""

_MAX_BATCH_ON_CALLER = 16
"""Up to this many sequences, a step does not wake other threads."""
_MAX_STATES = 16
"""With more states for each reflection, preparing the weights is a small part of a sequence's time."""

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
    x, h = inputs.x, inputs.h0
    if h is None or not _is_ordinary(inputs) or (x.shape[0] > _MAX_BATCH_ON_CALLER and x.dim() == 2):
        return None

    def computed(recurrence: _core.Recurrence) -> Attempt[Tensor]:
        following = torch.empty_like(h)
        return recurrence.step_of(inputs, following), following

    return _by_recurrence(cell, constraint, inputs, options, computed)


def sequence(
    cell: nn.Module, constraint: str, inputs: RnnInputs[Tensor], options: RnnOptions
) -> tuple[Tensor, Tensor] | None:
    """Return the results of the operation ``rnn`` for ``x (T, B, d)``, or None as :func:`step` does.

    Calls that need gradients, and long sequences, are computed elsewhere.
    """
    if needs_gradients(inputs) or not _is_ordinary(inputs) or inputs.x.dim() != 3:
        return None
    x, (n, m), (steps, batch) = inputs.x, inputs.u.shape[-2:], inputs.x.shape[:2]
    if not 1 < steps <= _MAX_STATES * m // max(batch, 1):
        return None

    def computed(recurrence: _core.Recurrence) -> Attempt[tuple[Tensor, Tensor]]:
        results = x.new_empty(steps, batch, n), x.new_empty(batch, n)
        return recurrence.run_of(inputs, options, *results), results

    return _by_recurrence(cell, constraint, inputs, options, computed)


def needs_gradients(inputs: RnnInputs[Tensor]) -> bool:
    """Return whether autograd records a call; a loop, because a generator takes longer than a small step."""
    if torch.is_grad_enabled():
        for tensor in inputs:
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                return True
    return False


def _is_ordinary(inputs: RnnInputs[Tensor]) -> bool:
    return route() is EAGER and inputs.u.is_cpu


def _by_recurrence(
    cell: nn.Module,
    constraint: str,
    inputs: RnnInputs[Tensor],
    options: RnnOptions,
    compute: Callable[[_core.Recurrence], Attempt[StatesT]],
) -> StatesT | None:
    """Return what the recurrence of these parameters computes; None at the first call with them, which makes it."""
    latent, x = inputs.u, inputs.x
    try:
        before, recurrence = _known.get(cell, ((), None))
        if recurrence is not None and before == (constraint, *options):
            is_same, results = compute(recurrence)
            if is_same is NotImplemented:
                return None
            if is_same:
                return results
        parameters = inputs._replace(u=constrain(latent, constraint), x=x.new_empty(0, 1, x.shape[-1]), h0=None)
        _known[cell] = (constraint, *options), _core.Recurrence(parameters, options, latent)
        return None
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None  # the checks of the arguments explain
