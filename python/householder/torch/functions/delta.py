"""The delta rule as a function: checks and types; ``_ops`` computes. Linear attention is the same without betas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from householder import _validate
from householder.torch import _ops
from householder.torch._base import checks
from householder.torch._base.dtypes import HALF_TYPES, compute_type
from householder.torch.functions import fla_kernels

if TYPE_CHECKING:
    from collections.abc import Mapping

_MIXED = (torch.float32, *HALF_TYPES)


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
    num_householder: int = 1,
) -> tuple[Tensor, Tensor | None]:
    r"""Run :math:`S_t = (I - \beta_t k_t k_t^T) \mathrm{Diag}(e^{g_t}) S_{t-1} + \beta_t k_t v_t^T` in one native call.

    The outputs are :math:`o_t = \mathrm{scale}\, S_t^T q_t`. With ``beta = 2``, unit keys and no gate, each step is a
    Householder reflection. DeltaNet has no gate, gated DeltaNet one per head, and Kimi delta attention one per channel.
    DeltaProduct has several reflections per token. Names and shapes are the same as in flash-linear-attention. If that
    is installed, its kernels compute half types on CUDA. All other tensors outside the CPU go through torch operations.

    Parameters
    ----------
    q : Tensor, shape (B, T, H, K)
        Queries; float64, or float32 and half types, also mixed, which are computed in float32.
    k : Tensor, shape (B, T * num_householder, H, K)
        Keys.
    v : Tensor, shape (B, T * num_householder, HV, V)
        Values; HV is a multiple of H, and consecutive value heads share a key head.
    beta : Tensor, shape (B, T * num_householder, HV)
        Step sizes. Above 2, the state may grow.
    g : Tensor, shape (B, T, HV) or (B, T, HV, K), optional
        Logarithms of decays, at most 0: one per head, or one for each row of its state. They act at the first step of
        a token.
    scale : float, optional
        Factor of the outputs, ``K**-0.5`` by default.
    initial_state : Tensor, shape (N, HV, K, V), optional
        States in which the sequences begin, zeros by default; N is B or, with ``cu_seqlens``, the number of sequences.
    output_final_state : bool
        Return the states in which the sequences end.
    use_qk_l2norm_in_kernel : bool
        Divide queries and keys by ``sqrt(sum x^2 + 1e-6)``.
    cu_seqlens : Tensor, shape (N + 1,), integers, optional
        Packs sequences one after the other in a single row, ``B = 1``. Sequence ``i`` has the tokens ``cu_seqlens[i]``
        to ``cu_seqlens[i + 1] - 1``.
    num_householder : int
        Steps per token. The output is taken after the last step.

    Returns
    -------
    o : Tensor, shape (B, T, HV, V)
        In the dtype of ``q``.
    final_state : Tensor, shape (N, HV, K, V), or None
        In the dtype of the computation.

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
    needed, options = {"k": k, "v": v, "beta": beta}, (scale, num_householder, use_qk_l2norm_in_kernel)
    return run(q, needed, g, initial_state, cu_seqlens, *options, output_final_state)


def run(
    q: Tensor,
    needed: Mapping[str, Tensor],
    g: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float | None,
    num_householder: int,
    normalize: bool,
    output_final_state: bool,
    *,
    in_place: bool = False,
    skip: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Check the arguments and compute; ``needed`` has k, v and, unless nothing is erased, beta.

    ``in_place``: the final states may take the place of the initial ones. With ``skip (HV,)`` nothing is erased, beta
    multiplies the values that are written, and the outputs get the values times ``skip``.
    """
    compute = _checked_type(q, needed, {"g": g, "initial_state": initial_state, "skip": skip})
    gates = None if g is None else g.shape
    shapes = {name: t.shape for name, t in needed.items()}
    sizes = _validate.delta_sizes(q.shape, shapes, gates, num_householder)
    _, heads, keys, values, num_householder = sizes
    count = q.shape[0] if cu_seqlens is None else _packed(cu_seqlens, q)
    checks.shape("initial_state", initial_state, (count, heads, keys, values))
    checks.shape("skip", skip, (heads,))
    if cu_seqlens is not None:
        cu_seqlens = cu_seqlens.to(torch.int64)
    factor: Any = torch.sym_float(keys) ** -0.5 if scale is None else _validate.number("scale", scale)
    options = factor, num_householder, _validate.flag("use_qk_l2norm_in_kernel", normalize)
    k, v, beta = needed["k"], needed["v"], needed.get("beta")
    if beta is not None and skip is None and fla_kernels.takes(q, k, v, g):
        o, last = fla_kernels.delta_rule(q, k, v, beta, g, initial_state, cu_seqlens, *options)
    else:
        wide = [None if t is None else checks.cast(t, compute) for t in (beta, g, initial_state, skip)]
        operands = q, k, v, *wide, cu_seqlens
        found = _ops.delta.in_place(operands, options) if in_place and initial_state is not None else None
        o, last = _ops.delta.operator(operands, options) if found is None else found
    return o.to(q.dtype), last if _validate.flag("output_final_state", output_final_state) else None


def _checked_type(q: Any, needed: Mapping[str, Any], optional: Mapping[str, Any]) -> torch.dtype:
    checks.tensor("q", q)
    if q.dtype is not torch.float64 and q.dtype not in _MIXED:
        raise TypeError(f"q has dtype {q.dtype}, expected torch.float64, {', '.join(map(str, _MIXED))}")
    given = {name: other for name, other in optional.items() if other is not None}
    for name, other in {**needed, **given}.items():
        checks.tensor(name, other)
        if other.device != q.device:
            raise TypeError(f"{name} is on {other.device} but q is on {q.device}")
        if other.dtype is not q.dtype and not (q.dtype in _MIXED and other.dtype in _MIXED):
            raise TypeError(f"{name} has dtype {other.dtype} but q has dtype {q.dtype}")
    return compute_type(q.dtype)


def _packed(cu_seqlens: Any, q: Tensor) -> int:
    """Check the properties of ``cu_seqlens`` other than its values; return the number of sequences."""
    checks.tensor("cu_seqlens", cu_seqlens)
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens has dtype {cu_seqlens.dtype}, expected torch.int32 or torch.int64")
    if cu_seqlens.dim() != 1 or not len(cu_seqlens):
        raise ValueError(f"cu_seqlens has shape {tuple(cu_seqlens.shape)}, expected one axis of N + 1 integers")
    if cu_seqlens.device != q.device:
        raise TypeError(f"cu_seqlens is on {cu_seqlens.device} but q is on {q.device}")
    if q.shape[0] != 1:
        raise ValueError(
            f"q has shape {tuple(q.shape)}, but with cu_seqlens sequences are packed in one row: expected B = 1"
        )
    return len(cu_seqlens) - 1
