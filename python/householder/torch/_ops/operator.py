"""One definition of an operation, and every route to it.

An operation takes tensors, then options. A computation in the core, its gradients and an expression in torch operations
define it. From these follow two operators of torch's dispatcher, ``name`` and ``name_backward``, with what runs on each
device, and three ``autograd.Function`` classes:

* ``Eager`` has the least overhead and serves ordinary calls;
* ``General`` has a ``setup_context`` and a vmap rule, which compilation, export and ``torch.func`` require;
* ``Derivative`` is the backward pass as a differentiable function, whose own backward is the expression's.

Calls that go straight to the dispatcher, as those of exported programs do, have the same gradients by
``torch.library.register_autograd``. So do calls on the CPU that are compiled with gradients: there a tensor stands for
what is kept between the passes; see ``rust/torch/kept.rs``. Eager calls do without, because it adds 15 to 20 us to a
training step.

Forward mode takes the expression itself, because that has every derivative. So do devices without kernels: autograd
then records the expression, and nothing is computed twice.
"""

from __future__ import annotations

from inspect import Parameter, Signature
from types import new_class
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd import Function

from householder import _notices
from householder.torch._base import undocumented
from householder.torch._base.expressions import EXPORTED, LIBRARY
from householder.torch._base.layout import laid_out, ordinary
from householder.torch._ops.derivatives import drop_none, handle_of, pull_back, saved_by, scatter_optional
from householder.torch._ops.library import are_plain, define, on_cuda, room_for
from householder.torch._ops.route import NATIVE, RECORDED, Route, route

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from householder import _core


