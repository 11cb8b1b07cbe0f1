"""One definition of an operator, and every route to it.

An operator takes tensors, then options. It is defined by an eager forward pass, a call through torch's dispatcher,
its gradients, and an expression in torch operations. From these follow three ``autograd.Function`` classes:

* ``Eager`` has the least overhead and serves ordinary calls;
* ``General`` has a ``setup_context`` and a vmap rule, which compilation and ``torch.func`` require;
* ``Derivative`` is the backward pass as a differentiable function, whose own backward is the expression's.

Calls that go straight to the dispatcher, as those of exported programs do, have the same gradients.
``forward_autograd`` and ``backward_autograd`` are for ``torch.library.register_autograd``. Our own calls do without
that, because it adds 15 to 20 us to a training step.

Forward mode takes the expression itself, because that has every derivative.
"""

from __future__ import annotations

from types import new_class
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from householder.torch._autograd import (
    NATIVE,
    Route,
    held,
    kept_in,
    present,
    pull_back,
    route,
    spread,
)
from householder.torch._layout import laid_out

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from householder import _core


class Operator:
    """A differentiable function with gradients for its first tensors.

    Parameters
    ----------
    name : str
        Profiles show it, and ``grad_fn`` that of its backward pass.
    differentiable, constant : int
        How many of the tensors, which may be None, have gradients, and how many follow that have none.
    options : int
        The number of options.
    native : callable
        ``native(tensors, options)`` gives the results of the core, or ``NotImplemented``: ask the dispatcher.
    eager : callable
        ``eager(ctx, *tensors, options)`` gives the results where a graph is recorded, and ends with ``save``.
    native_backward : callable, optional
        ``native_backward(ctx, *grads)`` gives the gradients of the core after ``eager``, or ``NotImplemented``.
    general : callable
        ``general(*tensors, *options)`` gives the results through the dispatcher.
    backward : callable
        ``backward(route, tensors, states, kept, grads, wanted, options)`` gives the gradients, None where not wanted.
    derivative : callable
        ``derivative(*tensors, *states, *grads, wanted, *options)`` gives the same through the dispatcher.
    expression : callable
        ``expression(*tensors, *options)`` gives the results as a tuple.
    states : int
        How many tensors the forward pass leaves to the backward pass besides its arguments: its first results, and one
        that the dispatcher's operator returns after its results if the argument after its tensors is true.
    shortcut : callable, optional
        ``shortcut(tensors, grads, options)`` gives the gradients where the second tensor alone has one.
    """

    def __init__(
        self,
        name: str,
        *,
        differentiable: int,
        constant: int = 0,
        options: int = 0,
        native: Callable[..., Any],
        eager: Callable[..., Any],
        native_backward: Callable[..., Any] = lambda *_: NotImplemented,
        general: Callable[..., Any],
        backward: Callable[..., Any],
        derivative: Callable[..., Any],
        expression: Callable[..., tuple[Tensor, ...]],
        states: int = 0,
        shortcut: Callable[..., Any] | None = None,
    ) -> None:
        count = differentiable + constant

        def gradients(
            tensors: Sequence[Any],
            left: Sequence[Any],
            kept: _core.Kept | None,
            grads: Sequence[Any],
            wanted: Sequence[bool],
            options: Sequence[Any],
        ) -> tuple[Any, ...]:
            """Return the wanted gradients, themselves differentiable where a graph is being recorded."""
            found: tuple[Any, ...]
            if shortcut is not None and not wanted[0] and not any(wanted[2:]):
                found = shortcut(tensors, grads, options)
            elif (way := route()) is Route.EXPRESSION:
                found = spread(by_expression(tensors, grads, wanted, options), wanted)
            elif torch.is_grad_enabled():
                found = spread(Derivative.apply(*tensors, *left, *grads, wanted, *options), wanted)
            else:
                found = backward(way, tensors, left, kept, grads, wanted, options)
            return found

        def by_expression(
            tensors: Sequence[Any], grads: Sequence[Any], wanted: Sequence[bool], options: Sequence[Any]
        ) -> tuple[Tensor, ...]:
            """Give the wanted gradients in torch operations."""

            def results(*free: Any) -> tuple[Tensor, ...]:
                found = expression(*free, *tensors[differentiable:], *options)
                return tuple(result for result, grad in zip(found, grads, strict=True) if grad is not None)

            return pull_back(results, tensors[:differentiable], present(grads), wanted)

        def of_context(ctx: Any, grads: Sequence[Any]) -> tuple[Any, ...]:
            for grad in grads:
                if grad is not None:
                    *saved, holder = ctx.saved_tensors
                    wanted = ctx.needs_input_grad[:differentiable]
                    return gradients(saved[:count], saved[count:], kept_in(holder), grads, wanted, ctx.options)
            return (None,) * differentiable

        others = (None,) * (constant + 1)

        class Eager(Function):
            forward = staticmethod(eager)

            @staticmethod
            def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
                found: Any = NotImplemented
                if route() in NATIVE and not torch.is_grad_enabled():
                    found = native_backward(ctx, *grads)
                if found is NotImplemented:
                    found = of_context(ctx, grads)
                return (*found, *others)

        class General(Function):
            generate_vmap_rule = True
            forward = staticmethod(general)

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                left = (*output[: states - 1], None) if states else ()
                save(ctx, inputs[:count], left, None, inputs[count:])
                ctx.set_materialize_grads(False)

            @staticmethod
            def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
                return *of_context(ctx, grads), *(None,) * (constant + options)

        class Derivative(Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(*arguments: Any) -> tuple[Tensor, ...]:
                return present(derivative(*arguments))

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
                ctx.first, ctx.last = count + states, len(inputs) - options - 1  # of the gradients
                ctx.wanted, ctx.options = inputs[ctx.last], inputs[ctx.last + 1 :]
                ctx.save_for_backward(*inputs[:count], *inputs[ctx.first : ctx.last])
                ctx.set_materialize_grads(False)

            @staticmethod
            def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
                return Derivative.pull_back(ctx, *spread(cotangents, ctx.wanted))

            @staticmethod
            def pull_back(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
                """Differentiate; there is a cotangent for each gradient, wanted or not."""
                # A gradient penalty uses few of the first gradients; the others have no cotangent.
                used = [cotangent is not None for cotangent in cotangents]
                if not any(used):
                    return (None,) * len(ctx.needs_input_grad)
                tensors, grads = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
                free, fixed = tensors[:differentiable], tensors[differentiable:]

                def first_order(*arguments: Any) -> tuple[Tensor, ...]:
                    tensors, grads = (*arguments[:differentiable], *fixed), arguments[differentiable:]
                    return by_expression(tensors, grads, used, ctx.options)

                needs = ctx.needs_input_grad
                wanted = (*needs[:differentiable], *needs[ctx.first : ctx.last])
                found = spread(pull_back(first_order, (*free, *grads), present(cotangents), wanted), wanted)
                none = (None,) * (ctx.first - differentiable)
                return *found[:differentiable], *none, *found[differentiable:], *(None,) * (1 + options)

        def remember(ctx: Any, inputs: Any, output: Any) -> None:
            left: tuple[Any, ...] = ()
            if states:
                ctx.mark_non_differentiable(output[-1])
                left = (*output[: states - 1], output[-1] if inputs[count] else None)
            save(ctx, inputs[:count], left, None, inputs[len(inputs) - options :])

        def of_operator(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
            others = len(ctx.needs_input_grad) - differentiable
            return *of_context(ctx, grads[:-1] if states else grads), *(None,) * others

        self.gradients = gradients
        self.forward_autograd = of_operator, remember
        self.backward_autograd = Derivative.pull_back, Derivative.setup_context
        self._native, self._expression, self._through_dispatcher = native, expression, general
        self._graph: Any = new_class(f"householder::{name}", (Eager,))  # the name that profiles and graphs show
        self._general = General

    def attempt(self, tensors: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
        """Compute an ordinary call at once; None if it needs checks, conversion or another route."""
        if route() is not Route.EAGER:
            return None
        try:
            if not tensors[0].is_cpu:
                return None
            if torch.is_grad_enabled():
                for tensor in tensors:
                    if tensor is not None and tensor.requires_grad:
                        return self._graph.apply(*tensors, options)
            found = self._native(tensors, options)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            return None  # the checks of the arguments explain
        return None if found is NotImplemented else found

    def __call__(self, tensors: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
        """Compute by the route that the active transforms allow."""
        way = route()
        if way is Route.EXPRESSION:
            return self.expression(tensors, options)
        if way is Route.TRANSFORMED:
            return self._general.apply(*tensors, *options)
        if torch.is_grad_enabled():
            for tensor in tensors:
                if tensor is not None and tensor.requires_grad:
                    function, given = (self._general, options) if way is Route.OBSERVED else (self._graph, (options,))
                    return function.apply(*tensors, *given)
        is_native = way is Route.EAGER and tensors[0].is_cpu
        found = self._native(laid_out(*tensors), options) if is_native else NotImplemented
        return self._through_dispatcher(*tensors, *options) if found is NotImplemented else found

    def expression(self, tensors: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
        """Compute by torch operations alone."""
        results = self._expression(*tensors, *options)
        return results if len(results) > 1 else results[0]


def save(
    ctx: Any, tensors: Sequence[Any], states: Sequence[Any], kept: _core.Kept | None, options: Sequence[Any]
) -> None:
    """Save arguments, other tensors and what the core has kept for the backward pass."""
    ctx.options = options
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *states, held(kept))
