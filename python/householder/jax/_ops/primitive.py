"""A JAX primitive with rules of its own. Only this file takes names from JAX that its compatibility policy leaves out.

``jax.interpreters``, ``jax.extend`` and ``jax.core`` may change with any version of JAX. The test of this file names
the versions that it works with.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import jax

try:
    from jax.core import ShapedArray
    from jax.extend.core import Primitive as JaxPrimitive
    from jax.interpreters.ad import UndefinedPrimal, Zero, instantiate_zeros, primitive_jvps, primitive_transposes
    from jax.interpreters.batching import primitive_batchers
    from jax.interpreters.mlir import lower_fun, register_lowering
except ImportError as error:
    raise ImportError(
        f"householder.jax does not work with jax {jax.__version__}: install a version of jax that this version of "
        f"householder is made for, see its extra 'jax'. JAX says: {error}"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable

    from jax import Array

    from householder._base.types import AnyArray, AnyFunction, Argument

__all__ = ["Primitive", "UndefinedPrimal", "Zero", "instantiate_zeros"]


class Primitive:
    """A function of arrays with several results, as JAX traces it."""

    def __init__(self, name: str):
        self.name = name
        self._primitive: Any = JaxPrimitive(name)
        self._primitive.multiple_results = True

    def register(
        self,
        shapes: Callable[..., list[AnyArray]],
        expression: Callable[..., list[Array]],
        kernel: AnyFunction | None = None,
        *,
        jvp: AnyFunction,
        batch: AnyFunction,
        transpose: AnyFunction | None = None,
    ) -> None:
        """Register the shapes of results, the expression, the kernel for the CPU if there is one, and JAX's rules."""
        primitive = self._primitive
        primitive.def_abstract_eval(partial(self._avals, shapes))
        primitive.def_impl(self._run)
        register_lowering(primitive, lower_fun(expression, multiple_results=True))
        if kernel is not None:
            register_lowering(primitive, kernel, platform="cpu")
        primitive_jvps[primitive] = jvp
        primitive_batchers[primitive] = batch
        if transpose is not None:
            primitive_transposes[primitive] = transpose

    def bind(self, *arrays: AnyArray, **params: Argument) -> list[AnyArray]:
        """Call the function."""
        results: list[AnyArray] = self._primitive.bind(*arrays, **params)
        return results

    def _avals(self, shapes: Callable[..., list[AnyArray]], *arrays: AnyArray, **params: Argument) -> list[AnyArray]:
        if any(map(_varies, arrays)):
            raise NotImplementedError(f"{self.name}: jax.shard_map needs check_vma=False here")
        return [ShapedArray(shape.shape, shape.dtype) for shape in shapes(*arrays, **params)]

    def _run(self, *arrays: Array, **params: Argument) -> list[Array]:
        with jax.disable_jit(False):
            results: list[Array] = _compiled(self, tuple(sorted(params.items())))(*arrays)
        return results


def _varies(aval: AnyArray) -> bool:
    """Return whether ``shard_map`` tracks which values differ between devices; our shapes do not carry that."""
    return bool(aval.manual_axis_type.varying)


@lru_cache
def _compiled(primitive: Primitive, params: tuple[tuple[str, Argument], ...]) -> AnyFunction:
    return jax.jit(partial(primitive.bind, **dict(params)))
