"""What ``OrthogonalRNN`` and ``UnitaryRNN`` share: one recurrence (a cell), and layers of them over sequences."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sized
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast, overload

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from householder import _spec, _validate
from householder.torch import _autocast, _check, _expressions, _ops, _reflections, _streaming, _tracing
from householder.torch._functional import apply, matrix, sequence
from householder.torch._ops.packing import packed_reversal
from householder.torch._ops.rnn import Inputs, Options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    CellT = TypeVar("CellT", bound="RecurrentCell", covariant=True)

    class Cells(nn.ModuleList, Generic[CellT]):
        """A ``ModuleList`` that tells type checkers the type of its modules."""

        @overload
        def __getitem__(self, index: slice) -> Self: ...
        @overload
        def __getitem__(self, index: int) -> CellT: ...
        def __getitem__(self, index: Any) -> Any: ...
        def __iter__(self) -> Iterator[CellT]: ...


# Numbers in u up to which forming the factors of W takes less time than a single step in torch operations.
_SMALL = 128 * 16
# Layers of a network that is probably meant to be one layer with so many reflections.
_MANY_LAYERS = 8


_OF_TORCH = re.compile(r"(weight|bias)_(ih|hh)_l\d")
"""Names of parameters of a ``torch.nn.RNN``."""


class Sequences(NamedTuple):
    """What a layer's cells run over: sequences of one length, perhaps from their ends, or packed ones."""

    batch_sizes: Tensor | None
    reverse: bool = False


