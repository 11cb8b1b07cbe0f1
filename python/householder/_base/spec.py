"""Tables of dtypes, nonlinearities, forms of columns and methods, listed only here; rules of shapes.

Checks, kernels, settings and pages of the documentation read these tables.
``tests/structure/test_spec.py`` compares the core and the pages with them.
"""

from typing import NamedTuple


class Dtype(NamedTuple):
    """A type of numbers. NumPy, torch, JAX and the core call it by the same name."""

    name: str
    real: str
    """Type of real and imaginary parts, and of norms and phases."""
    double: str
    """Type of the same numbers in double precision."""
    compute: str
    """Type in which numbers are computed: another one for half types, which only hold them."""


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype("float32", real="float32", double="float64", compute="float32"),
        Dtype("float64", real="float64", double="float64", compute="float64"),
        Dtype("complex64", real="float32", double="complex128", compute="complex64"),
        Dtype("complex128", real="float64", double="complex128", compute="complex128"),
        Dtype("bfloat16", real="bfloat16", double="float64", compute="float32"),
        Dtype("float16", real="float16", double="float64", compute="float32"),
    )
}
CORE = tuple(name for name, dtype in DTYPES.items() if dtype.compute == name)
"""Types that the core computes in."""
REAL = tuple(name for name in CORE if DTYPES[name].real == name)
COMPLEX = tuple(name for name in CORE if DTYPES[name].real != name)
HALF = tuple(name for name, dtype in DTYPES.items() if dtype.compute != name)


class Nonlinearity(NamedTuple):
    """The function ``phi`` of a recurrence."""

    name: str
    is_paired: bool = False
    """Whether it acts on pairs ``(i, i + n/2)`` of real states, which need an even n, and on complex numbers whole."""
    is_real: bool = False
    """Whether it refuses complex states."""
    has_bias: bool = False
    """Whether ``nonlinearity_bias`` is its parameter, one real number for each modulus."""
    has_slope: bool = False
    """Whether ``negative_slope`` is its parameter."""
    has_flags: bool = False
    """Whether the derivative needs a flag for each pair, because ``phi(a)`` does not determine it."""

    def acts_on(self, n: int, is_complex: bool) -> bool:
        """Return whether it acts on states of ``n`` numbers."""
        return not self.is_real if is_complex else not (self.is_paired and n % 2)

    def moduli(self, n: int, is_complex: bool) -> int:
        """Return how many numbers or pairs of ``n`` numbers it acts on."""
        return n // 2 if self.is_paired and not is_complex else n


NONLINEARITIES = {
    phi.name: phi
    for phi in (
        Nonlinearity("identity"),
        Nonlinearity("tanh"),
        Nonlinearity("relu"),
        Nonlinearity("leaky_relu", has_slope=True),
        Nonlinearity("oplu", is_paired=True, is_real=True, has_flags=True),
        Nonlinearity("modrelu", is_paired=True, has_bias=True),
        Nonlinearity("real_modrelu", is_real=True, has_bias=True),
    )
}
OF_COMPLEX = tuple(name for name, phi in NONLINEARITIES.items() if not phi.is_real)
"""Nonlinearities for complex states; every one is for real states."""

FORMS = ("trapezoidal", "full")
"""Forms of columns; the first is that of layers."""
METHODS = ("auto", "reflections", "wy", "dense")
SEQUENCE_METHODS = tuple(method for method in METHODS if method != "reflections")
MOST = 2**31
"""The largest size of an axis: products of sizes then fit into an address."""

Shape = tuple[int, ...]


def reflection_count(n: int, m: int, *, ends_in_sign: bool = True) -> int:
    """Return k, the number of reflections of ``u (n, m)``: the last column of a square real u is a sign."""
    return m - 1 if m == n and ends_in_sign else m  # a compiler's symbolic size takes no bool


def of_tau(u: Shape) -> Shape:
    """Return the shape of ``tau`` for ``u (..., n, m)``: a number for each column."""
    return (*u[:-2], u[-1])


def of_phases(batch_shape: Shape, n: int, axes: int) -> Shape:
    """Return the shape of phases with ``axes`` axes: shared by all matrices, or a row for each."""
    return (n,) if axes < 2 else (*batch_shape, n)


def of_delta_rule(q: Shape, v: Shape, reflections: int) -> dict[str, tuple[Shape, ...]]:
    """Return the possible shapes of the delta rule's other operands for ``q (B, T, H, K)`` and ``v (.., HV, V)``."""
    batch, tokens, heads, keys = q
    steps, value_heads, values = tokens * reflections, v[-2], v[-1]
    gates = batch, tokens, value_heads
    return {
        "k": ((batch, steps, heads, keys),),
        "v": ((batch, steps, value_heads, values),),
        "beta": ((batch, steps, value_heads),),
        "g": (gates, (*gates, keys)),
    }
