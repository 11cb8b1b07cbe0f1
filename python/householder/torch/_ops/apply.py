"""The operation ``apply``: ``W h`` (or ``W* h``) for many vectors and many matrices in one native call.

Shapes are canonical here: ``u (*c, n, m)``, ``h (*c, *r, n)`` and ``tau (*c, m)`` or None, one matrix for each index of
``c``. Columns of u are trapezoidal or full.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch

from householder import _core, _validate, plan
from householder._spec import reflection_count
from householder.torch._base import expressions
from householder.torch._ops.library import all_leading, empty_kept, follow_torch_threads, require_dtype
from householder.torch._ops.operator import Operator

if TYPE_CHECKING:
    from torch import Tensor

    from householder._library import Library


def compute(tensors: Any, options: Any, keep: bool) -> Any:
    """Return ``W h``, no state, and what the core keeps, or ``NotImplemented``."""
    (u, h, tau), (transpose, method, shape) = tensors, options
    follow_torch_threads()
    c = torch.empty_like(h)
    kept = _core.forward(u, h, c, None, transpose, method, keep, shape, tau)
    return kept if kept is NotImplemented else (c, (None,), kept)


def _differentiate(tensors: Any, _: Any, kept: _core.Kept | None, grads: Any, wanted: Any, options: Any) -> Any:
    (u, h, tau), (grad_c,), (transpose, method, shape) = tensors, grads, options
    follow_torch_threads()
    want_u, want_h, want_tau = wanted
    grad_u, grad_h = torch.empty_like(u) if want_u else None, torch.empty_like(h) if want_h else None
    grad_tau = torch.empty_like(tau) if want_tau and tau is not None else None
    done = _core.backward(u, h, grad_c, (grad_u, grad_h, None, grad_tau), None, transpose, method, kept, shape, tau)
    return done if done is NotImplemented else (grad_u, grad_h, grad_tau)


def _require_unchanged(tensors: Any, _: Any, grads: Any, __: Any) -> None:
    (u, h, tau), (grad_c,) = tensors, grads
    require_dtype(h, u, tau, grad_c)
    if grad_c.shape != h.shape or not u.device == h.device == grad_c.device:
        raise ValueError(
            f"grad_c has shape {tuple(grad_c.shape)} on {grad_c.device}, expected {tuple(h.shape)} on {u.device} as h"
        )


def _adjoint(tensors: Any, grads: Any, options: Any) -> Any:
    """Return the gradient of ``h`` alone: the adjoint, applied."""
    (u, _, tau), (grad_c,), (transpose, *others) = tensors, grads, options
    return None, operator((u, grad_c, tau), (not transpose, *others)), None


def unsupported_columns(tau: Tensor | None, shape: str) -> str:
    """Return why kernels for other devices cannot take such columns, or ""."""
    return "" if _validate.is_default(tau, shape) else "kernels take trapezoidal columns without tau"


def _unsupported(tensors: Any, options: Any) -> str:
    return unsupported_columns(tensors[2], options[2])


def _expression(library: Library, tensors: Any, options: Any) -> tuple[Tensor]:
    (u, h, tau), (transpose, _, shape) = tensors, options
    return (expressions.apply(u, h, transpose, tau, shape, library=library),)


def _fake(tensors: Any, _: Any, keep: bool) -> tuple[Tensor, Tensor]:
    h: Tensor = tensors[1]
    return h.new_empty(h.shape), empty_kept(h, keep)


def _vmap(op: Any, info: Any, in_dims: Any, u: Tensor, h: Tensor, tau: Tensor | None, _: bool, *options: Any) -> Any:
    """Keep nothing, because the backward pass has a rule of its own."""
    u_dim, h_dim, tau_dim = in_dims[:3]
    if u_dim is None and tau_dim is None:  # more rows for the same matrices
        rows_dim = u.dim() - 2
        return op(u, h.movedim(h_dim, rows_dim), tau, False, *options), (rows_dim, None)
    return op(*all_leading(info, (u, h, tau), in_dims[:3]), False, *options), (0, None)


def _backward_vmap(op: Any, info: Any, in_dims: Any, *arguments: Any) -> Any:
    (*tensors, _, grad_c), (wanted, *options) = arguments[:5], arguments[5:]
    *tensors, grad_c = all_leading(info, (*tensors, grad_c), (*in_dims[:3], in_dims[4]))
    return op(*tensors, None, grad_c, wanted, *options), tuple(0 if want else None for want in wanted)


def forming_flops(n: int, k: int) -> int:
    """Count ``T = striu(V* V) + I / 2`` and ``W = I - (V S) V*``."""
    return _factor_flops(n, k) + n * k * k + 2 * n * n * k


def _factor_flops(n: int, k: int) -> int:
    return 2 * n * k * k


def application_flops(method: str, n: int, k: int, rows: int) -> int:
    """Count one application of k reflections to so many rows."""
    if method == "dense":
        return forming_flops(n, k) + 2 * rows * n * n
    by_reflections = 4 * rows * n * k
    return by_reflections if method == "reflections" else _factor_flops(n, k) + by_reflections + rows * k * k


def gradient_flops(n: int, k: int, rows: int) -> int:
    """Count ``V* h``, ``V* g``, two solves, ``J``; then ``V (L + L*)``, ``h c~*``, ``g h~*`` and ``V c~``."""
    return _factor_flops(n, k) + 4 * rows * n * k + 4 * rows * k * k + 2 * n * k * k + 6 * rows * n * k


def method_of(method: str, u: Tensor, rows: int, steps: int | None, is_default: bool) -> str:
    """Return the method that "auto" takes; that of full columns, or with a given tau, counts as the compact WY form."""
    if method != "auto" or not rows:
        return method
    n, m = u.shape[-2:]
    return plan(n, m, rows, steps, "complex64" if u.is_complex() else "float32").method if is_default else "wy"


def _sizes(u: Tensor, h: Tensor) -> tuple[int, int, int, int]:
    n, m = u.shape[-2:]
    matrices = prod(u.shape[:-2])
    return matrices, n, m, h.numel() // (n * matrices) if matrices else 0


def _flops(tensors: Any, options: Any) -> int:
    (u, h, tau), (_, method, shape) = tensors, options
    matrices, n, m, rows = _sizes(u, h)
    is_default = _validate.is_default(tau, shape)
    method = method_of(method, u, rows, None, is_default)
    return matrices * application_flops(method, n, reflection_count(n, m, ends_in_sign=is_default), rows)


def _backward_flops(tensors: Any, options: Any) -> int:
    (u, h, _), is_default = tensors, _validate.is_default(tensors[2], options[-1])
    matrices, n, m, rows = _sizes(u, h)
    return matrices * gradient_flops(n, reflection_count(n, m, ends_in_sign=is_default), rows)


operator = Operator(
    "apply",
    tensors="Tensor u, Tensor h, Tensor? tau",
    options="bool transpose, str method, str shape",
    states="Tensor? kept",
    grads="Tensor grad_c",
    differentiable=3,
    compute=compute,
    differentiate=_differentiate,
    require_unchanged=_require_unchanged,
    shortcut=_adjoint,
    keeps_on_cuda=True,
    unsupported=_unsupported,
    expression=_expression,
    fake=_fake,
    vmap=_vmap,
    backward_vmap=_backward_vmap,
    flops=_flops,
    backward_flops=_backward_flops,
)
"""``operator((u, h, tau), (transpose, method, shape))``."""
