"""A product of reflections as an object: the base of the classes ``Reflections`` of NumPy, torch and JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from householder._base import validate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import DTypeLike

    from householder._base.types import AnyArray, AnyDtype, Argument, Array, ArrayLike


class LinearMap:
    """The matrix W of reflections, or its adjoint, which acts without being formed.

    A library's class checks the arrays in ``__init__`` and says how the library does the rest.
    """

    _apply: Callable[..., AnyArray]
    _matrix: Callable[..., AnyArray]
    _array: Callable[[ArrayLike], AnyArray]
    """Convert the other factor of a product to an array."""
    _conjugate: Callable[[AnyArray], AnyArray]
    __array_ufunc__ = None
    """NumPy leaves ``x @ W`` to this class."""

    u: AnyArray
    tau: AnyArray | None
    phases: AnyArray | None
    columns: str
    is_adjoint: bool

    @classmethod
    def _of(cls, u: AnyArray, tau: AnyArray | None, phases: AnyArray | None, columns: str, is_adjoint: bool) -> Self:
        """Return the object that holds these arrays, which were checked."""
        w = object.__new__(cls)
        w.u, w.tau, w.phases, w.columns, w.is_adjoint = u, tau, phases, columns, is_adjoint
        return w

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of W as an array, ``(..., n, n)``."""
        return (*self.u.shape[:-1], self.u.shape[-2])

    @property
    def ndim(self) -> int:
        """The number of axes of W as an array."""
        return len(self.u.shape)

    @property
    def dtype(self) -> AnyDtype:
        """The dtype of W."""
        return self.u.dtype

    def __repr__(self) -> str:
        parts = [f"shape={tuple(self.shape)}", f"m={self.u.shape[-1]}", f"columns={self.columns!r}"]
        parts += [name for name in ("tau", "phases") if getattr(self, name) is not None]
        parts += [f"dtype={self.dtype}", *(["adjoint"] if self.is_adjoint else [])]
        return f"{type(self).__name__}({', '.join(parts)})"

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Argument) -> Self:
        """Select matrices of a batch, by an index of all axes but the last two."""
        batch_shape = tuple(self.u.shape[:-2])
        np.broadcast_to(False, batch_shape)[index]  # an IndexError for what would select entries of a matrix
        of_vectors = (*(index if isinstance(index, tuple) else (index,)), slice(None))
        phases = self.phases if self.phases is None or self.phases.ndim == 1 else self.phases[of_vectors]
        tau = None if self.tau is None else self.tau[of_vectors]
        return self._of(self.u[*of_vectors, slice(None)], tau, phases, self.columns, self.is_adjoint)

    def __iter__(self) -> Iterator[Self]:
        if self.ndim == 2:
            raise TypeError("W is one matrix, which is not stored: iterate over the rows of W.matrix()")
        return (self[i] for i in range(len(self)))

    @property
    def H(self) -> Self:
        """The adjoint of W, its inverse if W is orthogonal or unitary."""
        return self._of(self.u, self.tau, self.phases, self.columns, not self.is_adjoint)

    @property
    def T(self) -> Self:
        """The transpose of W, which is the adjoint if W is real."""
        return self.conj().H

    def conj(self) -> Self:
        """Return the complex conjugate of W, W itself if it is real."""
        if not self._is_complex:
            return self
        u, tau = (None if a is None else self._conjugate(a) for a in (self.u, self.tau))
        phases = None if self.phases is None else -self.phases
        return self._of(u, tau, phases, self.columns, self.is_adjoint)

    @property
    def _is_complex(self) -> bool:
        return "complex" in str(self.dtype)

    def matrix(self) -> AnyArray:
        """Form W, an array ``(..., n, n)``."""
        return self._matrix(self)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("W is not stored as a matrix, so it does not become an array without a copy")
        return np.asarray(self.matrix(), dtype)

    def __matmul__(self, x: ArrayLike) -> AnyArray:
        return NotImplemented if isinstance(x, LinearMap) else self.matmat(x)

    def __rmatmul__(self, x: ArrayLike) -> AnyArray:
        """Multiply a vector ``(n,)`` or the rows of matrices ``(..., k, n)`` from the right."""
        x, transposed = self._factor("x @ W", x, -1), self.T
        return self._apply(transposed, x) if x.ndim == 1 else transposed.apply_to_rows(x)

    def matmat(self, x: ArrayLike) -> AnyArray:
        """Multiply a vector ``(n,)`` or the columns of matrices ``(..., n, k)``, as ``W @ x`` does."""
        x = self._factor("W @ x", x, -2)
        return self._apply(self, x) if x.ndim == 1 else self.apply_to_rows(x.swapaxes(-1, -2)).swapaxes(-1, -2)

    def matvec(self, x: ArrayLike) -> AnyArray:
        """Return ``W @ x`` for ``x (n,)`` or ``(n, 1)``, as SciPy's solvers call it."""
        return self.matmat(x)

    def rmatvec(self, x: ArrayLike) -> AnyArray:
        """Return ``W.H @ x`` for ``x (n,)`` or ``(n, 1)``."""
        return self.H.matmat(x)

    def rmatmat(self, x: ArrayLike) -> AnyArray:
        """Return ``W.H @ x`` for ``x (n, k)``."""
        return self.H.matmat(x)

    def _factor(self, product: str, x: ArrayLike, axis: int) -> AnyArray:
        """Return the other factor of a product as an array, with n entries along the axis that is summed over."""
        x = self._array(x)
        n = self.shape[-1]
        if not x.ndim or x.shape[max(axis, -x.ndim)] != n:
            matrices = f"(..., {n}, k)" if axis == -2 else f"(..., k, {n})"
            raise ValueError(
                f"{product}: x has shape {tuple(x.shape)}, expected ({n},) or {matrices} for W {tuple(self.shape)}"
            )
        return x

    def apply_to_rows(self, rows: AnyArray) -> AnyArray:
        """Multiply all rows of each matrix ``(..., k, n)`` by one W."""
        if self.ndim == 2:
            return self._apply(self, rows)
        tau = None if self.tau is None else self.tau[..., None, :]
        phases = self.phases if self.phases is None or self.phases.ndim == 1 else self.phases[..., None, :]
        return self._apply(self._of(self.u[..., None, :, :], tau, phases, self.columns, self.is_adjoint), rows)