class RecurrentCell(_reflections.Layer):
    """The parameters of one recurrence; a call is one step of it, or whole sequences where a layer calls."""

    reflections: nn.Parameter
    weight_ih: nn.Parameter
    bias: nn.Parameter | None
    h0: nn.Parameter | None
    nonlinearity_bias: nn.Parameter | None
    phases: nn.Parameter | None

    @_check.constructor
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "leaky_relu",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        num_reflections: int | None = None,
        negative_slope: float = 0.1,
        constraint: str = "hard",
        learn_h0: bool = False,
        method: str = "auto",
    ) -> None:
        super().__init__()
        self.input_size = _validate.integer("input_size", input_size, 1)
        self.hidden_size = n = _validate.integer("hidden_size", hidden_size, 1 + self.is_complex)
        self.num_reflections = _reflections.count(num_reflections, n, n - self.is_complex)
        self.nonlinearity = _validate.one_of("nonlinearity", nonlinearity, _spec.NONLINEARITIES)
        self.method = _validate.one_of("method", method, _spec.SEQUENCE_METHODS)
        moduli = _validate.moduli(nonlinearity, n, self.is_complex)
        bias, learn_h0 = _validate.flag("bias", bias), _validate.flag("learn_h0", learn_h0)
        self.negative_slope = _validate.slope(negative_slope)
        self.constraint = _validate.one_of("constraint", constraint, _reflections.CONSTRAINTS)

        real_kind = _reflections.real_type(dtype, is_complex=self.is_complex)
        kind = real_kind.to_complex() if self.is_complex else real_kind

        def parameter(*shape: int, wanted: bool = True, real: bool = False) -> nn.Parameter | None:
            dtype = real_kind if real else kind
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if wanted else None

        self.register_parameter("reflections", parameter(n, self.num_reflections))
        self.register_parameter("phases", parameter(n, wanted=self.is_complex, real=True))
        self.register_parameter("weight_ih", parameter(n, self.input_size))
        self.register_parameter("bias", parameter(n, wanted=bias))
        self.register_parameter("h0", parameter(n, wanted=learn_h0))
        phi_bias = parameter(moduli, wanted=_spec.NONLINEARITIES[nonlinearity].has_bias, real=True)
        self.register_parameter("nonlinearity_bias", phi_bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new reflections, phases, input weights and initial state; set biases to zero."""
        _reflections.initialise_(self.reflections)
        _uniform_(self.weight_ih, sqrt(6 / (self.input_size + self.hidden_size)))
        if self.phases is not None:
            _reflections.initialise_phases_(self.phases)
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
        if self.num_reflections == self.hidden_size:
            u = _reflections.constrain(u, self.constraint)
        inputs, options = self._arguments(u, x, hx, batch_sizes, reverse)
        if batch_sizes is None:
            done: tuple[Tensor, Tensor] | None = _ops.rnn.operator.attempt(inputs, options)
            if done is not None:
                return done
        _check.of_layer(self.weight_ih, input=x, hx=hx)
        return sequence(inputs, options)

    def _arguments(
        self, u: Tensor, x: Tensor, hx: Tensor | None, batch_sizes: Tensor | None = None, reverse: bool = False
    ) -> tuple[Inputs[Tensor], Options]:
        """Return the arguments of the operation ``rnn``."""
        h0 = self.h0 if hx is None else hx
        parameters = self.weight_ih, self.bias, self.phases, self.nonlinearity_bias
        options = Options(self.nonlinearity, self.negative_slope, False, reverse, "trapezoidal", self.method)
        return Inputs(u, x, h0, *parameters, None, batch_sizes), options

    def _without_gradients(self, x: Tensor, hx: Tensor | None) -> Tensor | None:
        """Take one step; None if it needs gradients, checks, conversion or another route."""
        inputs, options = self._arguments(self.reflections, x, hx)  # with the latent u
        if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in inputs):
            return None
        h = _streaming.step(self, self.constraint, inputs, options)
        if h is None:
            u = _reflections.constrain(self.reflections, self.constraint)
            done = _ops.rnn.operator.attempt(inputs._replace(u=u, x=x.unsqueeze(0)), options)
            h = None if done is None else done[1]
        return h

    def _one_step(self, input: Tensor, hx: Tensor | None) -> Tensor:  # noqa: A002
        if not isinstance(input, Tensor):
            node: Tensor | None = _tracing.node(self, input, hx)
            if node is not None:
                return node
            _check.tensor("input", input)
        if input.dim() not in (1, 2) or input.shape[-1] != self.input_size:
            d = self.input_size
            raise _check.SizeError(f"input has shape {tuple(input.shape)}, expected (B, {d}) or ({d},)")
        x = self._promoted(input)
        h = self._without_gradients(x, hx)
        if h is not None:
            return h
        _check.shape("hx", hx, (*x.shape[:-1], self.hidden_size))
        if self._mixes_types(x, hx):
            last: Tensor = self.forward(x.unsqueeze(0), hx, over=Sequences(None))[1]  # sequence converts them
            return last
        return self._step(x, hx)

    def _step(self, x: Tensor, hx: Tensor | None) -> Tensor:
        _check.of_layer(self.weight_ih, input=x, hx=hx)
        h = self.h0 if hx is None else hx
        h = x.new_zeros(self.hidden_size) if h is None else h
        turned = apply(self._constrained(), h, phases=self.phases, method=self.method)
        a = turned + nn.functional.linear(x, self.weight_ih, self.bias)
        return _expressions.activate(a, self.nonlinearity, self.negative_slope, self.nonlinearity_bias)

    def _is_costly(self, x: Tensor) -> bool:
        """Return whether "auto" should not form factors of W, because they are large, for a single step's gradients."""
        is_large = self.method == "auto" and self.hidden_size * self.num_reflections > _SMALL
        return torch.is_grad_enabled() and is_large and x.is_cpu and not torch.compiler.is_compiling()

    def _mixes_types(self, x: Tensor, hx: Tensor | None) -> bool:
        alike = x.dtype == self.weight_ih.dtype and (hx is None or hx.dtype == x.dtype)
        return not alike or _autocast.is_on(x.device)

    if TYPE_CHECKING:

        @overload
        def __call__(self, input: Tensor, hx: Tensor | None = None) -> Tensor: ...
        @overload
        def __call__(self, input: Tensor, hx: Tensor | None, *, over: Sequences) -> tuple[Tensor, Tensor]: ...
        def __call__(self, input: Any, hx: Any = None, *, over: Any = None) -> Any: ...  # noqa: A002

    def matrix(self) -> Tensor:
        """Form the recurrent matrix ``W``, ``(hidden_size, hidden_size)``."""
        return matrix(self._constrained(), self.phases)

    def _constrained(self) -> Tensor:
        return _reflections.constrain(self.reflections, self.constraint)

    def extra_repr(self) -> str:
        """Show sizes and names."""
        sizes = f"{self.input_size}, {self.hidden_size}, num_reflections={self.num_reflections}"
        return f"{sizes}, nonlinearity={self.nonlinearity!r}, bias={self.bias is not None}"


def _uniform_(tensor: Tensor, bound: float) -> None:
    """Fill uniformly in [-bound, bound]; complex numbers get the same mean square."""
    if tensor.is_complex():
        tensor, bound = torch.view_as_real(tensor.detach()), bound / sqrt(2)
    nn.init.uniform_(tensor, -bound, bound)


class RecurrentLayer(_tracing.Opaque):
    """Cells stacked in layers and directions, with the interface of ``torch.nn.RNN``."""

    cell_type: ClassVar[type[RecurrentCell]]
    cells: Cells[RecurrentCell]

    @_check.constructor
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "leaky_relu",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        num_reflections: int | Sequence[int | None] | None = None,
        negative_slope: float = 0.1,
        constraint: str = "hard",
        learn_h0: bool = False,
        method: str = "auto",
        proj_size: int = 0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.proj_size = _validate.integer("proj_size", proj_size, 0)
        if self.proj_size:
            raise ValueError(f"proj_size is {proj_size}, expected 0, as in torch.nn.RNN")
        self.input_size = _validate.integer("input_size", input_size, 1)
        self.hidden_size = _validate.integer("hidden_size", hidden_size, 1 + self.cell_type.is_complex)
        self.num_layers = _validate.integer("num_layers", num_layers, 1)
        self.nonlinearity = nonlinearity
        self.bias = _validate.flag("bias", bias)
        self.batch_first = _validate.flag("batch_first", batch_first)
        self.dropout = _validate.number("dropout", dropout)
        self.bidirectional = _validate.flag("bidirectional", bidirectional)
        if not 0 <= self.dropout <= 1:
            raise ValueError(f"dropout is {dropout!r}, expected a number in [0, 1]")
        if dropout > 0 and self.num_layers == 1:
            warnings.warn(f"dropout={dropout} acts between layers, so it does nothing with num_layers=1", stacklevel=3)
        if self.num_layers >= _MANY_LAYERS and num_reflections is None:
            told = f"num_layers is {num_layers}: for reflections in one layer, write num_reflections={num_layers}"
            warnings.warn(told, stacklevel=3)
        counts = num_reflections if isinstance(num_reflections, Sized) else [num_reflections] * self.num_layers
        if len(counts) != self.num_layers:
            raise ValueError(
                f"num_reflections is {num_reflections}, expected one number or {num_layers}, one per layer"
            )
        options = {} if self.cell_type.is_complex else {"constraint": constraint}
        cells = nn.ModuleList(
            self.cell_type(
                self.hidden_size * self._directions if layer else self.input_size,
                self.hidden_size,
                num_reflections=counts[layer],
                nonlinearity=nonlinearity,
                negative_slope=negative_slope,
                bias=bias,
                learn_h0=learn_h0,
                method=method,
                device=device,
                dtype=dtype,
                **options,
            )
            for layer in range(self.num_layers)
            for _ in range(self._directions)
        )
        self.cells = cast("Cells[RecurrentCell]", cells)

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def matrix(self, layer: int = 0, direction: int = 0) -> Tensor:
        """Form the recurrent matrix ``W`` of a layer, ``(hidden_size, hidden_size)``; direction 1 runs backwards."""
        layer = _validate.integer("layer", layer, 0, self.num_layers - 1)
        direction = _validate.integer("direction", direction, 0, self._directions - 1)
        return self.cells[self._directions * layer + direction].matrix()

    def reset_parameters(self) -> None:
        """Draw new parameters for every cell."""
        for cell in self.cells:
            cell.reset_parameters()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if _OF_TORCH.match(name):
                raise AttributeError(f"{error}: matrix(layer) forms W, and cells[layer] has the parameters") from None
            raise

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        if f"{prefix}weight_hh_l0" in state_dict:
            told = f"{prefix}weight_hh_l0 is of a torch.nn.RNN: OrthogonalRNN.from_rnn takes over its weights"
            warnings.warn(told, stacklevel=5)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def flatten_parameters(self) -> None:
        """Do nothing: the parameters need no common storage. Present because ``torch.nn.RNN`` has it."""

    @property
    def mode(self) -> str:
        """The name of the nonlinearity. Present because ``torch.nn.RNN`` has it."""
        return f"RNN_{self.nonlinearity.upper()}"

    @property
    def all_weights(self) -> list[list[nn.Parameter]]:
        """The parameters, one list for each cell. Present because ``torch.nn.RNN`` has it."""
        return [list(cell.parameters()) for cell in self.cells]

    def forward(
        self,
        input: Tensor | PackedSequence,  # noqa: A002
        hx: Tensor | None = None,
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """Run over sequences.

        Parameters
        ----------
        input : Tensor, shape (T, B, input_size), (T, input_size) or, if ``batch_first``, (B, T, input_size)
            Or a ``PackedSequence``.
        hx : Tensor, shape (D * num_layers, B, hidden_size) or, unbatched, (D * num_layers, hidden_size), optional
            Initial states; by default learned or zero.

        Returns
        -------
        output : Tensor, shape (T, B, D * hidden_size), or in the form of ``input``
            States of the last layer; D is 2 if bidirectional, else 1.
        h_n : Tensor, shape (D * num_layers, B, hidden_size), or (D * num_layers, hidden_size)
            Last states of all layers. The reverse direction ends at the first time step.
        """
        if not isinstance(input, Tensor) or input.is_nested:
            if isinstance(input, PackedSequence):
                return self._forward_packed(input, hx)
            node: tuple[Tensor, Tensor] | None = _tracing.node(self, input, hx)
            if node is not None:
                return node
            _check.tensor("input", input)
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            shapes = f"{'(B, T' if self.batch_first else '(T, B'}, {self.input_size}) or (T, {self.input_size})"
            raise _check.SizeError(f"input has shape {tuple(input.shape)}, expected {shapes}")
        swapped = self.batch_first and input.dim() == 3
        x = input.transpose(0, 1) if swapped else input
        if hx is not None:
            self._check_hx(hx, tuple(x.shape[1:-1]))
        output, h_n = self._run(x, hx, None, None)
        return output.transpose(0, 1) if swapped else output, h_n

    if TYPE_CHECKING:

        @overload
        def __call__(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]: ...
        @overload
        def __call__(self, input: PackedSequence, hx: Tensor | None = None) -> tuple[PackedSequence, Tensor]: ...
        def __call__(self, input: Any, hx: Any = None) -> Any: ...  # noqa: A002

    def _forward_packed(self, packed: PackedSequence, hx: Tensor | None) -> tuple[PackedSequence, Tensor]:
        data, batch_sizes, sorted_indices, unsorted_indices = packed
        if data.dim() != 2 or data.shape[-1] != self.input_size:
            raise _check.SizeError(f"input packs data of shape {tuple(data.shape)}, expected (rows, {self.input_size})")
        self._check_hx(hx, (int(batch_sizes[0]),))
        if hx is not None and sorted_indices is not None:
            hx = hx.index_select(1, sorted_indices)
        output, h_n = self._run(data, hx, batch_sizes, _reversal(batch_sizes, data) if self.bidirectional else None)
        if unsorted_indices is not None:
            h_n = h_n.index_select(1, unsorted_indices)
        return PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices), h_n

    def _check_hx(self, hx: Tensor | None, batch: tuple[int, ...]) -> None:
        _check.shape("hx", hx, (len(self.cells), *batch, self.hidden_size))

    def _run(
        self, x: Tensor, hx: Tensor | None, batch_sizes: Tensor | None, reversal: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        cells = list(cast("Cells[RecurrentCell]", self._modules["cells"]))  # past __getattr__, which costs time
        initial = [None] * len(cells) if hx is None else [hx.squeeze(0)] if len(cells) == 1 else hx.unbind(0)
        directions = len(cells) // self.num_layers
        last: list[Tensor] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(directions):
                at, rows = len(last), x
                over = Sequences(batch_sizes, reverse=direction == 1 and batch_sizes is None)
                if direction and reversal is not None:
                    rows = x.index_select(0, reversal)
                states, final = cells[at](rows, initial[at], over=over)
                if direction and reversal is not None:
                    states = states.index_select(0, reversal)
                outputs.append(states)
                last.append(final)
            x = torch.cat(outputs, -1) if self.bidirectional else outputs[0]
            if self.dropout and layer < self.num_layers - 1:
                x = _dropout(x, self.dropout) if self.training else x
        return x, torch.stack(last)  # a copy, not a view: users detach it in place

    def extra_repr(self) -> str:
        """Show the options that the cells do not show."""
        changed = {
            "num_layers": (self.num_layers, 1),
            "batch_first": (self.batch_first, False),
            "dropout": (self.dropout, 0.0),
            "bidirectional": (self.bidirectional, False),
        }
        shown = "".join(f", {name}={value}" for name, (value, default) in changed.items() if value != default)
        return f"{self.input_size}, {self.hidden_size}{shown}"


def _dropout(x: Tensor, share: float) -> Tensor:
    """Set a share of the numbers to zero; torch 2.10 to 2.12 do so for real ones only."""
    if not x.is_complex():
        return nn.functional.dropout(x, share)
    return x * nn.functional.dropout(torch.ones_like(x.real), share)


def _reversal(batch_sizes: Tensor, data: Tensor) -> Tensor:
    """Return the row that each packed row becomes when every sequence is reversed in its own length."""
    if data.is_cuda and type(data) is Tensor and not torch.compiler.is_compiling():
        rows: Tensor | None = packed_reversal(batch_sizes, data)
        if rows is not None:
            return rows
    count = partial(torch.arange, device=batch_sizes.device)
    steps, starts = count(len(batch_sizes)), batch_sizes.cumsum(0) - batch_sizes
    step = steps.repeat_interleave(batch_sizes)
    sequence = count(len(step)) - starts[step]
    lengths = torch.searchsorted(-batch_sizes, -count(int(batch_sizes[0])))
    return (starts[lengths[sequence] - 1 - step] + sequence).to(data.device)
