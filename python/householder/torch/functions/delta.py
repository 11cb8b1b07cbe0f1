"""The delta rule as a function: checks and types; ``_ops`` computes. Linear attention is the same without betas."""

from __future__ import annotations

from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

import householder
from householder._base import segments, validate
from householder._base.docstrings import completed_by
from householder.torch import _ops
from householder.torch._base import checks
from householder.torch._base.dtypes import HALF_TYPES, compute_type
from householder.torch._ops.delta import DeltaRuleInputs, DeltaRuleOptions
from householder.torch.functions import fla_kernels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Unpack

    from householder._base.types import AnyArray, AnyFunction, Argument, ArrayLike, DeltaOptions

    TensorsOfDelta = DeltaOptions[Tensor]

_COMPUTED = (torch.float32, torch.float64)
_MIXED = (torch.float32, *HALF_TYPES)


@overload
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, *, beta: Tensor, states_at: None = None, **options: Unpack[TensorsOfDelta]
) -> tuple[Tensor, Tensor | None]: ...
@overload
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, *, beta: Tensor, states_at: Sequence[int], **options: Unpack[TensorsOfDelta]
) -> tuple[Tensor, Tensor | None, Tensor]: ...
@completed_by(householder.delta_rule, "Tensor")
def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    beta: Tensor,
    g: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    states_at: Sequence[int] | None = None,
    num_householder: int = 1,
) -> tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Tensor]:
    r"""Run :math:`S_t = (I - \beta_t k_t k_t^T) \mathrm{Diag}(e^{g_t}) S_{t-1} + \beta_t k_t v_t^T` in one native call.

    The outputs are :math:`o_t = \mathrm{scale}\, S_t^T q_t`. With ``beta = 2``, unit keys and no gate, each step is a
    Householder reflection. DeltaNet has no gate, gated DeltaNet one per head, and Kimi delta attention one per channel.
    DeltaProduct has several reflections per token. Names and shapes are the same as in flash-linear-attention. If that
    is installed, its kernels compute half types on CUDA. All other tensors outside the CPU go through torch operations.

    Parameters
    ----------
    q : Tensor, shape (B, T, H, K)
        Queries; float64, or float32 and half types, also mixed, which are computed in float32.
    cu_seqlens : Tensor, shape (N + 1,), integers, optional
        Packs sequences one after the other in a single row, ``B = 1``. Sequence ``i`` has the tokens ``cu_seqlens[i]``
        to ``cu_seqlens[i + 1] - 1``. With ``states_at``, ``torch.compile`` breaks the graph to read these numbers, and
        compiles for others again.

    Returns
    -------
    o : Tensor, shape (B, T, HV, V)
        In the dtype of ``q``.
    final_state : Tensor, shape (N, HV, K, V), or None
        In the dtype of the computation.
    states : Tensor, shape (B, len(states_at), HV, K, V), packed (len(states_at), HV, K, V)
        If ``states_at`` is given, in the dtype of the computation.

    Raises
    ------
    TypeError
        Not tensors, or their dtypes or devices do not match.
    ValueError
        A shape or a number is not as expected, or a gate is positive (which only the CPU checks).

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> k = torch.tensor([0.6, 0.8], dtype=torch.float64).expand(1, 3, 1, 2)
    >>> v = torch.zeros(1, 3, 1, 2, dtype=torch.float64)
    >>> state = torch.eye(2, dtype=torch.float64).expand(1, 1, 2, 2)
    >>> beta = torch.full((1, 3, 1), 2.0, dtype=torch.float64)
    >>> o, final_state = ht.delta_rule(k, k, v, beta=beta, initial_state=state, output_final_state=True)
    >>> final_state[0, 0]
    tensor([[ 0.2800, -0.9600],
            [-0.9600, -0.2800]], dtype=torch.float64)
    """
    inputs = DeltaRuleInputs(q, k, v, beta, g, initial_state, None, cu_seqlens)
    options = scale, num_householder, use_qk_l2norm_in_kernel
    if states_at is not None:
        return run_with_states(inputs, *options, output_final_state, states_at, erases=True)
    return run(inputs, *options, output_final_state=output_final_state, erases=True)