class Columns(NamedTuple):
    """The product of reflections as the arrays that functions compute with. Layers pass it to functions as it is."""

    u: ArrayLike
    tau: ArrayLike = None
    phases: ArrayLike = None
    form: Argument = "trapezoidal"
    is_adjoint: bool = False


DEFAULT = Columns(None)[1:]
"""The other fields of ``Columns`` for a bare array ``u``: trapezoidal columns, without tau and phases."""


def columns_of(w: ArrayLike) -> Columns:
    """Return the columns of an object W, or those of a bare array ``u``."""
    if isinstance(w, LinearMap):
        return Columns(w.u, w.tau, w.phases, w.columns, w.is_adjoint)
    return w if isinstance(w, Columns) else Columns(w)


def default_columns(function: str, w: ArrayLike) -> tuple[ArrayLike, ArrayLike, bool]:
    """Return u, the phases and whether the adjoint is meant, for a function of trapezoidal columns without tau."""
    u, tau, phases, form, is_adjoint = columns_of(w)
    if not validate.is_default(tau, form):
        raise ValueError(f"{function} takes trapezoidal columns without tau, but u is W of others: apply takes these")
    return u, phases, is_adjoint


def frame_columns(w: ArrayLike) -> tuple[ArrayLike, ArrayLike]:
    """Return u and the phases for ``frame``, which takes W itself."""
    u, phases, is_adjoint = default_columns("frame", w)
    if is_adjoint:
        raise ValueError("frame takes W itself, but u is its adjoint: W.matrix() forms that")
    return u, phases


def refuse(name: str, value: Argument) -> None:
    """Expect an array, not an object that an array library would convert to a matrix."""
    if isinstance(value, LinearMap):
        raise TypeError(f"{name} is {validate.kind_of(value)}, expected an array: W.u are its columns, W.matrix() W")
