"""``RecurrentLayer``: cells stacked in layers and directions, run over sequences."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sized
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, cast, overload

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from householder._base import validate
from householder.torch._base import checks, tracing
from householder.torch._ops.packing import packed_reversal
from householder.torch.layers.recurrent_cell import RecurrentCell, Sequences

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.types import Device

    from householder._base.types import Argument

    CellT = TypeVar("CellT", bound="RecurrentCell", covariant=True)

    class Cells(nn.ModuleList, Generic[CellT]):
        """A ``ModuleList`` that tells type checkers the type of its modules."""

        @overload
        def __getitem__(self, index: slice) -> Self: ...
        @overload
        def __getitem__(self, index: int) -> CellT: ...
        def __getitem__(self, index: Argument) -> Any: ...
        def __iter__(self) -> Iterator[CellT]: ...


# Layers of a network that is probably meant to be one layer with so many reflections.
_MANY_LAYERS = 8


_OF_TORCH = re.compile(r"(weight|bias)_(ih|hh)_l\d")
"""Names of parameters of a ``torch.nn.RNN``."""


class RecurrentLayer(tracing.Opaque):
    """Cells stacked in layers and directions, with the interface of ``torch.nn.RNN``."""

    cell_type: ClassVar[type[RecurrentCell]]
    cells: Cells[RecurrentCell]

    @checks.constructor
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
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.proj_size = validate.integer("proj_size", proj_size, 0)
        if self.proj_size:
            raise ValueError(f"proj_size is {proj_size}, expected 0, as in torch.nn.RNN")
        self.input_size = validate.integer("input_size", input_size, 1)
        self.hidden_size = validate.integer("hidden_size", hidden_size, 1 + self.cell_type.is_complex)
        self.num_layers = validate.integer("num_layers", num_layers, 1)
        self.nonlinearity = nonlinearity
        self.bias = validate.flag("bias", bias)
        self.batch_first = validate.flag("batch_first", batch_first)
        self.dropout = validate.number("dropout", dropout)
        self.bidirectional = validate.flag("bidirectional", bidirectional)
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
        layer = validate.integer("layer", layer, 0, self.num_layers - 1)
        direction = validate.integer("direction", direction, 0, self._directions - 1)
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

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Argument) -> None:
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
            node: tuple[Tensor, Tensor] | None = tracing.node(self, input, hx)
            if node is not None:
                return node
            checks.tensor("input", input)
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            shapes = f"{'(B, T' if self.batch_first else '(T, B'}, {self.input_size}) or (T, {self.input_size})"
            raise checks.SizeError(f"input has shape {tuple(input.shape)}, expected {shapes}")
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
        def __call__(self, input: Any, hx: Any = None) -> Any: ...  # noqa: A002, D102

    def _forward_packed(self, packed: PackedSequence, hx: Tensor | None) -> tuple[PackedSequence, Tensor]:
        data, batch_sizes, sorted_indices, unsorted_indices = packed
        if data.dim() != 2 or data.shape[-1] != self.input_size:
            raise checks.SizeError(f"input packs data of shape {tuple(data.shape)}, expected (rows, {self.input_size})")
        self._check_hx(hx, (int(batch_sizes[0]),))
        if hx is not None and sorted_indices is not None:
            hx = hx.index_select(1, sorted_indices)
        output, h_n = self._run(data, hx, batch_sizes, _reversal(batch_sizes, data) if self.bidirectional else None)
        if unsorted_indices is not None:
            h_n = h_n.index_select(1, unsorted_indices)
        return PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices), h_n

    def _check_hx(self, hx: Tensor | None, batch: tuple[int, ...]) -> None:
        checks.shape("hx", hx, (len(self.cells), *batch, self.hidden_size))

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