def run(
    inputs: DeltaRuleInputs[AnyArray],
    scale: float | None,
    num_householder: int,
    normalize: bool,
    *,
    output_final_state: bool,
    erases: bool,
    in_place: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute, and check the arguments of a call that does not go through as it is.

    Linear attention does not erase, and needs no betas. ``in_place``: the final states may take the place of the
    initial ones.
    """
    is_wanted = validate.flag("output_final_state", output_final_state)
    results: tuple[Tensor, Tensor | None] | None = None
    is_typed = type(num_householder) is int and type(normalize) is bool and isinstance(scale, (float, NoneType))
    if is_typed and not in_place and _fits(inputs, num_householder, erases):
        ordinary = DeltaRuleOptions(inputs.q.shape[3] ** -0.5 if scale is None else scale, num_householder, normalize)
        results = _ops.delta.operator.attempt(inputs, ordinary, None if is_wanted else _ops.delta.outputs_alone)
    if results is None:
        forward = _ops.delta.in_place if in_place and inputs.initial_state is not None else None
        forward = forward if is_wanted else _ops.delta.outputs_alone
        results = evaluate(*check(inputs, scale, num_householder, normalize, erases=erases), forward)
    o, last = results
    return o, last if is_wanted else None


def run_with_states(
    inputs: DeltaRuleInputs[AnyArray],
    scale: float | None,
    num_householder: int,
    normalize: bool,
    output_final_state: bool,
    states_at: Argument,
    *,
    erases: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Compute, and also return the states after chosen tokens."""
    checked, options = check(inputs, scale, num_householder, normalize, erases=erases)
    q, k, v, beta, g, initial_state, skip, cu_seqlens = checked
    offsets: list[int] | None = None
    if cu_seqlens is not None:
        offsets = cu_seqlens.tolist()
        validate.ends_of_sequences(offsets, q.shape[1])
    parts = segments.segments(states_at, q.shape, offsets)
    if initial_state is None:
        count, widths = q.shape[0] if offsets is None else len(offsets) - 1, (v.shape[2], q.shape[3], v.shape[3])
        initial_state = q.new_zeros(count, *widths, dtype=compute_type(q.dtype))

    def write(rows: list[AnyArray], state: Tensor, ends: list[int] | None, place: Tensor, last_place: Tensor) -> None:
        of_row = None if ends is None else torch.tensor(ends, device=q.device)
        part: DeltaRuleInputs[AnyArray] = DeltaRuleInputs._make([*rows, state, skip, of_row])
        forward = partial(_ops.delta.written, o=place, last=last_place)
        if _ops.delta.operator.attempt(part, options, forward) is None:
            for to, result in zip((place, last_place), evaluate(part, options), strict=True):
                to.copy_(result)

    def compute(operands: list[AnyArray], state: Tensor, ends: list[int] | None) -> tuple[Tensor, Tensor]:
        of_row = None if ends is None else torch.tensor(ends, device=q.device)
        return evaluate(DeltaRuleInputs._make([*operands, state, skip, of_row]), options)

    operands = q, k, v, beta, g
    if _ops.delta.is_alone(checked):
        o = q.new_empty(*q.shape[:2], *v.shape[2:])
        last, states = segments.fill(
            torch, initial_state.new_empty, write, operands, initial_state, num_householder, parts, o
        )
    else:
        o, last, states = segments.run(torch, compute, operands, initial_state, num_householder, parts)
    return o, last if validate.flag("output_final_state", output_final_state) else None, states


def _fits(inputs: DeltaRuleInputs[AnyArray], num_householder: int, erases: bool) -> bool:
    """Return whether shapes fit, and all tensors have one dtype that the core computes in: sequences are not packed."""
    q, k, v, beta, g, initial_state, skip, cu_seqlens = inputs
    try:
        (batch, tokens, heads, keys), (_, _, value_heads, values), dtype = q.shape, v.shape, q.dtype
        steps = tokens * num_householder
        gates = None if g is None else (batch, tokens, value_heads, keys)[: max(3, g.dim())]
        expected = (
            (k, (batch, steps, heads, keys)),
            (v, (batch, steps, value_heads, values)),
            (beta, (batch, steps, value_heads)),
            (g, gates),
            (initial_state, (batch, value_heads, keys, values)),
            (skip, (value_heads,)),
        )
        for t, shape in expected:
            if t is not None and (t.dtype is not dtype or t.shape != shape):
                return False
        sizes_fit = num_householder >= 1 and keys and values and value_heads and not value_heads % heads
    except (AttributeError, TypeError, ValueError, ZeroDivisionError):
        return False  # the checks explain
    is_complete = k is not None and not (erases and beta is None)
    return bool(sizes_fit) and is_complete and cu_seqlens is None and dtype in _COMPUTED


def check(
    inputs: DeltaRuleInputs[AnyArray], scale: float | None, num_householder: int, normalize: bool, *, erases: bool
) -> tuple[DeltaRuleInputs[AnyArray], DeltaRuleOptions]:
    """Check all arguments, and convert types of those that have the type of the computation."""
    q, k, v, beta, g, initial_state, skip, cu_seqlens = inputs
    needed = {"k": k, "v": v} | ({"beta": beta} if erases or beta is not None else {})
    compute = checked_type("q", q, needed, {"g": g, "initial_state": initial_state, "skip": skip})
    shapes = {name: t.shape for name, t in needed.items()}
    sizes = validate.delta_sizes(q.shape, shapes, None if g is None else g.shape, num_householder)
    _, heads, keys, values, num_householder = sizes
    count = q.shape[0] if cu_seqlens is None else _packed(cu_seqlens, q)
    checks.shape("initial_state", initial_state, (count, heads, keys, values))
    checks.shape("skip", skip, (heads,))
    # Sizes are tensors in torch.jit.trace, whose powers would be of single precision.
    factor: Any = torch.sym_float(keys) ** -0.5 if scale is None else validate.scale(scale, keys)
    options = DeltaRuleOptions(factor, num_householder, validate.flag("use_qk_l2norm_in_kernel", normalize))
    wide = [None if t is None else checks.cast(t, compute) for t in (beta, g, initial_state, skip)]
    offsets = None if cu_seqlens is None else cu_seqlens.to(torch.int64)
    return DeltaRuleInputs._make([q, k, v, *wide, offsets]), options


def evaluate(
    inputs: DeltaRuleInputs[AnyArray], options: DeltaRuleOptions, forward: AnyFunction | None = None
) -> tuple[Tensor, Tensor]:
    """Compute a call whose arguments are checked, if possible by ``forward``."""
    if inputs.beta is not None and inputs.skip is None and fla_kernels.takes(*inputs[:3], inputs.g):
        o, last = fla_kernels.delta_rule(inputs, options)
        return o.to(inputs.q.dtype), last
    results: tuple[Tensor, Tensor] | None
    results = None if forward is None else _ops.delta.operator.attempt(inputs, options, forward)
    if results is None:
        results = _ops.delta.operator(inputs, options)
    return results


def checked_type(
    like: str, q: ArrayLike, needed: Mapping[str, AnyArray], optional: Mapping[str, AnyArray]
) -> torch.dtype:
    """Return the type of the computation; expect tensors whose types and devices fit to one that messages call so."""
    checks.tensor(like, q)
    if q.dtype is not torch.float64 and q.dtype not in _MIXED:
        raise TypeError(f"{like} has dtype {q.dtype}, expected torch.float64, {', '.join(map(str, _MIXED))}")
    present = {name: other for name, other in optional.items() if other is not None}
    for name, other in {**needed, **present}.items():
        checks.tensor(name, other)
        if other.device != q.device:
            raise TypeError(f"{name} is on {other.device} but {like} is on {q.device}")
        if other.dtype is not q.dtype and not (q.dtype in _MIXED and other.dtype in _MIXED):
            raise TypeError(f"{name} has dtype {other.dtype} but {like} has dtype {q.dtype}")
    return compute_type(q.dtype)


def _packed(cu_seqlens: ArrayLike, q: Tensor) -> int:
    """Check the properties of ``cu_seqlens`` other than its values; return the number of sequences."""
    checks.tensor("cu_seqlens", cu_seqlens)
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens has dtype {cu_seqlens.dtype}, expected torch.int32 or torch.int64")
    if cu_seqlens.dim() != 1 or not len(cu_seqlens):
        raise ValueError(f"cu_seqlens has shape {tuple(cu_seqlens.shape)}, expected one axis of N + 1 integers")
    if cu_seqlens.device != q.device:
        raise TypeError(f"cu_seqlens is on {cu_seqlens.device} but q is on {q.device}")
    validate.one_row(q.shape)
    return len(cu_seqlens) - 1
