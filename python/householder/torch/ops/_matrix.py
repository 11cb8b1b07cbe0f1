"""The operator ``matrix``: ``W`` itself for ``u (*c, n, m)``; its gradient is that of ``apply`` at the identity."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from householder import _core
from householder.torch import expressions
from householder.torch._autograd import NATIVE, Route, kept_in
from householder.torch._layout import laid_out, ordinary
from householder.torch._operator import Operator, save
from householder.torch.ops import _apply
from householder.torch.ops._library import (
    follow_torch_threads,
    operator,
    require_dtype,
)


def _native(tensors: Any, _: Any = ()) -> Any:
    """Return ``W``, or ``NotImplemented``: ask the dispatcher."""
    found = _keeping(tensors, False)
    return found if found is NotImplemented else found[0]


def _keeping(tensors: Any, keep: bool) -> Any:
    """Return ``W`` and what the core has kept for the backward pass, or ``NotImplemented``: ask the dispatcher."""
    (u,) = tensors
    follow_torch_threads()
    w = u.new_empty(*u.shape[:-1], u.shape[-2])
    kept = _core.matrix(u, w, None, keep)
    return kept if kept is NotImplemented else (w, kept)


def _native_gradients(tensors: Any, kept: _core.Kept | None) -> Any:
    """Return the gradient of ``u``, or ``NotImplemented``: ask the dispatcher; ``tensors``: u and grad_w."""
    u, grad_w = tensors
    follow_torch_threads()
    grad_u = torch.empty_like(u)
    done = _core.matrix_backward(u, grad_w, grad_u, kept)
    return done if done is NotImplemented else (grad_u,)


def _eager(ctx: Any, u: Tensor, options: tuple[()]) -> Tensor:
    found = _keeping(laid_out(u), True) if u.is_cpu else NotImplemented
    w: Tensor
    w, kept = (matrix_op(u), None) if found is NotImplemented else found
    save(ctx, (u,), (), kept, options)
    return w


def _native_backward(ctx: Any, grad_w: Tensor | None) -> Any:
    u, holder = ctx.saved_tensors
    if grad_w is None or grad_w.dtype is not u.dtype:
        return NotImplemented
    return _native_gradients((u, grad_w), kept_in(holder))


def _general(u: Tensor) -> Tensor:
    w: Tensor = matrix_op(u)
    return w


def _backward(way: Route, tensors: Any, _: Any, kept: Any, grads: Any, wanted: Any, __: Any) -> Any:
    (u,), (grad_w,) = tensors, grads
    require_dtype(u, grad_w)
    found = NotImplemented
    if u.is_cpu and way in NATIVE:
        found = _native_gradients(laid_out(u, grad_w), kept)
    return _derivative(u, grad_w, wanted) if found is NotImplemented else found


def _derivative(u: Tensor, grad_w: Tensor, _: Any) -> tuple[Tensor]:
    n = u.shape[-2]
    eye = torch.eye(n, dtype=u.dtype, device=u.device).expand(*u.shape[:-2], n, n)
    return (_apply.backward_op(u, eye, None, grad_w.mT, [True, False, False], False, "auto", "trapezoidal")[0],)


matrix = Operator(
    "matrix",
    differentiable=1,
    native=_native,
    eager=_eager,
    native_backward=_native_backward,
    general=_general,
    backward=_backward,
    derivative=_derivative,
    expression=lambda u: (expressions.matrix(u),),
)
"""``matrix((u,), ())``."""


def _matrix_cpu(u: Tensor) -> Tensor:
    (u,) = ordinary(u)
    w: Tensor = _native((u,))
    return w


def _matrix_fake(u: Tensor) -> Tensor:
    return u.new_empty(*u.shape[:-1], u.shape[-2])


def _matrix_vmap(info: Any, in_dims: Any, u: Tensor) -> tuple[Tensor, int]:  # noqa: ARG001
    return matrix_op(u.movedim(in_dims[0], 0)), 0


matrix_op = operator(
    "matrix(Tensor u) -> Tensor",
    cpu=_matrix_cpu,
    fake=_matrix_fake,
    vmap=_matrix_vmap,
    autograd=matrix.forward_autograd,
)
