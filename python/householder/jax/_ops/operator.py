r"""Functions with native kernels as JAX primitives, differentiable in both modes any number of times.

An operator :math:`y = f(x)` has three primitives: ``f`` itself; the tangent :math:`\dot y = f'(x) \dot x`; and the
gradient :math:`\bar x = f'(x)^* \bar y`, which is the tangent's transpose. On CPU the first and the last are kernels.
Everything else, and all of it on other devices, is the same mathematics in ``jax.numpy``, the *expression*.

These are primitives and not ``jax.custom_vjp`` because of ``vmap`` over vectors. The gradient of the mapped function is
then one call of the kernel for all vectors, while ``custom_vjp`` would compute a gradient of the parameters for each
vector and add them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from householder._base.types import AnyArray, AnyDtype, AnyFunction, Argument, Keywords
from householder.jax._ops.primitive import Primitive, UndefinedPrimal, Zero, instantiate_zeros

if TYPE_CHECKING:
    from collections.abc import Callable

    from jax import Array


Params = Any
"""The static arguments of an operator, such as ``ApplyParams``, or None."""
LoweringContext = Any
"""What JAX hands to a function that lowers a primitive."""
Lowered = Any
"""What such a function returns."""
Operands = Sequence[AnyArray]
"""Operands, tracers of JAX, or their shapes and dtypes."""
Flags = Sequence[bool]
Batched = tuple[list[AnyArray], list[int]]
"""Results with a mapped axis, and this axis of each."""


class ShapeDtype(NamedTuple):
    """Shape and dtype of an array."""

    shape: tuple[int, ...]
    dtype: AnyDtype


class Axes(NamedTuple):
    """The axis of independent vectors in each operand and result; None for operands that all vectors share.

    The leading axis, of problems, does not count.
    """

    operands: tuple[int | None, ...]
    results: tuple[int, ...]


class Function(NamedTuple):
    """A function that becomes an operator: it takes options, and operands with a leading axis of problems."""

    name: str
    axes: Axes
    results: Callable[..., list[ShapeDtype]]
    """Shapes of the results."""
    expression: Callable[..., tuple[Array, ...]]
    """The results in ``jax.numpy``."""
    attributes: Callable[..., Keywords] = lambda *_: {}
    """The options as the kernels read them."""
    saved: Callable[..., list[ShapeDtype]] = lambda *_: []
    """Shapes of the arrays that the kernel saves for the gradient's kernel."""
    saves_first: bool = False
    """Whether the kernel of the gradient reads the first result."""
    residuals: int = 0
    """The number of arrays that the gradient's kernel can read: the first result, and the saved ones."""


class _Call(NamedTuple):
    """The static properties of a call, known when it is traced."""

    options: Params
    is_present: tuple[bool, ...]
    """Which operands are not None."""

    def spread(self, present: Operands) -> list[AnyArray]:
        """Return all operands, None for those that are absent."""
        return _spread(self.is_present, present)


def _spread(mask: Sequence[bool], present: Operands) -> list[AnyArray]:
    arrays = iter(present)
    return [next(arrays) if is_present else None for is_present in mask]


