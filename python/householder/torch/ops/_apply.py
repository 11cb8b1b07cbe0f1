"""The operator ``apply``: ``W h`` (or ``W* h``) for many vectors and many matrices in one native call.

Shapes are canonical here: ``u (*c, n, m)``, ``h (*c, *r, n)`` and ``tau (*c, m)`` or None, one matrix for each index of
``c``. Columns of u are trapezoidal or full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from householder import _core
from householder.torch import expressions
from householder.torch._autograd import NATIVE, Route, kept_in
from householder.torch._layout import laid_out, ordinary
from householder.torch._operator import Operator, save
from householder.torch.ops._cuda_entry import on_cuda
from householder.torch.ops._library import (
    are_plain,
    follow_torch_threads,
    leading,
    operator,
    require_alike,
)

if TYPE_CHECKING:
    from torch import Tensor


def _native(tensors: Any, options: Any) -> Any:
    """Return ``W h``, or ``NotImplemented``: ask the dispatcher."""
    (u, h, tau), (transpose, method, shape) = tensors, options
    follow_torch_threads()
    c = torch.empty_like(h)
    return c if _core.forward(u, h, c, None, transpose, method, False, shape, tau) is None else NotImplemented


def keeping(tensors: Any, options: Any, keep: bool = True) -> Any:
    """Return ``W h`` and what the core has kept for the backward pass, or ``NotImplemented``: ask the dispatcher."""
    (u, h, tau), (transpose, method, shape) = tensors, options
    follow_torch_threads()
    c = torch.empty_like(h)
    kept = _core.forward(u, h, c, None, transpose, method, keep, shape, tau)
    return kept if kept is NotImplemented else (c, kept)


def native_gradients(tensors: Any, wanted: Any, options: Any, kept: _core.Kept | None = None) -> Any:
    """Return the wanted gradients, or ``NotImplemented``: ask the dispatcher; ``tensors``: u, h, tau and grad_c."""
    (u, h, tau, grad_c), (transpose, method, shape) = tensors, options
    follow_torch_threads()
    want_u, want_h, want_tau = wanted
    grad_u, grad_h = torch.empty_like(u) if want_u else None, torch.empty_like(h) if want_h else None
    grad_tau = torch.empty_like(tau) if want_tau and tau is not None else None
    done = _core.backward(u, h, grad_c, (grad_u, grad_h, None, grad_tau), None, transpose, method, kept, shape, tau)
    return done if done is NotImplemented else (grad_u, grad_h, grad_tau)


def _eager(ctx: Any, u: Tensor, h: Tensor, tau: Tensor | None, options: tuple[bool, str, str]) -> Tensor:
    found: Any = NotImplemented
    want_u, _, want_tau, _ = ctx.needs_input_grad
    keep = want_u or want_tau
    if u.is_cpu:
        found = keeping((u, h, tau), options, keep)
        if found is NotImplemented:
            found = keeping(laid_out(u, h, tau), options, keep)
    elif u.is_cuda and keep and are_plain(u, h):
        found = on_cuda().apply_and_keep(u, h, tau, *options)
    c: Tensor
    c, kept = (forward_op(u, h, tau, *options), None) if found is NotImplemented else found
    save(ctx, (u, h, tau), (), kept, options)
    return c


def _native_backward(ctx: Any, grad_c: Tensor | None) -> Any:
    u, h, tau, holder = ctx.saved_tensors
    want_u, _, want_tau, _ = wanted = ctx.needs_input_grad
    if grad_c is None or not (want_u or want_tau):
        return NotImplemented
    try:
        return native_gradients((u, h, tau, grad_c), wanted[:3], ctx.options, kept_in(holder))
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return NotImplemented


def _general(u: Tensor, h: Tensor, tau: Tensor | None, transpose: bool, method: str, shape: str) -> Tensor:
    c: Tensor = forward_op(u, h, tau, transpose, method, shape)
    return c


def _backward(way: Route, tensors: Any, _: Any, kept: Any, grads: Any, wanted: Any, options: Any) -> Any:
    u, h, tau = tensors
    found: Any = NotImplemented
    if u.is_cpu and way in NATIVE:
        try:
            found = native_gradients(laid_out(u, h, tau, *grads), wanted, options, kept)
        except (TypeError, ValueError, RuntimeError):
            require_alike(u, h, tau, *grads)
            raise
    elif kept is not None and way in NATIVE and are_plain(u, h, *grads):
        require_alike(u, h, tau, *grads)
        found = on_cuda().apply_gradients(u, h, tau, *grads, wanted, *options, kept)
    return backward_op(u, h, tau, *grads, wanted, *options) if found is NotImplemented else found


def _derivative(*arguments: Any) -> Any:
    return backward_op(*arguments)


def _of_vectors(tensors: Any, grads: Any, options: Any) -> Any:
    """Give the gradient of ``h`` alone: the adjoint, applied."""
    (u, _, tau), (grad_c,), (transpose, *others) = tensors, grads, options
    return None, apply((u, grad_c, tau), (not transpose, *others)), None


apply = Operator(
    "apply",
    differentiable=3,
    options=3,
    native=_native,
    eager=_eager,
    native_backward=_native_backward,
    general=_general,
    backward=_backward,
    derivative=_derivative,
    expression=lambda u, h, tau, transpose, _, shape: (expressions.apply(u, h, transpose, tau, shape),),
    shortcut=_of_vectors,
)
"""``apply((u, h, tau), (transpose, method, shape))``."""


def _forward_cpu(u: Tensor, h: Tensor, tau: Tensor | None, transpose: bool, method: str, shape: str) -> Tensor:
    c: Tensor = _native(ordinary(u, h, tau), (transpose, method, shape))
    return c


def _backward_cpu(
    u: Tensor, h: Tensor, tau: Tensor | None, grad_c: Tensor, wanted: Any, transpose: bool, method: str, shape: str
) -> tuple[Tensor | None, ...]:
    require_alike(u, h, tau, grad_c)
    options = transpose, method, shape
    found: tuple[Tensor | None, ...] = native_gradients(ordinary(u, h, tau, grad_c), wanted, options)
    return found


def _forward_fake(*arguments: Any) -> Tensor:
    h: Tensor = arguments[1]
    return h.new_empty(h.shape)


def _backward_fake(*arguments: Any) -> tuple[Tensor | None, ...]:
    tensors, wanted = arguments[:3], arguments[4]
    return tuple(t.new_empty(t.shape) if want else None for t, want in zip(tensors, wanted, strict=True))


def _forward_vmap(
    info: Any, in_dims: Any, u: Tensor, h: Tensor, tau: Tensor | None, *options: Any
) -> tuple[Tensor, int]:
    u_dim, h_dim, tau_dim = in_dims[:3]
    if u_dim is None and tau_dim is None:  # more rows for the same matrices
        rows_dim = u.dim() - 2
        return forward_op(u, h.movedim(h_dim, rows_dim), tau, *options), rows_dim
    tau = None if tau is None else leading(info, tau, tau_dim)
    return forward_op(leading(info, u, u_dim), leading(info, h, h_dim), tau, *options), 0


def _backward_vmap(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    tensors, (wanted, *options) = arguments[:4], arguments[4:]
    own = [None if t is None else leading(info, t, dim) for t, dim in zip(tensors, in_dims, strict=False)]
    return backward_op(*own, wanted, *options), tuple(0 if want else None for want in wanted)


_OPTIONS = "bool transpose, str method, str shape"
forward_op = operator(
    f"apply(Tensor u, Tensor h, Tensor? tau, {_OPTIONS}) -> Tensor",
    cpu=_forward_cpu,
    fake=_forward_fake,
    vmap=_forward_vmap,
    autograd=apply.forward_autograd,
)
backward_op = operator(
    f"apply_backward(Tensor u, Tensor h, Tensor? tau, Tensor grad_c, bool[] wanted, {_OPTIONS})"
    " -> (Tensor, Tensor, Tensor)",
    cpu=_backward_cpu,
    fake=_backward_fake,
    vmap=_backward_vmap,
    autograd=apply.backward_autograd,
)
