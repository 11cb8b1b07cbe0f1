"""Checks of arrays and their types; each message names the argument, its value and what is expected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax import Array

from householder._base import linear_map, validate
from householder._base.spec import CORE, DTYPES, HALF, REAL, of_tau

if TYPE_CHECKING:
    from householder._base.types import AnyArray, Argument, ArrayLike, NumpyDtype

REAL_TYPES = tuple(np.dtype(name) for name in REAL)
TYPES = tuple(np.dtype(name) for name in CORE)
_HALF_TYPES = {np.dtype(getattr(jnp, name)): np.dtype(DTYPES[name].compute) for name in HALF}


def array(name: str, value: Argument) -> Array:
    """Expect a JAX array, or something that converts to one."""
    if isinstance(value, Array):
        return value
    if not hasattr(value, "__array__"):
        shown = repr(value) if isinstance(value, (bool, int, float, str)) else validate.kind_of(value)
        raise TypeError(f"{name} is {shown}, expected a JAX or NumPy array")
    validate.no_mask(name, value)
    linear_map.refuse(name, value)
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        reason, kind = str(error).partition("\n")[0], getattr(value, "dtype", type(value).__name__)
        raise TypeError(f"{name} of {kind} does not make a JAX array: {reason}") from error


def first(name: str, value: Argument, types: tuple[NumpyDtype, ...] = TYPES) -> tuple[Array, NumpyDtype]:
    """Return the first operand and the dtype to compute in: its own if it is in ``types``, float32 for half types."""
    a = array(name, value)
    if a.dtype in types:
        return a, a.dtype
    if a.dtype in _HALF_TYPES:
        return a, _HALF_TYPES[a.dtype]
    raise TypeError(f"{name} has dtype {a.dtype}, expected one of {', '.join(map(str, (*types, *_HALF_TYPES)))}")


def like(name: str, value: Argument, compute: NumpyDtype, other: str) -> Array:
    """Expect an array of the compute dtype, or of a half type if the compute dtype is float32."""
    a = array(name, value)
    if compute not in (a.dtype, _HALF_TYPES.get(a.dtype, a.dtype)):
        halves = [f" or {half}" for half, wider in _HALF_TYPES.items() if wider == compute]
        raise TypeError(f"{name} has dtype {a.dtype}, expected {compute}{''.join(halves)} to match {other}")
    return a


def cast(a: Array, dtype: NumpyDtype) -> Array:
    """Convert if the dtype differs."""
    return a if a.dtype == dtype else a.astype(dtype)


def optional(name: str, value: Argument, compute: NumpyDtype, shape: tuple[int, ...], other: str = "u") -> Array | None:
    """Expect None or an array of this shape, and convert it."""
    if value is None:
        return None
    a: AnyArray = like(name, value, compute, other)
    validate.shape(name, a, shape)
    return cast(a, compute)


def tau(value: Argument, compute: NumpyDtype, u: Array, phases: ArrayLike) -> Array | None:
    """Expect None, or ``tau (..., m)`` for ``u (..., n, m)`` and no phases."""
    validate.not_both(phases, value)
    return optional("tau", value, compute, of_tau(u.shape))


def columns(
    u: Array, compute: NumpyDtype, form: Argument, of_tau: Argument, of_phases: Argument, h: ArrayLike = None
) -> tuple[int, Array | None, Array | None]:
    """Return n, tau and phases of ``u (..., n, m)`` with columns of this form."""
    n, _ = validate.reflections(u, form, of_tau is not None, h)
    return n, tau(of_tau, compute, u, of_phases), phases(of_phases, compute, (n,), (*u.shape[:-2], n))


def phases(value: Argument, compute: NumpyDtype, *shapes: tuple[int, ...]) -> Array | None:
    """Expect None, or real angles of one of these shapes for a complex u."""
    if value is None:
        return None
    validate.takes_phases(compute)
    a = array("phases", value)
    if a.dtype != np.finfo(compute).dtype:
        raise TypeError(f"phases have dtype {a.dtype}, expected {np.finfo(compute).dtype} for a {compute} u")
    if a.shape not in shapes:
        raise ValueError(f"phases have shape {a.shape}, expected {' or '.join(map(str, shapes))}")
    return a