class JaxOperator:
    """A function of arrays, some of which may be None.

    If it is linear in its last operand, ``adjoint`` returns the options with which it is its own adjoint.
    """

    def __init__(self, function: Function, adjoint: Callable[[Params], Params] | None = None):
        self.function, self._adjoint = function, adjoint
        name = f"householder_{function.name}"
        self._value, self._tangent, self._gradient = (
            Primitive(name + suffix) for suffix in ("", "_tangent", "_backward")
        )
        self._value.register(
            self._value_shapes, self._value_expression, self._value_kernel,
            jvp=self._value_jvp, batch=self._value_batch, transpose=self._value_transpose if adjoint else None,
        )  # fmt: skip
        self._tangent.register(
            self._tangent_shapes, self._tangent_expression,
            jvp=partial(_jvp_of, self._tangent_expression), batch=self._tangent_batch, transpose=self._transpose,
        )  # fmt: skip
        self._gradient.register(
            self._gradient_shapes, self._gradient_expression, self._gradient_kernel,
            jvp=partial(_jvp_of, self._gradient_expression), batch=self._gradient_batch,
        )  # fmt: skip

    def __call__(self, options: Params, *operands: Array | None) -> tuple[Array, ...]:
        """Compute the results; operands have a leading axis of problems."""
        call = _Call(options, tuple(a is not None for a in operands))
        return tuple(self._value.bind(*compress(operands, call.is_present), call=call, save=False))

    # The function itself. With ``save`` it also returns what the gradient's kernel can use.

    def _value_shapes(self, *operands: AnyArray, call: _Call, save: bool) -> list[AnyArray]:
        spread = call.spread(operands)
        shapes = self.function.results(call.options, *spread)
        return [*shapes, *self.function.saved(call.options, *spread)] if save else shapes

    def _value_expression(self, *operands: Array, call: _Call, save: bool) -> list[Array]:
        spread = call.spread(operands)
        results = [*self.function.expression(call.options, *spread)]
        saved = self.function.saved(call.options, *spread) if save else []
        return [*results, *(jnp.zeros(shape.shape, shape.dtype) for shape in saved)]

    def _value_kernel(self, ctx: LoweringContext, *operands: AnyArray, call: _Call, save: bool) -> Lowered:  # noqa: ARG002
        outputs = [True] * len(ctx.avals_out)
        return self._kernel("", call, call.is_present, outputs, ctx, operands)

    def _value_jvp(
        self, operands: Operands, tangents: Operands, *, call: _Call, save: bool
    ) -> tuple[list[AnyArray], list[AnyArray]]:
        returned = self._value.bind(*operands, call=call, save=True)
        count = len(self.function.axes.results)
        residuals = [*returned[: int(self.function.saves_first)], *returned[count:]]
        moving = tuple(not isinstance(t, Zero) for t in tangents)
        moved = self._tangent.bind(*operands, *residuals, *compress(tangents, moving), call=call, moving=moving)
        results = returned if save else returned[:count]
        return results, [*moved, *(Zero(jax.typeof(saved)) for saved in results[count:])]

    def _value_transpose(self, cotangents: Operands, *operands: AnyArray, call: _Call, save: bool) -> list[AnyArray]:  # noqa: ARG002
        *fixed, _ = operands
        if any(isinstance(a, UndefinedPrimal) for a in fixed):
            raise NotImplementedError(f"{self._value.name} is linear in its last operand alone")
        (g,) = cotangents
        if isinstance(g, Zero):
            return [None] * len(operands)
        assert self._adjoint is not None
        adjoint = call._replace(options=self._adjoint(call.options))
        (adjoint_of_g,) = self._value.bind(*fixed, jnp.conj(g), call=adjoint, save=False)
        return [*[None] * len(fixed), jnp.conj(adjoint_of_g)]  # JAX transposes without conjugation

    def _value_batch(self, arrays: Operands, dims: Sequence[int | None], *, call: _Call, save: bool) -> Batched:
        # Each problem keeps its own residuals.
        axes = [*compress(self.function.axes.operands, call.is_present)]
        results = None if save else self.function.axes.results
        return _batched(partial(self._value.bind, call=call, save=save), arrays, dims, axes, results)

    # The tangent: operands, residuals, and tangents of the operands that move.

    def _split(self, arrays: Operands, call: _Call, last: int) -> tuple[Operands, Operands, Operands]:
        """Split arrays into operands, residuals and the rest."""
        count = sum(call.is_present)
        return arrays[:count], arrays[count : len(arrays) - last], arrays[len(arrays) - last :]

    def _tangent_shapes(self, *arrays: AnyArray, call: _Call, moving: Flags) -> list[AnyArray]:
        operands, _, _ = self._split(arrays, call, sum(moving))
        return self.function.results(call.options, *call.spread(operands))

    def _tangent_expression(self, *arrays: Array, call: _Call, moving: Flags) -> list[Array]:
        operands, _, tangents = self._split(arrays, call, sum(moving))
        _, moved = jax.jvp(self._of_some(operands, call, moving), tuple(compress(operands, moving)), tuple(tangents))
        return [*moved]

    def _of_some(
        self, operands: Sequence[Array], call: _Call, some: Sequence[bool]
    ) -> Callable[..., tuple[Array, ...]]:
        """Return the expression as a function of some of the operands."""

        def function(*chosen: Array) -> tuple[Array, ...]:
            replaced = _spread(some, chosen)
            mixed = [a if new is None else new for a, new in zip(operands, replaced, strict=True)]
            return self.function.expression(call.options, *call.spread(mixed))

        return function

    def _transpose(self, cotangents: Operands, *arrays: AnyArray, call: _Call, moving: Flags) -> list[AnyArray]:
        operands, residuals, tangents = self._split(arrays, call, sum(moving))
        linear = iter([isinstance(t, UndefinedPrimal) for t in tangents])
        needs_grad = tuple(moves and next(linear) for moves in moving)
        shown = tuple(not isinstance(g, Zero) for g in cotangents)
        grads = [jnp.conj(g) for g in compress(cotangents, shown)]
        conjugated = self._gradient.bind(*operands, *residuals, *grads, call=call, shown=shown, needs_grad=needs_grad)
        # JAX's cotangents are dL/dRe - i dL/dIm; the kernels' gradients are dL/dRe + i dL/dIm.
        gradients = _spread([*compress(needs_grad, moving)], [jnp.conj(g) for g in conjugated])
        return [None] * (len(operands) + len(residuals)) + gradients

    def _tangent_batch(self, arrays: Operands, dims: Sequence[int | None], *, call: _Call, moving: Flags) -> Batched:
        axes, results = self._axes(arrays, call, sum(moving))
        axes = [*axes, *compress(compress(self.function.axes.operands, call.is_present), moving)]
        return _batched(partial(self._tangent.bind, call=call, moving=moving), arrays, dims, axes, results)

    def _axes(self, arrays: Operands, call: _Call, last: int) -> tuple[list[int | None], Sequence[int] | None]:
        """Return the axes of operands and residuals, and of results: None where each problem keeps its own."""
        _, residuals, _ = self._split(arrays, call, last)
        operands, results = compress(self.function.axes.operands, call.is_present), self.function.axes.results
        first = results[: int(self.function.saves_first)]
        saved = len(residuals) - len(first)
        return [*operands, *first, *[None] * saved], None if saved else results

    # The gradient: operands, residuals, and gradients of the results that are shown.

    def _gradient_shapes(self, *arrays: AnyArray, call: _Call, shown: Flags, needs_grad: Flags) -> list[AnyArray]:
        operands, _, _ = self._split(arrays, call, sum(shown))
        return [ShapeDtype(a.shape, a.dtype) for a in compress(operands, needs_grad)]

    def _gradient_expression(self, *arrays: Array, call: _Call, shown: Flags, needs_grad: Flags) -> list[Array]:
        operands, _, grads = self._split(arrays, call, sum(shown))
        function = self._of_some(operands, call, needs_grad)
        _, pull = jax.vjp(lambda *some: tuple(compress(function(*some), shown)), *compress(operands, needs_grad))
        return [jnp.conj(g) for g in pull(tuple(jnp.conj(g) for g in grads))]

    def _gradient_kernel(
        self, ctx: LoweringContext, *arrays: AnyArray, call: _Call, shown: Flags, needs_grad: Flags
    ) -> Lowered:
        count = len(arrays) - sum(call.is_present) - sum(shown)
        residuals = [i < count for i in range(self.function.residuals)]
        slots = [*call.is_present, *residuals, *shown]
        return self._kernel("_backward", call, slots, call.spread(needs_grad), ctx, arrays)

    def _gradient_batch(
        self, arrays: Operands, dims: Sequence[int | None], *, call: _Call, shown: Flags, needs_grad: Flags
    ) -> Batched:
        axes, results = self._axes(arrays, call, sum(shown))
        axes = [*axes, *compress(self.function.axes.results, shown)]
        of_gradients = compress(compress(self.function.axes.operands, call.is_present), needs_grad)
        bind = partial(self._gradient.bind, call=call, shown=shown, needs_grad=needs_grad)
        return _batched(bind, arrays, dims, axes, None if results is None else [*of_gradients])

    def _kernel(
        self, suffix: str, call: _Call, inputs: Operands, outputs: Operands, ctx: LoweringContext, arrays: Operands
    ) -> Lowered:
        """Lower to the kernel; two numbers tell it which inputs are present and which outputs it fills."""
        operands = call.spread(ctx.avals_in[: sum(call.is_present)])
        attributes = self.function.attributes(call.options, *operands)
        attributes |= {"inputs": _mask(inputs), "outputs": _mask(outputs)}
        return jax.ffi.ffi_lowering(f"householder_{self.function.name}{suffix}")(ctx, *arrays, **attributes)


