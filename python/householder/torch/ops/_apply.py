"""The operator ``apply``: ``W h`` (or ``W* h``) for many vectors and many matrices in one native call.

Shapes are canonical here: ``u (*c, n, m)`` and ``h (*c, *r, n)``, one matrix for each index of ``c``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from householder import _core
from householder.torch import expressions
from householder.torch._autograd import (
    held,
    kept_in,
    needs_expression,
    needs_general_function,
    present,
    pull_back,
    shown_as,
    spread,
)
from householder.torch.ops._library import (
    core_name,
    follow_torch_threads,
    is_profiled,
    leading,
    operator,
    straight_to_cpu,
)
from householder.torch.ops._memory import empty_like


def apply(u: Tensor, h: Tensor, transpose: bool, method: str, plain: bool = False) -> Tensor:
    """Apply, differentiably, by the route that the active transforms allow; ``plain``: there are none to look for."""
    result: Tensor
    if plain and torch.is_grad_enabled():
        result = EagerApply.apply(u, h, (transpose, method, True))
    elif plain and not is_profiled():
        result = _forward_cpu(u, h, transpose, method)
    elif needs_expression():
        result = expressions.apply(u, h, transpose)
    elif needs_general_function():
        result = Apply.apply(u, h, transpose, method)
    elif torch.is_grad_enabled():
        result = EagerApply.apply(u, h, (transpose, method, straight_to_cpu(u, h)))
    elif straight_to_cpu(u, h) and not is_profiled():
        result = _forward_cpu(u, h, transpose, method)
    else:
        result = forward_op(u, h, transpose, method)
    return result


class Apply(Function):
    """``apply`` under compilation and the transforms of ``torch.func``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor, h: Tensor, transpose: bool, method: str) -> Tensor:
        result: Tensor = forward_op(u, h, transpose, method)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        u, h, ctx.transpose, ctx.method = inputs
        ctx.save_for_backward(u, h)

    @staticmethod
    def backward(ctx: Any, grad_c: Tensor) -> tuple[Any, ...]:
        u, h = ctx.saved_tensors
        want_u, want_h, _, _ = ctx.needs_input_grad
        if not want_u:
            return None, apply(u, grad_c, not ctx.transpose, ctx.method), None, None
        return *gradients(u, h, grad_c, want_h, ctx.transpose, ctx.method), None, None


@shown_as("apply")
class EagerApply(Function):
    """``apply`` in eager calls.

    ``how`` is transpose, method and whether the tensors are plain; each argument and each attribute would cost time.
    """

    @staticmethod
    def forward(ctx: Any, u: Tensor, h: Tensor, how: tuple[bool, str, bool]) -> Tensor:
        transpose, method, plain = ctx.how = how
        if plain:
            c, kept = forward_and_keep(u, h, transpose, method, ctx.needs_input_grad[0])
        else:
            c, kept = forward_op(u, h, transpose, method), None
        ctx.save_for_backward(u, h, held(kept))
        return c

    @staticmethod
    def backward(ctx: Any, grad_c: Tensor) -> tuple[Any, ...]:
        u, h, holder = ctx.saved_tensors
        want_u, want_h, _ = ctx.needs_input_grad
        transpose, method, plain = ctx.how
        plain = plain and u.is_cpu and h.is_cpu  # modules may have been moved
        if want_u and plain and not torch.is_grad_enabled() and straight_to_cpu(grad_c):
            return *backward_of(u, h, grad_c, want_h, transpose, method, kept_in(holder)), None
        if not want_u:
            return None, apply(u, grad_c, not transpose, method), None
        return *gradients(u, h, grad_c, want_h, transpose, method), None


def gradients(
    u: Tensor, h: Tensor, grad_c: Tensor, want_h: bool, transpose: bool, method: str
) -> tuple[Tensor, Tensor | None]:
    """Give the gradients of ``apply``, differentiable themselves where a graph is being recorded."""
    if needs_expression():
        return _gradients_by_expression(u, h, grad_c, want_h, transpose)
    function: Any = backward_op
    if torch.is_grad_enabled():
        function = ApplyBackward.apply
    elif straight_to_cpu(u, h, grad_c):
        function = backward_of
    both: tuple[Tensor, Tensor | None] = function(u, h, grad_c, want_h, transpose, method)
    return both


def _gradients_by_expression(
    u: Tensor, h: Tensor, grad_c: Tensor, want_h: bool, transpose: bool
) -> tuple[Tensor, Tensor | None]:
    found = pull_back(lambda u, h: expressions.apply(u, h, transpose), (u, h), grad_c, (True, want_h))
    return found[0], found[1] if want_h else None


class ApplyBackward(Function):
    """The gradients of ``apply`` as a differentiable function of ``u``, ``h`` and ``grad_c``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        u: Tensor, h: Tensor, grad_c: Tensor, want_h: bool, transpose: bool, method: str
    ) -> tuple[Tensor, Tensor | None]:
        both: tuple[Tensor, Tensor | None] = backward_op(u, h, grad_c, want_h, transpose, method)
        return both

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        u, h, grad_c, ctx.want_h, ctx.transpose, _ = inputs
        ctx.save_for_backward(u, h, grad_c)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        def first_order(u: Tensor, h: Tensor, grad_c: Tensor) -> tuple[Tensor, ...]:
            return present(_gradients_by_expression(u, h, grad_c, ctx.want_h, ctx.transpose))

        needs = ctx.needs_input_grad[:3]
        second_order = pull_back(first_order, ctx.saved_tensors, present(cotangents), needs)
        return *spread(second_order, needs), None, None, None


def _forward_cpu(u: Tensor, h: Tensor, transpose: bool, method: str) -> Tensor:
    return forward_and_keep(u, h, transpose, method, False)[0]


def forward_and_keep(
    u: Tensor, h: Tensor, transpose: bool, method: str, keep: bool
) -> tuple[Tensor, _core.Kept | None]:
    """Apply, and give what the backward pass can use of the reflections, if wanted and if there is something."""
    follow_torch_threads()
    u, h = u.contiguous(), h.contiguous()
    out = empty_like(h)
    return out, _core.forward_tensors(u, h, out, transpose, method, keep)


def backward_of(
    u: Tensor, h: Tensor, grad_c: Tensor, want_h: bool, transpose: bool, method: str, kept: _core.Kept | None = None
) -> tuple[Tensor, Tensor | None]:
    """Give the gradients on the CPU, with what the forward pass has kept if there is something."""
    follow_torch_threads()
    u, h, grad_c = u.contiguous(), h.contiguous(), grad_c.contiguous()
    grad_u = empty_like(u)
    grad_h = empty_like(h) if want_h else None
    _core.backward_tensors(u, h, grad_c, grad_u, grad_h, transpose, method, kept)
    return grad_u, grad_h


def _backward_cpu(
    u: Tensor, h: Tensor, grad_c: Tensor, want_h: bool, transpose: bool, method: str
) -> tuple[Tensor, Tensor | None]:
    require_alike(u, h, grad_c)
    return backward_of(u, h, grad_c, want_h, transpose, method)


def require_alike(u: Tensor, h: Tensor, grad_c: Tensor) -> None:
    """Find what was converted or moved since the forward pass: kernels know addresses alone."""
    core_name(h, u, grad_c)
    if grad_c.shape != h.shape or not u.device == h.device == grad_c.device:
        raise ValueError(
            f"grad_c has shape {tuple(grad_c.shape)} on {grad_c.device}, expected {tuple(h.shape)} on {u.device} as h"
        )


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
