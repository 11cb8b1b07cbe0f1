"""The arguments of the operator ``rnn`` and of its gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from householder import _validate
from householder.torch._layout import contiguous


class Inputs(NamedTuple):
    """The tensors that every signature begins with, in this order."""

    u: Tensor
    x: Tensor
    h0: Tensor | None
    input_weight: Tensor | None
    bias: Tensor | None
    phases: Tensor | None
    nonlinearity_bias: Tensor | None
    tau: Tensor | None
    batch_sizes: Tensor | None

    def sizes(self) -> tuple[int, int, int, int, int]:
        """Give n, m, the width of x, the number of steps and the (largest) batch."""
        n, m = self.u.shape[-2:]
        if self.batch_sizes is None:
            steps, batch, d = self.x.shape[-3:]
            return n, m, d, steps, batch
        assert self.h0 is not None
        return n, m, self.x.shape[-1], self.batch_sizes.shape[0], self.h0.shape[-2]

    def rows(self) -> int:
        """Count the states of one matrix."""
        return self.x.shape[self.u.dim() - 2 : -1].numel()

    def is_default(self, shape: str) -> bool:
        """Tell whether reflections are those of layers: trapezoidal, without ``tau``."""
        return _validate.is_default(self.tau, shape)

    def vectors(self, of_steps: Tensor) -> Tensor:
        """Lay out the vectors of all steps; the core accepts any strides between steps and between sequences."""
        at_distances = self.u.dim() == 2 and of_steps.dim() == 3 and of_steps.stride(2) == 1
        return of_steps if at_distances else contiguous(of_steps)

    def require_as_before(self, nonlinearity: str, *states: Tensor | None) -> None:
        """Refuse tensors replaced or converted since the forward pass, because kernels see only addresses."""
        n, m, d, _, batch = self.sizes()
        many, kind, of_states, device = self.u.shape[:-2], self.u.dtype, self.x.dtype, self.u.device
        real, moduli = kind.to_real(), _validate.moduli(nonlinearity, n, kind.is_complex)
        of_weights = ((n, d), kind), ((n,), kind), ((n,), real), ((moduli,), real), ((m,), kind)
        for t, (shape, dtype) in zip(self[2:8], (((batch, n), of_states), *of_weights), strict=True):
            if t is not None and (t.shape != (*many, *shape) or t.dtype is not dtype or t.device != device):
                raise RuntimeError(
                    f"a tensor is {t.dtype} of shape {tuple(t.shape)} on {t.device}, but in the forward pass it was "
                    f"{dtype} of shape {(*many, *shape)} on {device}: change parameters after the backward pass"
                )
        narrow = kind is torch.float32 and of_states in (torch.bfloat16, torch.float16)
        alike = all(t is None or (t.dtype is of_states and t.device == device) for t in (self.x, *states))
        if not alike or not (of_states is kind or narrow):
            raise RuntimeError(f"states or their gradients were not {kind} on {device} in the forward pass")


class Options(NamedTuple):
    """The options that every signature ends with."""

    nonlinearity: str
    negative_slope: float
    transpose: bool
    reverse: bool
    shape: str
    method: str


TENSORS = "Tensor u, Tensor x, " + ", ".join(f"Tensor? {name}" for name in Inputs._fields[2:])
OPTIONS = "str nonlinearity, float negative_slope, bool transpose, bool reverse, str shape, str method"
DIFFERENTIABLE = len(Inputs._fields) - 1
"""All tensors but ``batch_sizes``."""


def split(arguments: Any) -> tuple[Inputs, Any, Options]:
    """Split arguments into the inputs, those between, and the options. Inputs and options must be consistent."""
    first, last = len(Inputs._fields), len(arguments) - len(Options._fields)
    inputs, options = Inputs(*arguments[:first]), Options(*arguments[last:])
    if options.reverse:
        _validate.direction(options.reverse, inputs.batch_sizes)
    return inputs, arguments[first:last], options
