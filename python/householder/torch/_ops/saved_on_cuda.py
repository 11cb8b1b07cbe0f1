"""What a sequence's forward pass saves for its backward pass on a CUDA device, in one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from householder._base.spec import NONLINEARITIES, reflection_count
from householder._cuda import algebra
from householder._cuda.algebra import Form
from householder._cuda.instances import prefers_dense
from householder._cuda.library import library_of
from householder._cuda.recurrence import SavedByKernels

if TYPE_CHECKING:
    from householder.torch._ops.rnn import RnnInputs, RnnOptions


class Layout(NamedTuple):
    """The division of one tensor into the saved arrays; flags are bytes."""

    n: int
    m: int
    k: int
    rows: int
    dense: bool
    flags: int
    number: int
    """Bytes of a number of the tensor."""
    state_type: torch.dtype
    """Type of the states, and of their projections."""

    @property
    def sizes(self) -> list[int]:
        """Numbers of projections, flags, V, A, S, norms and W."""
        n, k = self.n, self.k
        projections = 0 if self.dense else self.rows * self.m * self.state_type.itemsize
        of_steps = [-(-size // self.number) for size in (projections, self.rows * self.flags)]
        return [*of_steps, n * k, n * k, k * k, k, n * n * self.dense]

    @property
    def shape(self) -> tuple[int]:
        """Shape of the tensor."""
        return (sum(self.sizes),)

    def arrays(self, saved: Tensor) -> SavedByKernels:
        """Return the arrays that the kernels write and read."""
        projections, flags = torch.split(saved, self.sizes)[:2]
        z = None if self.dense else projections.view(self.state_type)[: self.rows * self.m].view(self.rows, self.m)
        if not self.flags:
            return SavedByKernels(z)
        return SavedByKernels(z, flags.view(torch.uint8)[: self.rows * self.flags].view(self.rows, self.flags))

    def write(self, saved: Tensor, form: Form) -> None:
        """Save a form of u. A form for another kind of kernel is left out, because it will not be used."""
        if (form.w is not None) == self.dense:
            parts = (form.v, form.a, form.s, form.norm, *([form.w] if self.dense else []))
            flat = [part.to(saved.dtype).flatten() for part in parts]
            torch.cat(flat, out=saved[sum(self.sizes[:2]) :])

    def form(self, saved: Tensor, u: Tensor, phases: Tensor | None) -> Form:
        """Read the form of u back; S has u's precision, which suffices for gradients."""
        n, k, library = self.n, self.k, library_of(u)
        v, a, s, norm, w = torch.split(saved, self.sizes)[2:]
        norm = norm.real.view(1, k) if norm.is_complex() else norm.view(1, k)
        d = algebra.diagonal(library, u, phases)
        return Form(
            library, v.view(n, k), None, s.view(k, k), a.view(n, k), norm, d, w.view(n, n) if self.dense else None
        )


def layout_of(inputs: RnnInputs[Tensor], options: RnnOptions) -> Layout:
    """Divide the tensor of a sequence; the result depends on no property of the device."""
    (n, m), method = inputs.u.shape, options.method
    dense = inputs.phases is not None or (prefers_dense(n, m) if method == "auto" else method == "dense")
    flags = n // 2 if NONLINEARITIES[options.nonlinearity].has_flags else 0
    k = reflection_count(n, m, ends_in_sign=not inputs.u.is_complex())
    rows = inputs.x.shape[:-1].numel()
    return Layout(n, m, k, rows, dense, flags, inputs.u.element_size(), inputs.x.dtype)
