"""``RecurrentCell``: one recurrence, which takes single steps or, for a layer, whole sequences."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import torch
from torch import Tensor, nn

from householder._base import spec, validate
from householder._base.linear_map import Columns
from householder.torch import _ops
from householder.torch._base import autocast, checks, expressions, tracing
from householder.torch._ops.rnn import RnnInputs, RnnOptions
from householder.torch.functions.apply import apply, matrix
from householder.torch.functions.rnn import sequence
from householder.torch.layers import base, prepared

if TYPE_CHECKING:
    from torch.types import Device

# Numbers in u up to which forming the factors of W takes less time than a single step in torch operations.
_SMALL = 128 * 16


class Sequences(NamedTuple):
    """The sequences that a layer's cells run over: of one length, perhaps from their ends, or packed."""

    batch_sizes: Tensor | None
    reverse: bool = False


class RecurrentCell(base.Layer):
    """The parameters of one recurrence; a call is one step of it, or whole sequences where a layer calls."""

    reflections: nn.Parameter
    weight_ih: nn.Parameter
    bias: nn.Parameter | None
    h0: nn.Parameter | None
    nonlinearity_bias: nn.Parameter | None
    phases: nn.Parameter | None

    @checks.constructor
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "leaky_relu",
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        num_reflections: int | None = None,
        negative_slope: float = 0.1,
        constraint: str = "hard",
        learn_h0: bool = False,
        method: str = "auto",
    ) -> None:
        super().__init__()
        self.input_size = validate.integer("input_size", input_size, 1)
        self.hidden_size = n = validate.integer("hidden_size", hidden_size, 1 + self.is_complex)
        self.num_reflections = base.count(num_reflections, n, n - self.is_complex)
        self.nonlinearity = validate.one_of("nonlinearity", nonlinearity, spec.NONLINEARITIES)
        self.method = validate.one_of("method", method, spec.SEQUENCE_METHODS)
        moduli = validate.moduli(nonlinearity, n, self.is_complex)
        bias, learn_h0 = validate.flag("bias", bias), validate.flag("learn_h0", learn_h0)
        self.negative_slope = validate.slope(negative_slope)
        self.constraint = validate.one_of("constraint", constraint, base.CONSTRAINTS)

        real_kind = base.real_type(dtype, is_complex=self.is_complex)
        kind = real_kind.to_complex() if self.is_complex else real_kind

        def parameter(*shape: int, exists: bool = True, real: bool = False) -> nn.Parameter | None:
            dtype = real_kind if real else kind
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if exists else None

        self.register_parameter("reflections", parameter(n, self.num_reflections))
        self.register_parameter("phases", parameter(n, exists=self.is_complex, real=True))
        self.register_parameter("weight_ih", parameter(n, self.input_size))
        self.register_parameter("bias", parameter(n, exists=bias))
        self.register_parameter("h0", parameter(n, exists=learn_h0))
        phi_bias = parameter(moduli, exists=spec.NONLINEARITIES[nonlinearity].has_bias, real=True)
        self.register_parameter("nonlinearity_bias", phi_bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new reflections, phases, input weights and initial state; set biases to zero."""
        base.initialise_(self.reflections)
        _uniform_(self.weight_ih, sqrt(6 / (self.input_size + self.hidden_size)))
        if self.phases is not None:
            base.initialise_phases_(self.phases)
        if self.h0 is not None:
            _uniform_(self.h0, sqrt(3 / (2 * self.hidden_size)))
        for bias in (self.bias, self.nonlinearity_bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def forward(self, input: Tensor, hx: Tensor | None = None, *, over: Sequences | None = None) -> Any:  # noqa: A002
        """Take one step, from ``input (B, input_size)`` or ``(input_size,)`` and the previous state to the next.

        Layers call their cells with ``over``, so that the hooks of a cell run. Then ``input`` holds whole sequences,
        and the results are all states and the last state.
        """
        if over is None:
            return self._one_step(input, hx)
        batch_sizes, reverse = over
        x = self._promoted(input) if self.is_complex else input
        if x.shape[0] == 1 and batch_sizes is None:
            h = self._without_gradients(x[0], hx)
            if h is None and self._is_costly(x) and not self._mixes_types(x, hx):
                h = self._step(x[0], hx)
            if h is not None:
                return h.unsqueeze(0), h.clone()
        u: Tensor = self.reflections
        inputs, options = self._arguments(u, x, hx, batch_sizes, reverse)
        if batch_sizes is None and not (u.requires_grad and torch.is_grad_enabled()):
            result = prepared.sequence(self, self.constraint, inputs, options)
            if result is not None:
                return result
        if self.num_reflections == self.hidden_size:
            inputs = inputs._replace(u=base.constrain(u, self.constraint))
        if batch_sizes is None:
            result = _ops.rnn.operator.attempt(inputs, options)
            if result is not None:
                return result
        checks.of_layer(self.weight_ih, input=x, hx=hx)
        return sequence(inputs, options)

    def _arguments(
        self, u: Tensor, x: Tensor, hx: Tensor | None, batch_sizes: Tensor | None = None, reverse: bool = False
    ) -> tuple[RnnInputs[Tensor], RnnOptions]:
        """Return the arguments of the operation ``rnn``."""
        h0 = self.h0 if hx is None else hx
        parameters = self.weight_ih, self.bias, self.phases, self.nonlinearity_bias
        options = RnnOptions(self.nonlinearity, self.negative_slope, False, reverse, "trapezoidal", self.method)
        return RnnInputs(u, x, h0, *parameters, None, batch_sizes), options

    def _without_gradients(self, x: Tensor, hx: Tensor | None) -> Tensor | None:
        """Take one step; None if it needs gradients, checks, conversion or another route."""
        inputs, options = self._arguments(self.reflections, x, hx)  # with the latent u
        if prepared.needs_gradients(inputs):
            return None
        h = prepared.step(self, self.constraint, inputs, options)
        if h is None:
            u = base.constrain(self.reflections, self.constraint)
            result = _ops.rnn.operator.attempt(inputs._replace(u=u, x=x.unsqueeze(0)), options)
            h = None if result is None else result[1]
        return h

    def _one_step(self, input: Tensor, hx: Tensor | None) -> Tensor:  # noqa: A002
        if not isinstance(input, Tensor):
            node: Tensor | None = tracing.node(self, input, hx)
            if node is not None:
                return node
            checks.tensor("input", input)
        if input.dim() not in (1, 2) or input.shape[-1] != self.input_size:
            d = self.input_size
            raise checks.SizeError(f"input has shape {tuple(input.shape)}, expected (B, {d}) or ({d},)")
        x = self._promoted(input)
        h = self._without_gradients(x, hx)
        if h is not None:
            return h
        checks.shape("hx", hx, (*x.shape[:-1], self.hidden_size))
        if self._mixes_types(x, hx):
            last: Tensor = self.forward(x.unsqueeze(0), hx, over=Sequences(None))[1]  # sequence converts them
            return last
        return self._step(x, hx)

    def _step(self, x: Tensor, hx: Tensor | None) -> Tensor:
        checks.of_layer(self.weight_ih, input=x, hx=hx)
        h = self.h0 if hx is None else hx
        h = x.new_zeros(self.hidden_size) if h is None else h
        turned = apply(Columns(self._constrained(), phases=self.phases), h, method=self.method)
        a = turned + nn.functional.linear(x, self.weight_ih, self.bias)
        return expressions.activate(a, self.nonlinearity, self.negative_slope, self.nonlinearity_bias)

    def _is_costly(self, x: Tensor) -> bool:
        """Return whether "auto" should not form factors of W, because they are large, for a single step's gradients."""
        is_large = self.method == "auto" and self.hidden_size * self.num_reflections > _SMALL
        return torch.is_grad_enabled() and is_large and x.is_cpu and not torch.compiler.is_compiling()

    def _mixes_types(self, x: Tensor, hx: Tensor | None) -> bool:
        alike = x.dtype == self.weight_ih.dtype and (hx is None or hx.dtype == x.dtype)
        return not alike or autocast.is_on(x.device)

    if TYPE_CHECKING:

        @overload
        def __call__(self, input: Tensor, hx: Tensor | None = None) -> Tensor: ...
        @overload
        def __call__(self, input: Tensor, hx: Tensor | None, *, over: Sequences) -> tuple[Tensor, Tensor]: ...
        def __call__(self, input: Any, hx: Any = None, *, over: Any = None) -> Any: ...  # noqa: A002, D102

    def matrix(self) -> Tensor:
        """Form the recurrent matrix ``W``, ``(hidden_size, hidden_size)``."""
        return matrix(Columns(self._constrained(), phases=self.phases))

    def _constrained(self) -> Tensor:
        return base.constrain(self.reflections, self.constraint)

    def extra_repr(self) -> str:
        """Show sizes and names."""
        sizes = f"{self.input_size}, {self.hidden_size}, num_reflections={self.num_reflections}"
        return f"{sizes}, nonlinearity={self.nonlinearity!r}, bias={self.bias is not None}"


def _uniform_(tensor: Tensor, bound: float) -> None:
    """Fill uniformly in [-bound, bound]; complex numbers get the same mean square."""
    if tensor.is_complex():
        tensor, bound = torch.view_as_real(tensor.detach()), bound / sqrt(2)
    nn.init.uniform_(tensor, -bound, bound)
