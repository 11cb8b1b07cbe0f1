"""Updates that keep a matrix unitary: Cayley steps on the manifold."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Adam
from typing_extensions import override

from householder_experiments.models.base import ModelSettings, SequenceModel


class CayleyAdam(Adam):
    r"""Adam, with Cayley steps for those parameters that are unitary or orthogonal matrices.

    With the gradient G of W and the learning rate r,

    .. math::
        W \leftarrow (I + \tfrac r2 A)^{-1} (I - \tfrac r2 A)\, W, \qquad A = N W^* - W N^*,

    where N is G with each number divided by the root of its mean square, as in RMSprop (Wisdom et al., 2016); the mean
    is corrected for its zero start, as in Adam. W stays unitary up to rounding, which accumulates. The solution of a
    linear system and the products cost O(n^3) per step.

    Parameters
    ----------
    free : iterable of Parameter
        Parameters that Adam updates.
    unitary : iterable of Parameter
        Square unitary or orthogonal matrices.
    lr, betas
        As for Adam.
    rate : float
        r is ``lr * rate``.
    decay : float
        Decay rate of the mean squares.
    """

    def __init__(
        self,
        free: Iterable[nn.Parameter],
        unitary: Iterable[nn.Parameter],
        lr: float,
        betas: tuple[float, float],
        rate: float,
        decay: float = 0.9,
    ) -> None:
        super().__init__([{"params": list(free)}, {"params": list(unitary)}], lr=lr, betas=betas)
        self.rate, self.decay = rate, decay

    @override
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        _, group = self.param_groups
        for w in group["params"]:
            if w.grad is not None:
                self._turn(w, group["lr"] * self.rate)
                w.grad = None  # nothing is left for Adam to do
        super().step()
        return loss

    def _turn(self, w: Tensor, rate: float) -> None:
        assert w.grad is not None
        numbers = torch.view_as_real(w.grad) if w.is_complex() else w.grad
        state = self.state[w]
        step = state.setdefault("step", torch.zeros((), dtype=torch.float64)).add_(1)
        square = state.setdefault("square", torch.zeros_like(numbers))
        square.mul_(self.decay).addcmul_(numbers, numbers, value=1 - self.decay)
        numbers = numbers / (square / (1 - self.decay ** step.item())).sqrt_().add_(1e-8)
        normalised = torch.view_as_complex(numbers) if w.is_complex() else numbers

        skew = normalised @ w.mH
        skew = (rate / 2) * (skew - skew.mH)
        identity = torch.eye(len(w), dtype=w.dtype, device=w.device)
        w.copy_(torch.linalg.solve(identity + skew, w - skew @ w))


class CayleySettings(ModelSettings):
    """Settings shared by the models that are trained by Cayley steps."""

    cayley_rate: Annotated[float, Field(gt=0)] = 0.1
    """Factor on the learning rate for the matrices."""

    @override
    def optimizer(self, model: SequenceModel) -> CayleyAdam:
        on_manifold: list[nn.Parameter] = model.recurrence.unitary_parameters()  # type: ignore[operator]
        known = {id(w) for w in on_manifold}
        free = [parameter for parameter in model.parameters() if id(parameter) not in known]
        return CayleyAdam(free, on_manifold, self.learning_rate, self.betas, self.cayley_rate)


def haar(n: int, dtype: torch.dtype) -> Tensor:
    """Return a random unitary or orthogonal matrix."""
    q, r = torch.linalg.qr(torch.randn(n, n, dtype=dtype))
    uniform: Tensor = q * torch.sgn(r.diagonal())  # removes QR's own choice of signs, which is not uniform
    return uniform
