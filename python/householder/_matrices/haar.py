"""Random matrices of the orthogonal and unitary groups."""

from types import ModuleType
from typing import overload

import numpy as np
from numpy.typing import DTypeLike

from householder._base import spec, validate
from householder._base.cpu import dtype_of
from householder._base.types import AnyArray, Argument, Array, ComplexType, RealType

Size = int | tuple[int, ...]


@overload
def haar(n: int, m: int, rng: Argument = None, dtype: DTypeLike = ..., *, size: Size = ()) -> Array: ...
@overload
def haar(n: int, m: None = None, rng: Argument = None, dtype: RealType = ..., *, size: Size = ()) -> Array: ...
@overload
def haar(
    n: int, m: None = None, rng: Argument = None, *, dtype: ComplexType, size: Size = ()
) -> tuple[Array, Array]: ...
@overload
def haar(
    n: int, m: int | None = None, rng: Argument = None, dtype: DTypeLike = ..., *, size: Size = ()
) -> Array | tuple[Array, Array]: ...
def haar(
    n: int, m: int | None = None, rng: Argument = None, dtype: DTypeLike = np.float64, *, size: Size = ()
) -> Array | tuple[Array, Array]:
    """Draw the reflections of random matrices, uniform (Haar measure) on O(n) or U(n).

    Column j is ``u = x - |x| e_1`` for a Gaussian vector x of length ``n - j + 1``. Its reflection takes ``e_1`` to
    ``x / |x|``, which is uniform on the sphere. ``u_1`` is 1 or -1 at random; complex matrices have random phases
    instead. (Gaussian columns themselves would not be uniform.) If m is given, only the first m columns are drawn.

    Parameters
    ----------
    n : int
    m : int, optional
        Number of reflections; by default all: n, or ``n - 1`` and the phases if complex.
    rng : None, int or numpy.random.Generator
        Source or seed.
    dtype : float32, float64, complex64 or complex128
    size : int or tuple of int
        Shape of the array of matrices, drawn one after the other.

    Returns
    -------
    u : array, shape (..., n, m)
        Unit columns; the last is the number 1 or -1 if ``m == n``.
    phases : array, shape (..., n)
        Only for complex dtypes and m not given; uniform in [-pi, pi).

    Raises
    ------
    TypeError
        Another dtype, or sizes or a seed that are not integers.
    ValueError
        m is not between 1 and n (complex: ``n - 1``), or the seed or a size is negative.

    Examples
    --------
    >>> import numpy as np, householder as hh
    >>> w = hh.matrix(hh.haar(5, rng=0))
    >>> np.allclose(w.T @ w, np.eye(5))
    True
    >>> u, phases = hh.haar(5, rng=0, dtype=np.complex128)
    >>> u.shape, phases.shape
    ((5, 4), (5,))
    """
    dtype = dtype_of(dtype)
    unitary = dtype.kind == "c"
    n, k, shape = sizes(n, m, size, unitary)
    if not isinstance(rng, np.random.Generator):
        rng = np.random.default_rng(None if rng is None else validate.seed(rng, "numpy.random.Generator"))
    u = np.empty((*shape, n, k), dtype)
    with_phases = unitary and m is None
    phases = np.empty((*shape, n), u.real.dtype)
    for i in np.ndindex(shape):
        u[i] = _draw(n, k, rng, unitary)
        if with_phases:
            phases[i] = rng.uniform(-np.pi, np.pi, n)
    return (u, phases) if with_phases else u


def sizes(n: Argument, m: Argument, size: Argument, unitary: bool) -> tuple[int, int, tuple[int, ...]]:
    """Return the length of a column, the number of columns, and the shape of the array of matrices."""
    n = validate.integer("n", n, 1 + unitary, spec.MOST)
    k = n - unitary if m is None else validate.integer("m", m, 1, n - unitary)
    return n, k, tuple(validate.integer("size", each, 0) for each in (size if isinstance(size, tuple) else (size,)))


def _draw(n: int, k: int, rng: "np.random.Generator", unitary: bool) -> Array:
    u = np.zeros((n, k), np.complex128 if unitary else np.float64)
    reflections = min(k, n - 1)
    # Row by row, so that one matrix haar(n, m) has the first m columns of haar(n) for equal seeds.
    x = rng.standard_normal((reflections, n, 1 + unitary)).view(u.dtype)[..., 0].T
    u[:, :reflections] = reflect_to_first(np, x)
    if k == n:
        u[-1, -1] = rng.choice((-1.0, 1.0))
    return u


def reflect_to_first(xp: ModuleType, x: AnyArray) -> AnyArray:
    """Reflect each column x of trapezoids ``(..., n, k)`` onto the axis of its first entry: unit columns u.

    Entries above the diagonal are ignored.
    Real: ``u = x - |x| e_1``, with the first entry as ``-|x_2..|^2 / (x_1 + |x|)`` where the difference would cancel.
    Complex: ``u = x + exp(i arg x_1) |x| e_1``. ``xp`` is NumPy or ``jax.numpy``.
    """
    first, below = xp.diagonal(x, axis1=-2, axis2=-1), xp.tril(x, -1)
    tail = xp.linalg.norm(below, axis=-2)
    norm = xp.hypot(xp.abs(first), tail)
    if xp.iscomplexobj(x):
        head = first * (1 + norm / xp.abs(first))
    else:
        head = xp.where(first > 0, -(tail**2) / (xp.abs(first) + norm), first - norm)
    unit = xp.expand_dims(xp.eye(*x.shape[-2:], dtype=x.dtype), tuple(range(x.ndim - 2)))
    u = below + unit * head[..., None, :]
    return u / xp.hypot(xp.abs(head), tail)[..., None, :]
