"""The product of reflections as an object of torch's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import householder
from householder._base import spec, validate
from householder._base.docstrings import completed_by
from householder._base.linear_map import LinearMap
from householder.torch._base import checks
from householder.torch.functions.apply import apply, matrix

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from householder._base.types import ArrayLike


@completed_by(householder.Reflections, "Tensor")
class Reflections(LinearMap):
    r"""The matrix :math:`W = H_n(u_n) \cdots H_{n-m+1}(u_{n-m+1})`, which acts without being formed.

    ``W @ x``, ``x @ W``, ``W.T``, ``W.H`` and ``W.shape`` are those of the matrix, which is not stored. Functions take
    W in the place of ``u``: ``ht.apply(W, h)``, ``ht.rnn(W.T, x)``. Gradients flow to the tensors. The arguments of
    ``torch.func`` are tensors: make the object within the function that is transformed. ``torch.compile`` breaks its
    graph at ``@``, but not in ``W.matmat(x)`` and ``ht.apply(W, h)``.

    Attributes
    ----------
    shape : tuple of int
        ``(..., n, n)``.
    dtype : torch.dtype
    device : torch.device
    ndim : int
    T, H : Reflections
        The transpose, and the adjoint ``W*``. They differ if W is complex.
    u, tau, phases, columns
        The arguments.
    is_adjoint : bool
        Whether this is the adjoint of the product that the arguments describe.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> W, x = ht.Reflections(torch.randn(6, 3)), torch.randn(6)
    >>> W
    Reflections(shape=(6, 6), m=3, columns='trapezoidal', dtype=torch.float32)
    >>> torch.allclose(W @ x, W.matrix() @ x, atol=1e-5), torch.allclose(W.T @ (W @ x), x, atol=1e-5)
    (True, True)
    """

    _apply, _matrix = staticmethod(apply), staticmethod(matrix)

    def __init__(
        self, u: Tensor, tau: Tensor | None = None, phases: Tensor | None = None, columns: str = "trapezoidal"
    ):
        validate.one_of("columns", columns, spec.FORMS)
        checks.operands(u, tau=tau)
        checks.columns(u, columns, tau, phases)
        self.u, self.tau, self.phases, self.columns, self.is_adjoint = u, tau, phases, columns, False

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        device: torch.device = self.u.device
        return device

    @staticmethod
    def _array(x: ArrayLike) -> Tensor:
        checks.tensor("x", x)
        tensor: Tensor = x
        return tensor

    @staticmethod
    def _conjugate(a: Tensor) -> Tensor:
        return a.conj().resolve_conj()  # kernels read no lazily conjugated tensors
