"""A delta-rule layer: projections, short convolutions, the recurrence, and one norm per head."""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from householder._base import spec, validate
from householder.torch._base import checks
from householder.torch.functions.convolution import causal_convolution
from householder.torch.functions.delta import checked_type, delta_rule
from householder.torch.layers import base

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.types import Device

    from householder._base.types import Keywords

# Added to the mean square of a head's output: without it, torch adds a number that depends on the dtype.
_EPS = torch.finfo(torch.float32).eps


class DeltaState(NamedTuple):
    """The state of a :class:`DeltaNet` between two tokens."""

    inputs: Tensor
    """The last ``conv_size - 1`` projected inputs of the convolution, ``(B, conv_size - 1, channels)``."""
    recurrent: Tensor
    """The states of the heads, ``(B, num_heads, K, V)``."""


class ShortConvolution(nn.Conv1d):
    """The causal convolution of each channel through SiLU, a module so that hooks see it."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Map ``input (B, T, C)`` to ``(B, T, C)``."""
        return causal_convolution(input, self.weight.squeeze(1), silu=True)


class DeltaNet(nn.Module):
    r"""Linear attention by the delta rule: DeltaNet, gated DeltaNet, Kimi delta attention or DeltaProduct.

    Queries, keys and values are projected, convolved over the last ``conv_size`` tokens and passed through SiLU;
    queries and keys are divided by their norms. :math:`\beta` is in (0, ``max_beta``). Outputs of the heads are
    normalised and projected.

    Parameters
    ----------
    hidden_size : int
        Width of inputs and outputs, a multiple of ``num_heads``.
    num_heads : int
        Number of heads; a key has ``hidden_size / num_heads`` entries.
    expand_v : float
        Width of a value, as a multiple of the width of a key.
    gate : {"head", "channel", None}
        One decay per head, one for each row of its state, or none.
    num_householder : int
        Steps per token.
    conv_size : int
        Taps of the convolutions.
    max_beta : float
        Largest step, at most 2. A step of 2 reflects; a step of 1 only erases the state's value for a key.
    device, dtype
        Of the parameters; ``dtype`` is real.

    Raises
    ------
    TypeError
        An unsupported dtype, or a size or a number of another type.
    ValueError
        A size, a number or a name is not as expected.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> layer = ht.DeltaNet(32, 4, gate="head", num_householder=2)
    >>> x = torch.randn(2, 10, 32)
    >>> layer(x).shape
    torch.Size([2, 10, 32])
    >>> y, state = layer.step(x[:, 0])
    >>> torch.allclose(y, layer(x)[:, 0], atol=1e-5)
    True
    """

    @checks.constructor
    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        expand_v: float = 1,
        gate: str | None = "head",
        num_householder: int = 1,
        conv_size: int = 4,
        max_beta: float = 2.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size = validate.integer("hidden_size", hidden_size, 1)
        self.num_heads = validate.integer("num_heads", num_heads, 1)
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size is {hidden_size}, expected a multiple of num_heads = {num_heads}")
        if gate not in ("head", "channel", None):
            raise ValueError(f"gate is {gate!r}, expected 'head', 'channel' or None")
        self.gate = gate
        self.num_householder = validate.integer("num_householder", num_householder, 1)
        self.conv_size = validate.integer("conv_size", conv_size, 1)
        self.max_beta = validate.number("max_beta", max_beta)
        if not 0 < self.max_beta <= 2:
            raise ValueError(f"max_beta is {max_beta}, expected above 0 and at most 2")
        self.key_width = self.hidden_size // self.num_heads
        value_width = self.key_width * validate.number("expand_v", expand_v)
        if not 1 <= value_width < spec.MOST:
            raise ValueError(
                f"expand_v is {expand_v}, which makes values of {value_width:g} numbers, "
                f"expected at least 1 and less than {spec.MOST}"
            )
        self.value_width = floor(value_width)
        keys, values = self.num_heads * self.key_width, self.num_heads * self.value_width
        self.widths = [keys, self.num_householder * keys, self.num_householder * values]
        width = sum(self.widths)
        where: Keywords = {"device": device, "dtype": base.real_type(dtype)}
        self.projection = nn.Linear(self.hidden_size, width, bias=False, **where)
        self.convolution = ShortConvolution(width, width, self.conv_size, groups=width, bias=False, **where)
        self.beta = nn.Linear(self.hidden_size, self.num_householder * self.num_heads, **where)
        if gate is not None:
            self.decay = nn.Linear(self.hidden_size, self.num_heads if gate == "head" else keys, **where)
        self.norm = nn.RMSNorm(self.value_width, _EPS, **where)
        self.out = nn.Linear(values, self.hidden_size, bias=False, **where)
        self._start_near_one()

    def reset_parameters(self) -> None:
        """Draw new weights; decays begin near one again."""
        part: Any
        for part in self.children():
            part.reset_parameters()
        self._start_near_one()

    def forward(self, x: Tensor) -> Tensor:
        """Run over whole sequences.

        Parameters
        ----------
        x : Tensor, shape (B, T, hidden_size)

        Returns
        -------
        Tensor, shape (B, T, hidden_size)
        """
        self._check(x, {3: "(B, T, {})"})
        return self._attend(x, self.projection(x), None, None)[0]

    @overload
    def step(
        self, x: Tensor, state: DeltaState | None = None, *, states_at: None = None
    ) -> tuple[Tensor, DeltaState]: ...
    @overload
    def step(
        self, x: Tensor, state: DeltaState | None = None, *, states_at: Sequence[int]
    ) -> tuple[Tensor, DeltaState, list[DeltaState]]: ...
    def step(
        self, x: Tensor, state: DeltaState | None = None, *, states_at: Sequence[int] | None = None
    ) -> tuple[Tensor, DeltaState] | tuple[Tensor, DeltaState, list[DeltaState]]:
        """Process one more token, or several at once, such as a prompt.

        Parameters
        ----------
        x : Tensor, shape (B, hidden_size) or (B, T, hidden_size)
        state : DeltaState, optional
            As the step before returned it; None at the beginning.
        states_at : sequence of int, optional
            Return the states after so many of these tokens, too: increasing numbers from 0 to T.

        Returns
        -------
        y : Tensor, shape (B, hidden_size) or (B, T, hidden_size)
        state : DeltaState
        states : list of DeltaState
            If ``states_at`` is given. Steps go on from each of them, for example where prompts begin alike.

        Raises
        ------
        TypeError
            Not tensors, not a DeltaState, or not integers; or the dtype or device of a state is not the layer's.
        ValueError
            A shape is not as expected, or numbers of tokens do not increase from 0 to T.

        Examples
        --------
        >>> import torch
        >>> import householder.torch as ht
        >>> layer, prompt = ht.DeltaNet(32, 4), torch.randn(2, 50, 32)
        >>> _, _, (prefix,) = layer.step(prompt, states_at=[40])
        >>> y, state = layer.step(prompt[:, 40:], prefix)
        >>> torch.allclose(y, layer(prompt)[:, 40:], atol=1e-5)
        True
        """
        self._check(x, {2: "(B, {})", 3: "(B, T, {})"})
        tokens = x if x.dim() == 3 else x.unsqueeze(1)
        positions = None if states_at is None else validate.states_at(states_at, tokens.shape[1])
        inputs, recurrent = self._continued(self.projection(tokens), state)
        y, last, *chosen = self._attend(tokens, inputs, recurrent, positions)
        y, after = y if x.dim() == 3 else y.squeeze(1), self._state(inputs, tokens.shape[1], last)
        if positions is None:
            return y, after
        return y, after, [self._state(inputs, t, chosen[0][:, i].clone()) for i, t in enumerate(positions)]

    def extra_repr(self) -> str:
        """Describe the layer in ``repr``."""
        sizes = f"{self.hidden_size}, {self.num_heads}, value_width={self.value_width}, gate={self.gate!r}"
        return f"{sizes}, num_householder={self.num_householder}, conv_size={self.conv_size}, max_beta={self.max_beta}"

    def _check(self, x: Tensor, shapes: dict[int, str]) -> None:
        checks.tensor("x", x)
        if x.dim() not in shapes or x.shape[-1] != self.hidden_size:
            expected = " or ".join(shapes.values()).replace("{}", str(self.hidden_size))
            raise ValueError(f"x has shape {tuple(x.shape)}, expected {expected}")
        checks.of_linear("x", x, self.projection.weight)

    def _attend(
        self, x: Tensor, inputs: Tensor, recurrent: Tensor | None, states_at: list[int] | None
    ) -> tuple[Tensor, ...]:
        """Return outputs of ``x``, whose projections may follow others in ``inputs``, and states, the last first."""
        (batch, tokens, _), steps = x.shape, x.shape[1] * self.num_householder
        mixed = self.convolution(inputs)
        q, k, v = torch.split(mixed[:, inputs.shape[1] - tokens :], self.widths, -1)
        heads = self.num_heads
        o, *states = delta_rule(
            q.reshape(batch, tokens, heads, self.key_width),
            k.reshape(batch, steps, heads, self.key_width),
            v.reshape(batch, steps, heads, self.value_width),
            beta=self.max_beta * self.beta(x).sigmoid().reshape(batch, steps, heads),
            g=None if self.gate is None else self._gates(x),
            initial_state=recurrent,
            output_final_state=True,
            states_at=states_at,
            use_qk_l2norm_in_kernel=True,
            num_householder=self.num_householder,
        )
        return self.out(self.norm(o).flatten(2)), *states

    def _continued(self, projected: Tensor, state: DeltaState | None) -> tuple[Tensor, Tensor | None]:
        """Return the convolution's inputs, the earlier ones too, and the states of the heads before the new ones."""
        earlier = projected.shape[0], self.conv_size - 1, projected.shape[2]
        if state is None:
            return torch.cat([projected.new_zeros(earlier), projected], 1), None
        if not isinstance(state, DeltaState):
            raise TypeError(f"state is {checks.kind_of(state)}, expected a DeltaState, as a step returns it")
        inputs, recurrent = state
        checked_type("the layer", projected, {"state.inputs": inputs, "state.recurrent": recurrent}, {})
        checks.shape("state.inputs", inputs, earlier)
        checks.shape("state.recurrent", recurrent, (earlier[0], self.num_heads, self.key_width, self.value_width))
        return torch.cat([inputs.to(projected.dtype), projected], 1), recurrent

    def _state(self, inputs: Tensor, tokens: int, recurrent: Tensor) -> DeltaState:
        """Return the state after so many tokens, which keeps no memory of other tokens."""
        return DeltaState(inputs[:, tokens : tokens + self.conv_size - 1].clone(), recurrent)

    def _start_near_one(self) -> None:
        if self.gate is not None:
            nn.init.constant_(self.decay.bias, 4.0)  # the logistic function of 4 is 0.98

    def _gates(self, x: Tensor) -> Tensor:
        g = F.logsigmoid(self.decay(x))
        return g if self.gate == "head" else g.reshape(*g.shape[:2], self.num_heads, self.key_width)