def _mask(slots: Operands) -> np.int64:
    return np.int64(sum(1 << slot for slot, present in enumerate(slots) if present))


def _jvp_of(
    expression: Callable[..., list[Array]], arrays: Operands, tangents: Operands, **params: Argument
) -> tuple[list[Array], list[Array]]:
    """Differentiate the expression. It ignores the residuals, because they follow from the operands."""
    return jax.jvp(partial(expression, **params), tuple(arrays), tuple(map(instantiate_zeros, tangents)))


def _batched(
    bind: AnyFunction,
    arrays: Operands,
    dims: Sequence[int | None],
    axes: Sequence[int | None],
    results: Sequence[int | None] | None,
) -> Batched:
    """Run many calls as one: as more vectors if the calls share all shared operands, otherwise as more problems."""
    size = next(a.shape[dim] for a, dim in zip(arrays, dims, strict=True) if dim is not None)
    if size == 0:  # one call of zeros tells the shapes
        one = [
            a if dim is None else jnp.zeros_like(a, shape=(*a.shape[:dim], 1, *a.shape[dim + 1 :]))
            for a, dim in zip(arrays, dims, strict=True)
        ]
        returned, places = _batched(bind, one, dims, axes, results)
        return [jnp.take(a, jnp.arange(0), place) for a, place in zip(returned, places, strict=True)], places
    shared = all(dim is None for dim, axis in zip(dims, axes, strict=True) if axis is None)
    if results is None or None in results or not shared:
        returned = bind(*(_fold(a, dim, 0, size) for a, dim in zip(arrays, dims, strict=True)))
        places = [0] * len(returned)
    else:
        folded = zip(arrays, dims, axes, strict=True)
        returned = bind(*(a if axis is None else _fold(a, dim, axis, size) for a, dim, axis in folded))
        places = [axis for axis in results if axis is not None]
    return [_unfold(a, axis, size) for a, axis in zip(returned, places, strict=True)], places


def _fold(a: AnyArray, dim: int | None, axis: int, size: int) -> AnyArray:
    """Merge the mapped axis with this one."""
    a = jnp.broadcast_to(a, (size, *a.shape)) if dim is None else jnp.moveaxis(a, dim, 0)
    a = jnp.moveaxis(a, 0, axis)
    return a.reshape(*a.shape[:axis], size * a.shape[axis + 1], *a.shape[axis + 2 :])


def _unfold(a: AnyArray, axis: int, size: int) -> AnyArray:
    return a.reshape(*a.shape[:axis], size, a.shape[axis] // size, *a.shape[axis + 1 :])
