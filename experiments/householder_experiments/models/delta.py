"""Linear attention by the delta rule: the transition is a product of reflections that depends on the data."""

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn
from typing_extensions import override

from householder.torch import DeltaNet
from householder_experiments.models.base import ModelSettings, Positive, SequenceModel, affine
from householder_experiments.settings import Unit


class DeltaLayers(nn.Module):
    """An affine map of the inputs, residual layers, and a norm at the end."""

    def __init__(self, input_size: int, hidden_size: int, layers: list[DeltaNet]) -> None:
        super().__init__()
        self.inputs = affine(input_size, hidden_size)
        self.norms = nn.ModuleList(nn.RMSNorm(hidden_size) for _ in layers)
        self.layers = nn.ModuleList(layers)
        self.last_norm = nn.RMSNorm(hidden_size)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs (T, B, n) and the last of them (1, B, n)."""
        x = self.inputs(inputs.transpose(0, 1))
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        states = self.last_norm(x).transpose(0, 1)
        return states, states[-1:]


class DeltaSettings(ModelSettings):
    """``householder.torch.DeltaNet`` between an affine map and a norm; ``hidden_size`` is a multiple of the heads."""

    kind: Literal["delta"] = "delta"
    num_heads: Annotated[Positive, Unit("heads")] = 2
    """Heads, each with its own state."""
    num_layers: Annotated[Positive, Unit("layers")] = 1
    """Layers on top of each other."""
    gate: Literal["head", "channel"] | None = None
    """A decay for each head, for each row of its state, or none."""
    num_householder: Annotated[Positive, Unit("reflections")] = 1
    """Reflections of a step."""
    max_beta: Annotated[float, Field(gt=0, le=2)] = 2.0
    """The largest step towards a reflection. 2 reflects; 1 erases the state's value for a key."""
    conv_size: Annotated[Positive, Unit("steps")] = 4
    """Taps of the convolutions before the recurrence."""

    @override
    def recurrence(self, input_size: int) -> DeltaLayers:
        options = {"gate": self.gate, "num_householder": self.num_householder, "conv_size": self.conv_size}
        layers = [
            DeltaNet(self.hidden_size, self.num_heads, max_beta=self.max_beta, **options)  # type: ignore[arg-type]
            for _ in range(self.num_layers)
        ]
        return DeltaLayers(input_size, self.hidden_size, layers)

    @override
    def transition(self, model: SequenceModel) -> None:
        return None


class GatedDeltaSettings(DeltaSettings):
    """``delta`` with a decay, one per head unless ``gate`` says otherwise."""

    kind: Literal["gated-delta"] = "gated-delta"  # type: ignore[assignment]
    gate: Literal["head", "channel"] | None = "head"
    """A decay for each head, for each row of its state, or none."""


class DeltaProductSettings(DeltaSettings):
    """``delta`` with several reflections per step."""

    kind: Literal["delta-product"] = "delta-product"  # type: ignore[assignment]
    num_householder: Annotated[Positive, Unit("reflections")] = 2
    """Reflections of a step."""
