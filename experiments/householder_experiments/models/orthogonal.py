"""The paper's oRNN: the transition matrix is a product of Householder reflections.

Under the hard constraint ``u_1`` is 1 or -1, and under the soft one it varies between them.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor
from torch.optim import Adam
from typing_extensions import override

from householder.torch import OrthogonalRNN, renormalize_, snap_
from householder_experiments.models.base import ModelSettings, NonlinearityName, Positive, SequenceModel
from householder_experiments.settings import Unit


class ReflectionSettings(ModelSettings):
    """``householder.torch.OrthogonalRNN`` with a learned initial state."""

    constraint: ClassVar[str]

    num_reflections: Annotated[Positive, Unit("reflections")] | None = None
    """By default all: as many as there are hidden units."""
    nonlinearity: NonlinearityName = "leaky_relu"
    """Nonlinearity of the recurrence."""
    negative_slope: Annotated[float, Field(ge=0)] = 0.1
    """Slope of the leaky ReLU."""
    renormalize: bool = False
    """Scale the reflection vectors to unit norm after each update."""
    reflection_rate: Annotated[float, Field(gt=0)] = 1.0
    """Factor on the learning rate for the reflection vectors."""

    @override
    def recurrence(self, input_size: int) -> OrthogonalRNN:
        return OrthogonalRNN(
            input_size,
            self.hidden_size,
            num_reflections=self._num_reflections,
            nonlinearity=self.nonlinearity,
            negative_slope=self.negative_slope,
            constraint=self.constraint,
            learn_h0=True,
        )

    @override
    def optimizer(self, model: SequenceModel) -> Adam:
        u = model.get_parameter("recurrence.cells.0.reflections")
        others = [parameter for parameter in model.parameters() if parameter is not u]
        groups: list[dict[str, Any]] = [
            {"params": others, "lr": self.learning_rate},
            {"params": [u], "lr": self.reflection_rate * self.learning_rate},
        ]
        adam = Adam(groups, betas=self.betas)
        adam.register_step_post_hook(lambda *_: self._after_step(u, adam))
        return adam

    def _after_step(self, u: Tensor, adam: Adam) -> None:
        if self.renormalize:
            renormalize_(u, adam)

    @override
    def transition(self, model: SequenceModel) -> Tensor:
        matrix: Tensor = model.get_submodule("recurrence.cells.0").matrix()  # type: ignore[operator]
        return matrix

    @override
    def num_parameters(self, model: SequenceModel) -> int:
        above_diagonal = self._num_reflections * (self._num_reflections - 1) // 2  # of the reflections, not trained
        return super().num_parameters(model) - above_diagonal

    @property
    def _num_reflections(self) -> int:
        return self.num_reflections or self.hidden_size


class ORNNSettings(ReflectionSettings):
    """The orthogonal network: where there are as many reflections as units, ``u_1`` is 1 or -1."""

    constraint: ClassVar[str] = "hard"

    kind: Literal["ornn"] = "ornn"
    u_1: Literal["latent", "snapped"] = "latent"
    """Use the sign of a latent number as ``u_1``, or, as the paper does, replace ``u_1`` by its sign after updates."""

    @override
    def _after_step(self, u: Tensor, adam: Adam) -> None:
        super()._after_step(u, adam)
        if self.u_1 == "snapped":
            snap_(u)


class SoftORNNSettings(ReflectionSettings):
    """As ``ornn``, but W may shrink one direction if there are as many reflections as units, as by default."""

    constraint: ClassVar[str] = "soft"

    kind: Literal["ornn-soft"] = "ornn-soft"
