"""The nonlinearities of recurrences; each treats ties, zeros and infinities as the kernels do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from householder._base.types import AnyArray
    from householder._mathematics.library import Library


def activate(lib: Library, a: AnyArray, nonlinearity: str, negative_slope: float, bias: AnyArray | None) -> AnyArray:
    """Apply one of the named nonlinearities; those of one real number act on real and imaginary parts."""
    xp = lib.xp
    if nonlinearity == "identity":
        return a
    if nonlinearity == "modrelu":
        return modrelu(lib, a, bias)
    if nonlinearity == "real_modrelu":
        return real_modrelu(lib, a, bias)
    if lib.is_complex(a):
        return lib.complex(
            *(activate(lib, part, nonlinearity, negative_slope, None) for part in (xp.real(a), xp.imag(a)))
        )
    if nonlinearity == "tanh":
        return xp.tanh(a)
    if nonlinearity == "oplu":
        return oplu(lib, a)
    if nonlinearity == "relu":
        return xp.where(a <= 0, 0.0, a)
    if nonlinearity == "leaky_relu":
        return lib.leaky_relu(a, negative_slope)
    raise NotImplementedError(f"nonlinearity: no expression for {nonlinearity!r}")


def _halves(lib: Library, a: AnyArray) -> tuple[AnyArray, AnyArray]:
    half = a.shape[-1] // 2
    first, second = lib.split(a, (half, half), -1)
    return first, second


def oplu(lib: Library, a: AnyArray) -> AnyArray:
    """Sort the pairs ``(a_i, a_{i+n/2})``: the greater first."""
    xp, (first, second) = lib.xp, _halves(lib, a)
    swapped = first < second  # maximum and minimum would share a tie's gradient between both
    return xp.concat([xp.where(swapped, second, first), xp.where(swapped, first, second)], axis=-1)


def modrelu(lib: Library, a: AnyArray, bias: AnyArray) -> AnyArray:
    """Add ``bias`` to the moduli of ``a``, cut off at zero; real ``a`` holds ``[Re; Im]`` of half as many numbers."""
    xp, is_complex = lib.xp, lib.is_complex(a)
    re, im = (xp.real(a), xp.imag(a)) if is_complex else _halves(lib, a)
    # The direction is that of a / size, whose squares neither overflow nor vanish.
    size = xp.maximum(xp.abs(lib.constant(re)), xp.abs(lib.constant(im)))
    zero = size == 0
    size = xp.where(zero, 1.0, size)
    x, y = xp.where(zero, 1.0, re / size), im / size
    length = xp.sqrt(xp.square(x) + xp.square(y))
    dead = zero | (size * lib.constant(length) + lib.constant(bias) <= 0)  # NaN is neither
    re, im = (xp.where(dead, 0.0, part + bias * (unit / length)) for part, unit in ((re, x), (im, y)))
    return lib.complex(re, im) if is_complex else xp.concat([re, im], axis=-1)


def real_modrelu(lib: Library, a: AnyArray, bias: AnyArray) -> AnyArray:
    """Add ``bias`` to the magnitudes of real numbers, cut off at zero."""
    xp = lib.xp
    size = xp.abs(a) + bias
    return lib.sign(a) * xp.where(size <= 0, 0.0, size)
