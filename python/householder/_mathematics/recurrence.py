"""A recurrence, step by step."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from householder._mathematics.nonlinearities import activate
from householder._mathematics.reflections import matrix, turn

if TYPE_CHECKING:
    from householder._base.types import AnyArray
    from householder._mathematics.library import Library


def rnn(
    lib: Library,
    u: AnyArray,
    x: AnyArray,
    h0: AnyArray | None,
    input_weight: AnyArray | None,
    bias: AnyArray | None,
    phases: AnyArray | None,
    nonlinearity_bias: AnyArray | None,
    tau: AnyArray | None,
    batch_sizes: AnyArray | None,
    nonlinearity: str,
    negative_slope: float,
    transpose: bool,
    reverse: bool,
    form: str,
) -> tuple[AnyArray, AnyArray]:
    """Run the recurrence step by step with ``W`` formed once: all states and each sequence's last one.

    ``x`` is ``(*c, T, B, d)`` or, with ``batch_sizes``, ``(*c, rows, d)``. Every other array has the same leading axes.
    """
    w, xp, kind, batch_axes = matrix(lib, u, tau, form), lib.xp, x.dtype, u.ndim - 2
    w = w if phases is None else turn(lib, w, phases[..., None, :])
    w = lib.adjoint(w) if transpose else w
    x = lib.cast(x, w.dtype)
    if input_weight is not None:
        rows = xp.reshape(x, (*x.shape[:batch_axes], prod(x.shape[batch_axes:-1]), x.shape[-1]))
        x = xp.reshape(rows @ xp.matrix_transpose(input_weight), (*x.shape[:-1], w.shape[-1]))
    if bias is not None:
        x = x + (bias[..., None, None, :] if batch_sizes is None else bias[..., None, :])
    state = lib.zeros((*x.shape[:-3], *x.shape[-2:]), x) if h0 is None else lib.cast(h0, w.dtype)
    by, phi_bias = xp.matrix_transpose(w), None if nonlinearity_bias is None else nonlinearity_bias[..., None, :]

    def step(state: AnyArray, a: AnyArray) -> tuple[AnyArray, AnyArray]:
        state = activate(lib, state @ by + a, nonlinearity, negative_slope, phi_bias)
        return state, state

    if batch_sizes is not None:
        state, h = lib.scan_packed(step, state, x, batch_sizes)
    elif x.shape[-3]:
        state, h = lib.scan(step, state, (x,), -3, reverse)
    else:
        h = xp.zeros_like(x)
    return lib.cast(h, kind), lib.cast(state, kind)
