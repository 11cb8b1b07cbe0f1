"""The operators on devices without kernels: torch expressions, registered with the dispatcher for all such devices.

Gradients come from automatic differentiation of the same expressions, so there is no second formula.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from householder import _notices
from householder.torch import delta_expression, expressions
from householder.torch.ops import _delta
from householder.torch.ops._library import implement, require_alike
from householder.torch.ops._sequence import split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def apply(u: Tensor, h: Tensor, tau: Tensor | None, transpose: bool, method: str, shape: str) -> Tensor:  # noqa: ARG001
    """``W h`` or ``W* h``."""
    return expressions.apply(u, h, transpose, tau, shape).contiguous()


def apply_backward(
    u: Tensor,
    h: Tensor,
    tau: Tensor | None,
    grad_c: Tensor,
    wanted: Any,
    transpose: bool,
    method: str,  # noqa: ARG001
    shape: str,
) -> tuple[Tensor | None, ...]:
    """Give the wanted gradients."""
    require_alike(u, h, tau, grad_c)

    def result(u: Tensor, h: Tensor, tau: Tensor | None) -> tuple[Tensor]:
        return (expressions.apply(u, h, transpose, tau, shape),)

    return _gradients(result, (u, h, tau), wanted, (grad_c,))


def matrix(u: Tensor) -> Tensor:
    """``W`` itself."""
    return expressions.matrix(u).contiguous()


def rnn(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """All states, the last ones, and an empty tape."""
    inputs, _, options = split(arguments)
    given: list[Any] = [*inputs, *options[:-1]]
    h, last = expressions.rnn(*given)
    return h.contiguous(), last.contiguous(), inputs.u.new_empty(0)


def rnn_backward(*arguments: Any) -> tuple[Tensor | None, ...]:
    """Gradients of the wanted arguments; the states are computed once more."""
    inputs, (h, _, grad_h, grad_last, wanted), options = split(arguments)
    inputs.require_as_before(options.nonlinearity, h, grad_h, grad_last)
    *tensors, sizes = inputs

    def states(*tensors: Any) -> tuple[Tensor, Tensor]:
        given: list[Any] = [*tensors, sizes, *options[:-1]]
        return expressions.rnn(*given)

    return _gradients(states, tensors, wanted, (grad_h, grad_last))


def delta_rule(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """All outputs, final states, and an empty tensor for the kept states, which the backward pass does not need."""
    _delta.say_without_kernels(arguments[0].device)
    tensors, options = arguments[: _delta._OPERANDS + 1], arguments[_delta._OPERANDS + 2 :]
    given: list[Any] = [*tensors, *options]
    o, last = delta_expression.delta_rule(*given)
    return o.contiguous(), last.contiguous(), _delta._forward_fake(*arguments)[2]


def delta_rule_backward(*arguments: Any) -> tuple[Tensor | None, ...]:
    """Gradients of the wanted operands; the states are computed once more."""
    _delta.say_without_kernels(arguments[0].device)
    *tensors, sizes, _, grad_o, grad_last, wanted = arguments[: _delta._OPERANDS + 5]

    def results(*tensors: Any) -> tuple[Tensor, Tensor]:
        given: list[Any] = [*tensors, sizes, *arguments[_delta._OPERANDS + 5 :]]
        return delta_expression.delta_rule(*given)

    return _gradients(results, tensors, wanted, (grad_o, grad_last))


def _gradients(
    function: Callable[..., Sequence[Tensor]],
    tensors: Sequence[Tensor | None],
    wanted: Sequence[bool],
    cotangents: Sequence[Tensor | None],
) -> tuple[Tensor | None, ...]:
    """Give the wanted gradients of the results whose cotangents are given, and None for the others."""
    with _above_autograd():
        leaves = [
            None if t is None else t.detach().requires_grad_(want) for t, want in zip(tensors, wanted, strict=True)
        ]
        results = zip(function(*leaves), cotangents, strict=True)
        pairs = [(result, g) for result, g in results if g is not None and result.requires_grad]
        free = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        found: Sequence[Tensor] = [torch.zeros_like(leaf) for leaf in free]
        if pairs and free:
            outputs, grads = zip(*pairs, strict=True)
            found = torch.autograd.grad(outputs, free, grads, materialize_grads=True)
    rest = iter(found)
    return tuple(next(rest).contiguous() if want else None for want in wanted)


@contextmanager
def _above_autograd() -> Iterator[None]:
    """Record a graph inside of an operator's kernel, which runs below autograd."""
    keys = torch._C.DispatchKey
    recording = keys.AutogradFunctionality, keys.AutogradOther, keys.ADInplaceOrView
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        for key in recording:
            stack.enter_context(torch._C._SetExcludeDispatchKeyGuard(key, False))
        yield


def _with_notice(function: Callable[..., Any]) -> Callable[..., Any]:
    """Say once for each device that its sequences would be faster with kernels."""

    @wraps(function)
    def kernel(*arguments: Any) -> Any:
        if _notices.asked() != "off":
            _notices.say(str(arguments[0].device), "there are kernels for the CPU and for CUDA only")
        return function(*arguments)

    return kernel


for _function in (apply, apply_backward, matrix, rnn, rnn_backward):
    implement(_function.__name__, _with_notice(_function), "CompositeExplicitAutograd")
for _function in (delta_rule, delta_rule_backward):
    implement(_function.__name__, _function, "CompositeExplicitAutograd")