class Operator:
    """A differentiable function with gradients for its first tensors.

    Parameters
    ----------
    name : str
        Profiles show it, and ``grad_fn`` that of its backward pass.
    tensors, options : str
        The arguments, as in a schema of the dispatcher.
    states, grads : str
        The tensors that the backward operator takes after these: what the forward pass leaves, and the gradients of the
        results. The states are the first results and one tensor more, for which the forward operator has an argument
        ``keep`` and a last result.
    differentiable : int
        How many of the tensors, which may be None, have gradients.
    compute : callable
        ``compute(tensors, options, keep)`` returns the results of the core, the states, and what the core keeps for
        the backward pass, or ``NotImplemented`` for the dispatcher to lay out the tensors.
    differentiate : callable
        ``differentiate(tensors, states, kept, grads, wanted, options)`` returns the gradients of the core, None where
        not wanted, or ``NotImplemented``.
    expression : callable
        ``expression(library, tensors, options)`` returns the results of an array library's operations as a tuple.
    fake : callable
        ``fake(tensors, options, keep)`` returns empty results as a tuple, with the state that they leave.
    vmap, backward_vmap : callable
        The rules of both operators, ``rule(operator, info, in_dims, *arguments)``.
    flops, backward_flops : callable, optional
        ``flops(tensors, options)`` counts the operations of a pass.
    has_cuda : bool
        Whether the module for CUDA has functions of the operators' names.
    keeps_on_cuda : bool
        Whether the module for CUDA has ``compute`` and ``differentiate`` too: ``name_keeping`` and ``name_gradients``.
    require_unchanged : callable, optional
        ``require_unchanged(tensors, states, grads, options)`` refuses tensors replaced or converted since the forward
        pass, because kernels see only addresses. Without it, the core compares all shapes and dtypes.
    unsupported : callable
        ``unsupported(tensors, options)`` returns the reason why no device but the CPU has a kernel for a call, or "".
    is_loop : bool
        Whether the expression is a loop over steps, which compilers would unroll.
    shortcut : callable, optional
        ``shortcut(tensors, grads, options)`` returns the gradients where the second tensor alone has one.
    """

    def __init__(
        self,
        name: str,
        *,
        tensors: str,
        options: str = "",
        states: str = "",
        grads: str,
        differentiable: int,
        compute: Callable[..., Any],
        differentiate: Callable[..., Any],
        expression: Callable[..., tuple[Tensor, ...]],
        fake: Callable[..., tuple[Tensor, ...]],
        vmap: Callable[..., Any],
        backward_vmap: Callable[..., Any],
        flops: Callable[..., int] | None = None,
        backward_flops: Callable[..., int] | None = None,
        has_cuda: bool = True,
        keeps_on_cuda: bool = False,
        require_unchanged: Callable[..., None] = lambda *_: None,
        unsupported: Callable[..., str] = lambda *_: "",
        is_loop: bool = False,
        shortcut: Callable[..., Any] | None = None,
    ) -> None:
        count, state_count, option_count = (_count(of) for of in (tensors, states, options))
        constant = count - differentiable
        takes_keep = bool(states)
        self._compute, self._expression, self._unsupported = compute, expression, unsupported
        self._is_loop = is_loop
        has_one_result = _count(grads) == 1

        def without_state(found: Any) -> Any:
            """Return the results alone of what the forward operator returns."""
            if not takes_keep:
                return found
            return found[0] if has_one_result else found[:-1]

        def is_shortcut(wanted: Sequence[bool]) -> bool:
            return shortcut is not None and not wanted[0] and not any(wanted[2:])

        def gradients(
            tensors: Sequence[Any],
            states: Sequence[Any],
            kept: _core.Kept | None,
            grads: Sequence[Any],
            wanted: Sequence[bool],
            options: Sequence[Any],
        ) -> tuple[Any, ...]:
            """Return the wanted gradients, themselves differentiable where a graph is being recorded."""
            found: Any = NotImplemented
            if shortcut is not None and is_shortcut(wanted):
                return tuple(shortcut(tensors, grads, options))
            if (way := route()) is Route.EXPRESSION:
                return scatter_optional(by_expression(tensors, grads, wanted, options), wanted)
            if torch.is_grad_enabled():
                return scatter_optional(Derivative.apply(*tensors, *states, *grads, wanted, *options), wanted)
            if way in NATIVE:
                if tensors[0].is_cpu:
                    try:
                        found = differentiate(tensors, states, kept, grads, wanted, options)
                        if found is NotImplemented:
                            found = differentiate(laid_out(*tensors), states, kept, laid_out(*grads), wanted, options)
                    except (AttributeError, TypeError, ValueError, RuntimeError):
                        require_unchanged(tensors, states, grads, options)
                        raise
                elif keeps_on_cuda and tensors[0].is_cuda and are_plain(*tensors, *grads):
                    require_unchanged(tensors, states, grads, options)
                    found = getattr(on_cuda(), f"{name}_gradients")(tensors, states, kept, grads, wanted, options)
            if found is NotImplemented:
                found = by_dispatcher(*tensors, *states, *grads, wanted, *options)
            return tuple(found)

        def by_dispatcher(*arguments: Any) -> tuple[Any, ...]:
            """Return the gradients through the dispatcher, None where not wanted."""
            found = backward_op(*arguments)
            return found if differentiable > 1 else (found,)

        def by_expression(
            tensors: Sequence[Any],
            grads: Sequence[Any],
            wanted: Sequence[bool],
            options: Sequence[Any],
            *,
            below_autograd: bool = False,
        ) -> tuple[Tensor, ...]:
            """Return the wanted gradients in torch operations."""

            def results(*free: Any) -> tuple[Tensor, ...]:
                found = expression(LIBRARY, (*free, *tensors[differentiable:]), options)
                return tuple(result for result, grad in zip(found, grads, strict=True) if grad is not None)

            free = tensors[:differentiable]
            return pull_back(results, free, drop_none(grads), wanted, below_autograd=below_autograd)

        def of_context(ctx: Any, grads: Sequence[Any]) -> tuple[Any, ...]:
            for grad in grads:
                if grad is not None:
                    *saved, handle = ctx.saved_tensors
                    wanted = ctx.needs_input_grad[:differentiable]
                    return gradients(saved[:count], saved[count:], saved_by(handle), grads, wanted, ctx.options)
            return (None,) * differentiable

        def at_once(tensors: Any, options: Any, keep: bool) -> Any:
            """Compute tensors of any layout without the dispatcher, or return ``NotImplemented``."""
            if tensors[0].is_cpu:
                return compute(laid_out(*tensors), options, keep)
            if keeps_on_cuda and tensors[0].is_cuda and are_plain(*tensors):
                return getattr(on_cuda(), f"{name}_keeping")(tensors, options, keep)
            return NotImplemented

        others = (None,) * (constant + 1)

        class Eager(Function):
            @staticmethod
            def forward(ctx: Any, *arguments: Any) -> Any:
                *tensors, options = arguments
                keep = shortcut is None or not is_shortcut(ctx.needs_input_grad[:count])
                found = compute(tensors, options, keep) if tensors[0].is_cpu else NotImplemented
                if found is NotImplemented:
                    found = at_once(tensors, options, keep)
                if found is NotImplemented:
                    found = forward_op(*tensors, *(keep,) * takes_keep, *options)
                    left = (*found[: state_count - 1], found[-1] if found[-1].numel() else None) if takes_keep else ()
                    found = without_state(found), left, None
                results, left, kept = found
                save(ctx, tensors, left, kept, options)
                return results

            @staticmethod
            def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
                return *of_context(ctx, grads), *others

        class General(Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(*arguments: Any) -> Any:
                return without_state(forward_op(*arguments[:count], *(False,) * takes_keep, *arguments[count:]))

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                results = (output,) if has_one_result else output
                left = (*results[: state_count - 1], None) if takes_keep else ()
                save(ctx, inputs[:count], left, None, inputs[count:])

            @staticmethod
            def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
                return *of_context(ctx, grads), *(None,) * (constant + option_count)

        class Derivative(Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(*arguments: Any) -> tuple[Tensor, ...]:
                return drop_none(by_dispatcher(*arguments))

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
                ctx.first, ctx.last = count + state_count, len(inputs) - option_count - 1  # of the gradients
                ctx.wanted, ctx.options = inputs[ctx.last], inputs[ctx.last + 1 :]
                ctx.save_for_backward(*inputs[:count], *inputs[ctx.first : ctx.last])
                ctx.set_materialize_grads(False)

            @staticmethod
            def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
                return Derivative.pull_back(ctx, *scatter_optional(cotangents, ctx.wanted))

            @staticmethod
            def pull_back(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
                """Differentiate; there is a cotangent for each gradient, wanted or not."""
                # A gradient penalty uses few of the first gradients; the others have no cotangent.
                used = [cotangent is not None for cotangent in cotangents]
                if not any(used):
                    return (None,) * len(ctx.needs_input_grad)
                saved = ctx.saved_tensors
                tensors, grads = saved[:count], saved[count:]
                free, fixed = tensors[:differentiable], tensors[differentiable:]

                def first_order(*arguments: Any) -> tuple[Tensor, ...]:
                    tensors, grads = (*arguments[:differentiable], *fixed), arguments[differentiable:]
                    return by_expression(tensors, grads, used, ctx.options)

                needs = ctx.needs_input_grad
                wanted = (*needs[:differentiable], *needs[ctx.first : ctx.last])
                found = pull_back(first_order, (*free, *grads), drop_none(cotangents), wanted)
                found = scatter_optional(found, wanted)
                none = (None,) * (ctx.first - differentiable)
                return *found[:differentiable], *none, *found[differentiable:], *(None,) * (1 + option_count)

        _state_arity(General.forward, count + option_count)
        _state_arity(Derivative.forward, count + state_count + _count(grads) + 1 + option_count)

        def remember(ctx: Any, inputs: Any, output: Any) -> None:
            left: tuple[Any, ...] = ()
            if state_count:
                ctx.mark_non_differentiable(output[-1])
                left = (*output[: state_count - 1], output[-1] if inputs[count] and output[-1].numel() else None)
            save(ctx, inputs[:count], left, None, inputs[len(inputs) - option_count :])

        def of_operator(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
            others = len(ctx.needs_input_grad) - differentiable
            return *of_context(ctx, grads[:-1] if state_count else grads), *(None,) * others

        def forward(kernel: Callable[..., Any]) -> Callable[..., Any]:
            """Return the forward operator that calls ``kernel(tensors, options, keep)``."""

            def call(*arguments: Any) -> Any:
                keep = takes_keep and arguments[count]
                return kernel(arguments[:count], arguments[count + takes_keep :], keep)

            return call

        def backward(kernel: Callable[..., Any]) -> Callable[..., Any]:
            """Return the backward operator that calls ``kernel(tensors, states, grads, wanted, options)``."""

            def call(*arguments: Any) -> Any:
                after, last = count + state_count, len(arguments) - option_count - 1
                tensors, left, grads = arguments[:count], arguments[count:after], arguments[after:last]
                wanted, options = arguments[last], arguments[last + 1 :]
                require_unchanged(tensors, left, grads, options)
                found = kernel(tensors, left, grads, wanted, options)
                return found if differentiable > 1 else found[0]

            return call

        def on_cpu(tensors: Any, options: Any, keep: bool) -> Any:
            can_keep = keep and fake(tensors, options, True)[-1].numel() > 0
            results, left, _ = compute(ordinary(*tensors), options, can_keep)
            if not takes_keep:
                return results
            state = fake(tensors, options, False)[-1] if left[-1] is None else left[-1]
            return (results, state) if has_one_result else (*results, state)

        def backward_on_cpu(tensors: Any, left: Any, grads: Any, wanted: Any, options: Any) -> Any:
            tensors, left, grads = (ordinary(*some) for some in (tensors, left, grads))
            return differentiate(tensors, left, None, grads, wanted, options)

        def elsewhere(tensors: Any, options: Any, keep: bool) -> Any:
            self._lacks_kernel(tensors, options, Route.EAGER)
            results = tuple(result.contiguous() for result in expression(LIBRARY, tensors, options))
            return (*results, *fake(tensors, options, keep)[len(results) :]) if takes_keep else results[0]

        def backward_elsewhere(tensors: Any, _: Any, grads: Any, wanted: Any, options: Any) -> Any:
            self._lacks_kernel(tensors, options, Route.EAGER)
            found = by_expression(tensors, grads, wanted, options, below_autograd=True)
            return scatter_optional([gradient.contiguous() for gradient in found], wanted)

        def without_numbers(tensors: Any, options: Any, keep: bool) -> Any:
            found = fake(tensors, options, keep)
            return found if len(found) > 1 else found[0]

        def backward_without_numbers(*arguments: Any) -> Any:
            found = room_for(arguments, arguments[len(arguments) - option_count - 1])
            return found if differentiable > 1 else found[0]

        forward_arguments = [tensors, *["bool keep"] * takes_keep, *[options] * bool(options)]
        backward_arguments = [tensors, *[states] * takes_keep, grads, "bool[] wanted", *[options] * bool(options)]
        forward_op = self.forward_op = define(
            name,
            forward_arguments,
            _count(grads) + takes_keep,
            {"CPU": forward(on_cpu), "CompositeExplicitAutograd": forward(elsewhere)}
            | ({"CUDA": forward(_on_cuda_or(name, elsewhere))} if has_cuda else {}),
            fake=forward(without_numbers),
            vmap=lambda *arguments: vmap(forward_op, *arguments),
            autograd=(of_operator, remember),
        )
        backward_op = self.backward_op = define(
            f"{name}_backward",
            backward_arguments,
            differentiable,
            {"CPU": backward(backward_on_cpu), "CompositeExplicitAutograd": backward(backward_elsewhere)}
            | ({"CUDA": backward(_on_cuda_or(f"{name}_backward", backward_elsewhere))} if has_cuda else {}),
            fake=backward_without_numbers,
            vmap=lambda *arguments: backward_vmap(backward_op, *arguments),
            autograd=(Derivative.pull_back, Derivative.setup_context),
        )

        def decompose(tensors: Any, options: Any, keep: bool) -> Any:
            """Compute in ATen's terms; calls with packed sequences keep their operator, and so do training steps."""
            if keep or any(t is not None for t in tensors[differentiable:]):
                return NotImplemented
            results = tuple(result.contiguous() for result in expression(EXPORTED, tensors, options))
            return (*results, fake(tensors, options, False)[-1]) if takes_keep else results[0]

        self.decompose = forward(decompose)

        def counted(flops: Callable[..., int]) -> Callable[..., int]:
            """Return the formula of a counter, which passes the arguments of the operator."""
            return lambda *arguments, **_: flops(arguments[:count], arguments[len(arguments) - option_count :])

        both = (forward_op, flops), (backward_op, backward_flops)
        self.flop_formulas = {op.overloadpacket: counted(flops) for op, flops in both if flops is not None}
        self.gradients = gradients
        self._graph: Any = new_class(f"householder::{name}", (Eager,))  # the name that profiles and graphs show
        self._general, self._at_once = General, at_once
        self._takes_keep, self._without_state, self._is_shortcut = takes_keep, without_state, is_shortcut

    def attempt(self, tensors: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
        """Compute an ordinary call at once; None if it needs checks, conversion or another route."""
        if route() is not Route.EAGER:
            return None
        try:
            with_graph = False
            for tensor in tensors:
                if tensor is not None:
                    if not tensor.is_cpu:
                        return None
                    with_graph = with_graph or tensor.requires_grad
            if with_graph and torch.is_grad_enabled():
                return self._graph.apply(*tensors, options)
            found = self._compute(tensors, options, False)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            return None  # the checks of the arguments explain
        return None if found is NotImplemented else found[0]

    def __call__(self, tensors: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
        """Compute by the route that the active transforms allow."""
        way = route()
        if way is Route.EXPRESSION or self._lacks_kernel(tensors, options, way):
            return self.expression(tensors, options)
        if way is Route.COMPILED:
            keep = False
            if tensors[0].is_cpu and torch.is_grad_enabled() and not torch.compiler.is_exporting():
                wanted = [tensor is not None and tensor.requires_grad for tensor in tensors]
                keep = any(wanted) and not self._is_shortcut(wanted)
            return self._through_dispatcher(tensors, options, keep)
        if way is Route.TRANSFORMED:
            return self._general.apply(*tensors, *options)
        if torch.is_grad_enabled():
            for tensor in tensors:
                if tensor is not None and tensor.requires_grad:
                    function, given = (self._general, options) if way is Route.OBSERVED else (self._graph, (options,))
                    return function.apply(*tensors, *given)
        found = NotImplemented
        if way is Route.EAGER:
            found = self._compute(tensors, options, False) if tensors[0].is_cpu else NotImplemented
            if found is NotImplemented:
                found = self._at_once(tensors, options, False)
        return self._through_dispatcher(tensors, options) if found is NotImplemented else found[0]

    def expression(self, tensors: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
        """Compute by torch operations alone."""
        results = self._expression(LIBRARY, tensors, options)
        return results if len(results) > 1 else results[0]

    def _through_dispatcher(self, tensors: Sequence[Any], options: Sequence[Any], keep: bool = False) -> Any:
        return self._without_state(self.forward_op(*tensors, *(keep,) * self._takes_keep, *options))

    def _lacks_kernel(self, tensors: Sequence[Any], options: Sequence[Any], way: Route) -> bool:
        """Return whether no kernel computes a call, and say so once for each device.

        Compiled code calls the dispatcher's operator where some device has a kernel for such a call.
        """
        device: torch.device = tensors[0].device
        kind = kind_of(device)
        if kind == "cpu":
            return False
        would_unroll = self._is_loop and way in RECORDED
        if not would_unroll and (reason := self._unsupported(tensors, options)):
            say_without_kernels(device, reason)
            return True
        if way not in NATIVE or kind == "meta":
            return False
        if kind == "cuda":
            return not on_cuda().has_kernels(device)
        say_without_kernels(device, "there are kernels for the CPU and for CUDA only")
        return True


def kind_of(device: torch.device) -> str:
    """Return the type of a device."""
    return device.type


def _state_arity(function: Any, count: int) -> None:
    """Say how many arguments a function of any number takes.

    By this number, compilers of torch before 2.15 tell whether a ``forward`` takes a context too.
    """
    parameters = [Parameter(f"argument_{i}", Parameter.POSITIONAL_ONLY) for i in range(count)]
    function.__signature__ = Signature(parameters)


def _count(arguments: str) -> int:
    return len(arguments.split(", ")) if arguments else 0


def _on_cuda_or(name: str, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that calls this function of the module for CUDA."""

    def kernel(*arguments: Any) -> Any:
        found = getattr(on_cuda(), name)(*arguments)
        return otherwise(*arguments) if found is NotImplemented else found

    return kernel


@undocumented.constant
def say_without_kernels(device: torch.device, reason: str) -> None:
    """Say once for each device that a call has no kernels there."""
    if device.type != "meta" and _notices.kernel_mode() != "off":
        _notices.warn_once(str(device), reason)


def save(
    ctx: Any, tensors: Sequence[Any], states: Sequence[Any], kept: _core.Kept | None, options: Sequence[Any]
) -> None:
    """Save arguments, other tensors and what the core has kept for the backward pass."""
    ctx.options = options
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *states, handle_of(kept))
