"""Norms of columns that neither overflow nor underflow, and which columns stand for the identity.

A column is multiplied by a power of two, so that its squares stay in range, before its norm is taken. A column whose
norm is zero or subnormal is the identity, because its direction is lost. The kernels, the array functions and the
torch expressions share this definition.
"""

from types import ModuleType

from householder._base.types import AnyArray, AnyDtype


def power_of_two(xp: ModuleType, size: AnyArray) -> AnyArray:
    """Return the scale factors of columns with largest entries ``size``, a real array or tensor of module ``xp``."""
    small, factor = (2.0**-60, 2.0**100) if xp.finfo(size.dtype).bits == 32 else (2.0**-500, 2.0**800)
    one = xp.ones_like(size)
    return xp.where(size < small, one * factor, xp.where(size > 1 / small, one / factor, one))


def vanishes(xp: ModuleType, norm: AnyArray, power: AnyArray, dtype: AnyDtype = None) -> AnyArray:
    """Return which columns are the identity, from the norms of the scaled columns, which are of ``dtype``."""
    return norm < power * float(xp.finfo(norm.dtype if dtype is None else dtype).smallest_normal)
