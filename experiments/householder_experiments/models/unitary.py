"""The unitary counterpart of the oRNN: complex reflections and phases."""

from typing import Annotated, ClassVar, Literal

from torch import Tensor
from typing_extensions import override

from householder._base.spec import NONLINEARITIES
from householder.torch import UnitaryRNN
from householder_experiments.models.base import ComplexNonlinearityName, ModelSettings, Positive, SequenceModel
from householder_experiments.models.looped import RealParts
from householder_experiments.settings import Unit


class UnitarySettings(ModelSettings):
    """``householder.torch.UnitaryRNN`` with a learned initial state."""

    is_complex: ClassVar[bool] = True

    kind: Literal["unitary"] = "unitary"
    num_reflections: Annotated[Positive, Unit("reflections")] | None = None
    """By default ``hidden_size - 1``, which reaches all unitary matrices."""
    nonlinearity: ComplexNonlinearityName = "modrelu"
    """Nonlinearity of the recurrence."""

    @override
    def recurrence(self, input_size: int) -> RealParts:
        return RealParts(
            UnitaryRNN(
                input_size,
                self.hidden_size,
                num_reflections=self._num_reflections,
                nonlinearity=self.nonlinearity,
                bias=not NONLINEARITIES[self.nonlinearity].has_bias,  # it would be redundant
                learn_h0=True,
            )
        )

    @override
    def transition(self, model: SequenceModel) -> Tensor:
        matrix: Tensor = model.get_submodule("recurrence.recurrence.cells.0").matrix()  # type: ignore[operator]
        return matrix

    @override
    def num_parameters(self, model: SequenceModel) -> int:
        above_diagonal = self._num_reflections * (self._num_reflections - 1)  # complex numbers that are not parameters
        return super().num_parameters(model) - above_diagonal

    @property
    def _num_reflections(self) -> int:
        return self.num_reflections or self.hidden_size - 1
