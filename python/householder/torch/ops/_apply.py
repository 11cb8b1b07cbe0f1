"""The operator ``apply``: ``W h`` (or ``W* h``) for many vectors and many matrices in one native call.

Shapes are canonical here: ``u (*c, n, m)`` and ``h (*c, *r, n)``, one matrix for each index of ``c``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from householder import _core
from householder.torch import expressions
from householder.torch._autograd import kept_in
from householder.torch._operator import Operator, save
from householder.torch.ops._cuda_entry import on_cuda
from householder.torch.ops._library import (
    are_plain,
    follow_torch_threads,
    is_traced,
    is_watched,
    leading,
    operator,
    ordinary,
    require_alike,
)
from householder.torch.ops._memory import empty_like

if TYPE_CHECKING:
    from torch import Tensor


def native(u: Tensor, h: Tensor, transpose: bool, method: str, keep: bool = False) -> Any:
    """Give ``W h`` and what the core has kept for the backward pass, or ``NotImplemented``: ask the dispatcher."""
    follow_torch_threads()
    c = empty_like(h)
    kept = _core.forward(u, h, c, None, transpose, method, keep)
    return kept if kept is NotImplemented else (c, kept)


def native_gradients(
    u: Tensor, h: Tensor, grad_c: Tensor, want_h: bool, transpose: bool, method: str, kept: _core.Kept | None = None
) -> Any:
    """Give the gradients of u and, if wanted, of h, or ``NotImplemented``: ask the dispatcher."""
    follow_torch_threads()
    gradients = empty_like(u), empty_like(h) if want_h else None
    done = _core.backward(u, h, grad_c, (*gradients, None, None), None, transpose, method, kept)
    return done if done is NotImplemented else gradients


def _eager(ctx: Any, u: Tensor, h: Tensor, options: tuple[bool, str]) -> Tensor:
    found: Any = NotImplemented
    keep = ctx is not None and ctx.needs_input_grad[0]
    if u.is_cpu and not is_traced():
        found = native(u.contiguous(), h.contiguous(), *options, keep)
    elif u.is_cuda and keep and not is_traced() and are_plain(u, h):
        found = on_cuda().apply_and_keep(u, h, *options)
    c: Tensor
    c, kept = (forward_op(u, h, *options), None) if found is NotImplemented else found
    if ctx is not None:
        save(ctx, (u, h), (), kept, options)
    return c


def _general(u: Tensor, h: Tensor, transpose: bool, method: str) -> Tensor:
    c: Tensor = forward_op(u, h, transpose, method)
    return c


def _backward(tensors: Any, _: Any, holder: Any, grads: Any, wanted: Any, options: Any) -> Any:
    (u, h), (grad_c,), (transpose, method) = tensors, grads, options
    require_alike(u, h, grad_c)
    found: Any = NotImplemented
    kept = kept_in(holder)
    if u.is_cpu and not is_watched():
        laid_out = u.contiguous(), h.contiguous(), grad_c.contiguous()
        found = native_gradients(*laid_out, wanted[1], transpose, method, kept)
    elif kept is not None and not is_watched() and are_plain(u, h, grad_c):
        found = on_cuda().apply_gradients(u, h, grad_c, wanted[1], transpose, method, kept)
    return backward_op(u, h, grad_c, wanted[1], *options) if found is NotImplemented else found


def _derivative(u: Tensor, h: Tensor, grad_c: Tensor, wanted: Any, transpose: bool, method: str) -> Any:
    return backward_op(u, h, grad_c, wanted[1], transpose, method)


def _of_vectors(tensors: Any, grads: Any, options: Any) -> Any:
    """Give the gradient of ``h`` alone: the adjoint, applied."""
    (u, _), (grad_c,), (transpose, method) = tensors, grads, options
    return None, apply((u, grad_c), (not transpose, method))


apply = Operator(
    "apply",
    differentiable=2,
    options=2,
    eager=_eager,
    general=_general,
    backward=_backward,
    derivative=_derivative,
    expression=lambda u, h, transpose, _: (expressions.apply(u, h, transpose),),
    shortcut=_of_vectors,
)
"""``apply((u, h), (transpose, method))``."""


def _forward_cpu(u: Tensor, h: Tensor, transpose: bool, method: str) -> Tensor:
    u, h = ordinary(u, h)
    c: Tensor = native(u, h, transpose, method)[0]
    return c


def _backward_cpu(
    u: Tensor, h: Tensor, grad_c: Tensor, want_h: bool, transpose: bool, method: str
) -> tuple[Tensor, Tensor | None]:
    require_alike(u, h, grad_c)
    u, h, grad_c = ordinary(u, h, grad_c)
    gradients: tuple[Tensor, Tensor | None] = native_gradients(u, h, grad_c, want_h, transpose, method)
    return gradients


def _forward_fake(u: Tensor, h: Tensor, transpose: bool, method: str) -> Tensor:  # noqa: ARG001
    return h.new_empty(h.shape)


def _backward_fake(
    u: Tensor,
    h: Tensor,
    grad_c: Tensor,  # noqa: ARG001
    want_h: bool,
    transpose: bool,  # noqa: ARG001
    method: str,  # noqa: ARG001
) -> tuple[Tensor, Tensor | None]:
    return u.new_empty(u.shape), h.new_empty(h.shape) if want_h else None


def _forward_vmap(info: Any, in_dims: Any, u: Tensor, h: Tensor, transpose: bool, method: str) -> tuple[Tensor, int]:
    u_dim, h_dim = in_dims[:2]
    if u_dim is None:  # more rows for the same matrices
        rows_dim = u.dim() - 2
        return forward_op(u, h.movedim(h_dim, rows_dim), transpose, method), rows_dim
    return forward_op(u.movedim(u_dim, 0), leading(info, h, h_dim), transpose, method), 0


def _backward_vmap(
    info: Any, in_dims: Any, u: Tensor, h: Tensor, grad_c: Tensor, want_h: bool, transpose: bool, method: str
) -> tuple[tuple[Tensor, Tensor | None], tuple[int, int | None]]:
    u, h, grad_c = (leading(info, t, d) for t, d in zip((u, h, grad_c), in_dims, strict=False))
    return backward_op(u, h, grad_c, want_h, transpose, method), (0, 0 if want_h else None)


forward_op = operator(
    "apply(Tensor u, Tensor h, bool transpose, str method) -> Tensor",
    cpu=_forward_cpu,
    fake=_forward_fake,
    vmap=_forward_vmap,
)
backward_op = operator(
    "apply_backward(Tensor u, Tensor h, Tensor grad_c, bool want_h, bool transpose, str method) -> (Tensor, Tensor)",
    cpu=_backward_cpu,
    fake=_backward_fake,
    vmap=_backward_vmap,
)
