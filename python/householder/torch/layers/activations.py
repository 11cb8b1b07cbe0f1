"""Nonlinearities that keep norms or directions, which torch does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from householder._base import validate
from householder.torch._base import checks, expressions, tracing
from householder.torch.layers import base

if TYPE_CHECKING:
    from torch.types import Device


class OPLU(tracing.Opaque):
    r"""Sort pairs of features: :math:`(x_i, x_{i+n/2}) \to (\max, \min)`. It keeps the norm, forward and backward.

    Use it in deep networks and long sequences of orthogonal layers: gradients neither vanish nor explode.

    Shape: ``(..., n)`` with even n to ``(..., n)``.

    Raises
    ------
    ValueError
        The number of features is odd, or they are complex.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> ht.OPLU()(torch.tensor([1.0, 5.0, 2.0, 3.0]))
    tensor([2., 5., 1., 3.])
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Sort the pairs of ``input``."""
        node: Tensor | None = tracing.node(self, input)
        if node is not None:
            return node
        checks.tensor("input", input)
        if input.is_complex() or not input.dim() or input.shape[-1] % 2:
            raise ValueError(
                f"input is {input.dtype} of shape {tuple(input.shape)}, expected real numbers and an even last axis"
            )
        return expressions.activate(input, "oplu", 0.0, None)

    if TYPE_CHECKING:

        def __call__(self, input: Tensor) -> Tensor: ...  # noqa: A002, D102


class ModReLU(base.Layer):
    r"""Add a learned bias to moduli, cut off at zero: :math:`(|z| + b)\, z / |z|` if :math:`|z| + b > 0`, else 0.

    Use it with unitary layers: it changes moduli and keeps phases.

    Shape: complex ``(..., k)``, or real ``(..., 2 k)`` holding ``[Re; Im]``: the pairs ``(i, i + k)``.

    Parameters
    ----------
    num_moduli : int
        Number k of complex features, or of pairs of real ones.
    device, dtype
        Of the bias, which is real.

    Attributes
    ----------
    bias : Parameter, shape (k,)
        Zero at the start.

    Raises
    ------
    TypeError
        ``num_moduli`` is not an integer, the dtype is not real, or inputs are integers.
    ValueError
        ``num_moduli`` is less than 1, or the last axis does not fit it.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> phi = ht.ModReLU(2)
    >>> _ = phi.bias.data.copy_(torch.tensor([-3.0, 5.0]))
    >>> phi(torch.tensor([3 + 4j, 5 + 0j])).abs().round()
    tensor([ 2., 10.], grad_fn=<RoundBackward0>)
    """

    @checks.constructor
    def __init__(self, num_moduli: int, device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        k = validate.integer("num_moduli", num_moduli, 1)
        real = base.real_type(dtype)
        self.bias = nn.Parameter(torch.empty(k, device=device, dtype=real))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the bias to zero."""
        nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Shrink or stretch the moduli of ``input``."""
        node: Tensor | None = tracing.node(self, input)
        if node is not None:
            return node
        checks.tensor("input", input)
        checks.of_device("input", input, self.bias)
        if not (input.is_floating_point() or input.is_complex()):
            raise TypeError(f"input has dtype {input.dtype}, expected real or complex numbers: pass input.float()")
        k = len(self.bias)
        expected = k if input.is_complex() else 2 * k
        if input.shape[-1:] != (expected,):
            raise ValueError(f"input is {input.dtype} of shape {tuple(input.shape)}, expected (..., {expected})")
        return expressions.activate(input, "modrelu", 0.0, self.bias)

    def extra_repr(self) -> str:
        """Show the number of moduli."""
        return str(len(self.bias))
