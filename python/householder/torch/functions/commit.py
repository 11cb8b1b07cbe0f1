"""Commit drafted tokens: the states after those of them that are accepted, in one pass over each state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import householder
from householder._base import drafts, validate
from householder._base.docstrings import completed_by
from householder.torch import _ops
from householder.torch._base import checks
from householder.torch._ops.delta import DeltaRuleInputs, DeltaRuleOptions
from householder.torch.functions import delta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@completed_by(householder.commit, "Tensor")
def commit(
    state: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    accepted: Sequence[int] | Tensor,
    beta: Tensor | None = None,
    g: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    num_householder: int = 1,
    in_place: bool = False,
) -> Tensor:
    """Return the states after the accepted tokens of a draft, for speculative decoding.

    Call :func:`delta_rule` for the outputs of all T drafted tokens first: without ``output_final_state``, and without
    gradients, it writes no state. Decide how many tokens of each sequence are accepted, and commit these. A state is
    read and written once, however many tokens there are, and rejected tokens have no effect, even if they are infinite
    or NaN.

    Parameters
    ----------
    k : Tensor, shape (B, T * num_householder, H, K)
        Keys; float64, or float32 and half types, also mixed, which are computed in float32.
    accepted : sequence of int or Tensor, length B
        How many of the T tokens each sequence accepts, from 0 to T. ``torch.compile`` compiles for other numbers again,
        and breaks the graph to read a tensor.
    in_place : bool
        Write the states to where ``state`` is, and return it.

    Returns
    -------
    Tensor, shape (B, HV, K, V)
        In the dtype of the computation or, in place, of ``state``.

    Raises
    ------
    TypeError
        Not tensors, or their dtypes or devices do not match.
    ValueError
        A shape or a number is not as expected, or a gate is positive (which only the CPU checks, as it reads the gates:
        states in place may have changed by then).

    Examples
    --------
    Two sequences with four drafted tokens each. The first one accepts one of them, the second one three:

    >>> import torch
    >>> import householder.torch as ht
    >>> q, k, v = torch.randn(3, 2, 4, 2, 8)
    >>> options = {"beta": torch.full((2, 4, 2), 0.5), "use_qk_l2norm_in_kernel": True}
    >>> state = torch.zeros(2, 2, 8, 8)
    >>> with torch.no_grad():
    ...     o, _ = ht.delta_rule(q, k, v, initial_state=state, **options)
    ...     _, _, prefixes = ht.delta_rule(q, k, v, initial_state=state, states_at=[1, 3], **options)
    ...     _ = ht.commit(state, k, v, accepted=[1, 3], in_place=True, **options)
    >>> torch.allclose(state, torch.stack([prefixes[0, 0], prefixes[1, 1]]), atol=1e-6)
    True
    """
    needed = {"v": v} if beta is None else {"v": v, "beta": beta}
    compute = delta.checked_type("k", k, needed | {"state": state}, {"g": g})
    shapes = {name: t.shape for name, t in needed.items()}
    sizes = drafts.sizes(k.shape, shapes, None if g is None else g.shape, num_householder)
    checks.shape("state", state, sizes.states)
    in_place = validate.flag("in_place", in_place)
    options = DeltaRuleOptions(1.0, sizes.native[-1], validate.flag("use_qk_l2norm_in_kernel", use_qk_l2norm_in_kernel))
    numbers = validate.accepted(accepted, sizes.batch, sizes.tokens)
    wide = [None if t is None else checks.cast(t, compute) for t in (beta, g)]
    operands, ends = drafts.first_tokens(torch, (k, v, *wide), numbers, options.reflections)
    keys, values, betas, gates = operands
    offsets = None if ends is None else torch.tensor(ends, device=k.device)
    q = keys[:, : keys.shape[1] // options.reflections]  # of any numbers, because no output is asked for
    is_recorded = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (state, k, v, beta, g))
    place = checks.cast(state, compute)
    if place is state and (is_recorded or not in_place):
        place = state.clone(memory_format=torch.contiguous_format)
    inputs = DeltaRuleInputs(q, keys, values, betas, gates, place, None, offsets)
    _, last = delta.evaluate(inputs, options, _ops.delta.states_in_place)
    return last if last is state or not in_place else state.copy_(last)
