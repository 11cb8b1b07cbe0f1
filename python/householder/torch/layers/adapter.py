"""``OrthogonalAdapter``: fine-tune a frozen linear layer by rotating its inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
from torch import Tensor, nn

from householder._base import spec, validate
from householder._base.linear_map import Columns
from householder.torch._base import checks, tracing, undocumented
from householder.torch._ops.adapted import adapted_linear, can_fuse
from householder.torch.functions.apply import apply
from householder.torch.layers import base

if TYPE_CHECKING:
    from householder._base.types import Argument


class OrthogonalAdapter(base.Layer):
    r"""Compute ``linear(W x)``, where ``linear`` is frozen and W, a product of m Householder reflections, is learned.

    The adapter keeps the angles between the layer's neurons and trains fewer than n m numbers. A token costs O(n m),
    and the n x n matrix is never formed, forward or backward. At the start W is the identity, made of pairs of equal
    reflections, but its gradient is not zero.

    Shape: as for ``linear``.

    Parameters
    ----------
    linear : nn.Linear, nn.Conv2d or transformers' Conv1D
        The layer. Its present parameters are frozen and not copied. n is its ``in_features``. A convolution must have
        1 x 1 kernels and one group; n is its number of channels.
    num_reflections : int
        m, even and less than n. On a square layer, the adapter trains about as many numbers as a low-rank adapter of
        rank ``m / 2``. More reflections rotate inputs in more directions, at proportional cost.
    method : {"auto", "reflections", "wy", "dense"}
        The algorithm, as in :func:`apply`; "auto" takes the fastest for the shape.

    Attributes
    ----------
    linear : nn.Module
    reflections : Parameter, shape (n, m)
        float64 if the layer is float64, else float32.
    merged : bool
        Whether the layer's weight contains W now.
    weight : Tensor, shape of the layer's weight
        The weight of layer and reflections together, computed at each access unless merged. It serves modules that read
        their layers' weights, such as ``nn.MultiheadAttention``. An assigned parameter becomes the layer's own, for
        example when embeddings are tied. It keeps its ``requires_grad``, because the embedding may be trained.
    bias, in_features, out_features
        As in ``linear``.

    Raises
    ------
    TypeError
        ``linear`` is another module, complex, or lazy and not yet called.
    ValueError
        The number of reflections is odd or out of range, or a convolution does more than multiply channels.

    Examples
    --------
    >>> import torch
    >>> import householder.torch as ht
    >>> linear = torch.nn.Linear(16, 3)
    >>> adapter = ht.OrthogonalAdapter(linear, num_reflections=4)
    >>> x = torch.randn(5, 16)
    >>> torch.allclose(adapter(x), linear(x), atol=1e-5)
    True
    >>> [name for name, p in adapter.named_parameters() if p.requires_grad]
    ['reflections']
    """

    linear: Any

    @checks.constructor
    def __init__(self, linear: nn.Module, num_reflections: int = 8, method: str = "auto") -> None:
        super().__init__()
        if not is_adaptable(linear):
            raise TypeError(f"linear is {checks.kind_of(linear)}, expected an nn.Linear, nn.Conv2d or Conv1D")
        weight: Any = linear.weight
        if isinstance(weight, nn.UninitializedParameter):
            raise TypeError("linear is lazy and has no size yet: call it once before")
        if weight.is_complex():
            raise TypeError(f"linear has dtype {weight.dtype}, expected a real layer")
        if isinstance(linear, nn.Conv2d) and (set(linear.kernel_size) != {1} or linear.groups != 1):
            raise ValueError(
                f"linear has kernel_size {linear.kernel_size} and groups {linear.groups}, "
                "expected a 1 x 1 convolution without groups"
            )
        n = _sizes(linear)[1]
        self.method = validate.one_of("method", method, spec.METHODS)
        if not isinstance(num_reflections, SupportsIndex):
            raise TypeError(f"num_reflections is {num_reflections!r}, expected an integer")
        if num_reflections % 2 or not 2 <= num_reflections < n:
            raise ValueError(
                f"num_reflections is {num_reflections}, expected an even number from 2 to less than in_features = {n}: "
                "only pairs of reflections can start at the identity"
            )
        self.linear = linear.requires_grad_(False)
        self.merged = False
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self.reflections = nn.Parameter(torch.empty(n, num_reflections, device=weight.device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new pairs of equal reflections: the identity."""
        self._require(merged=False)
        n, m = self.reflections.shape
        with torch.no_grad():
            pairs = torch.randn_like(self.reflections[:, : m // 2])
            # the second of a pair of columns begins one entry below the first
            below = torch.arange(n, device=pairs.device)[:, None] > 2 * torch.arange(m // 2, device=pairs.device)
            pairs = pairs * below
            pairs = pairs / torch.linalg.vector_norm(pairs, dim=0)
            self.reflections.copy_(pairs.repeat_interleave(2, dim=1))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Map ``input (..., in_features)`` to ``(..., out_features)``."""
        node: Tensor | None = tracing.node(self, input)
        if node is not None:
            return node
        linear, u = self.linear, self.reflections
        output: Tensor
        if self.merged:
            output = linear(input)
            return output
        is_plain = _is_plain(linear)
        if is_plain:
            checks.of_linear("input", input, linear.weight)
        if isinstance(linear, nn.Conv2d):
            checks.channels("input", input, u)
            output = linear(apply(u, input.movedim(-3, -1), method=self.method).movedim(-1, -3))
        else:
            checks.vectors("input", input, u, len(u))
            if is_plain and isinstance(linear, nn.Linear) and can_fuse(u, input, linear.weight, linear.bias):
                output = adapted_linear(u, input, linear.weight, linear.bias, self.method)
            else:
                output = linear(apply(u, input, method=self.method))
        return output

    def extra_repr(self) -> str:
        """Show sizes, and whether the weight contains W."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, num_reflections={self.reflections.shape[1]}, merged={self.merged}"

    @property
    def weight(self) -> Tensor:
        """The weight of layer and reflections together."""
        weight: Tensor = self.linear.weight
        return weight if self.merged else self._turned(transpose=True)

    @property
    def bias(self) -> Tensor | None:
        """The bias of ``linear``."""
        bias: Tensor | None = self.linear.bias
        return bias

    @property
    def in_features(self) -> int:
        """Width of the input."""
        return _sizes(self.linear)[1]

    @property
    def out_features(self) -> int:
        """Width of the output."""
        return _sizes(self.linear)[0]

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Register a parameter; "weight" or "bias" becomes the layer's, for example when embeddings are tied."""
        if name in ("weight", "bias"):
            self._require(merged=False)
            setattr(self.linear, name, param)
        else:
            super().register_parameter(name, param)

    def merge(self) -> Any:
        """Multiply W into the layer's weight, and return the layer, which then has the same results by itself.

        The weight changes in place, so an embedding tied to an output layer changes as well. To prevent this, copy the
        layer's weight first: ``linear.weight = nn.Parameter(linear.weight.detach().clone())``.

        Raises
        ------
        RuntimeError
            W is already merged, the weight is computed from other parameters, as by ``weight_norm``, or it is
            quantized and cannot be written.
        """
        self._require(merged=False)
        self._turn_weight(transpose=True)
        self.merged = True
        return self.linear

    def unmerge(self) -> None:
        """Take W out of the layer's weight again, which restores it to rounding."""
        self._require(merged=True)
        self._turn_weight(transpose=False)
        self.merged = False

    def _turn_weight(self, *, transpose: bool) -> None:
        linear = self.linear
        tensors = *linear.named_parameters(recurse=False), *linear.named_buffers(recurse=False)
        if "weight" not in dict(tensors):
            raise RuntimeError(
                "the layer's weight is parametrized, and a computed weight cannot be multiplied by W: "
                "remove its parametrizations first"
            )
        weight = linear.weight
        try:
            with torch.no_grad():
                weight.copy_(self._turned(transpose=transpose))
        except (NotImplementedError, TypeError) as error:
            raise RuntimeError(
                f"a weight of the kind {type(weight.data).__name__} and dtype {weight.dtype} cannot be multiplied by W "
                "in its place: merge before it is quantized"
            ) from error

    def _turned(self, *, transpose: bool) -> Tensor:
        """Multiply the weight by W, or by its inverse."""
        weight: Tensor = self.linear.weight
        by_rows = weight.mT if _is_transposed(self.linear) else weight.flatten(1)
        turned = apply(Columns(self.reflections, is_adjoint=transpose), by_rows, method=self.method)
        return turned.mT if _is_transposed(self.linear) else turned.reshape(weight.shape)

    def _require(self, *, merged: bool) -> None:
        if self.merged != merged:
            state = "merged into the layer's weight" if self.merged else "not merged into the layer's weight"
            raise RuntimeError(f"the adapter is {state}")

    def get_extra_state(self) -> Tensor:
        """Store whether the weight contains W, as a tensor because safetensors stores nothing else."""
        return torch.tensor(self.merged, device="cpu")

    def set_extra_state(self, state: Tensor | dict[str, bool]) -> None:
        """Read whether the weight contains W; older state dicts hold a dictionary."""
        self.merged = _tells_merged(state)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Argument) -> None:
        reason = self._why_not(state_dict, prefix)
        if reason is None:
            super()._load_from_state_dict(state_dict, prefix, *others)
        else:
            *_, messages = others
            messages.append(f"{prefix or 'the adapter'} {reason}")

    def _why_not(self, state_dict: Any, prefix: str) -> str | None:
        """Return why a state dict cannot be loaded: complex numbers, or unknown whether the weight contains W."""
        for key in (f"{prefix}reflections", f"{prefix}linear.weight", f"{prefix}linear.bias"):
            if key in state_dict and state_dict[key].is_complex():
                return f"is real, but {key} in the state dict has dtype {state_dict[key].dtype}"
        names = {key.removeprefix(prefix).partition(".")[0] for key in state_dict if key.startswith(prefix)}
        merged = self.merged or _tells_merged(state_dict.get(f"{prefix}_extra_state", False))
        if merged and "linear" not in names and names & {"reflections", "_extra_state"}:
            return (
                "is merged, here or in the state dict, which lacks the layer's weight: unmerge before reflections are "
                "saved or loaded by themselves"
            )
        if self.merged and f"{prefix}linear.weight" in state_dict and "_extra_state" not in names:
            return "is merged, and the state dict does not tell whether its weight is: unmerge before it is loaded"
        return None


def _tells_merged(state: Tensor | dict[str, bool] | bool) -> bool:
    return bool(state["merged"] if isinstance(state, dict) else state)


def is_adaptable(module: nn.Module) -> bool:
    """Return whether an adapter knows this kind of layer."""
    return isinstance(module, (nn.Linear, nn.Conv2d)) or _is_transposed(module)


def _is_transposed(module: nn.Module) -> bool:
    """Return whether this is ``Conv1D`` of transformers, whose weight is ``(in_features, out_features)``."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _sizes(linear: Any) -> tuple[int, int]:
    """Return the numbers of outputs and inputs."""
    if _is_transposed(linear):
        inputs, outputs = linear.weight.shape
        return outputs, inputs
    if isinstance(linear, nn.Conv2d):
        return linear.out_channels, linear.in_channels
    return linear.out_features, linear.in_features


def _is_plain(linear: nn.Module) -> bool:
    """Return whether the layer only computes its function: no subclass, no hook, no replaced ``forward``."""
    is_known = type(linear) in (nn.Linear, nn.Conv2d) or _is_transposed(linear)
    if not is_known or "forward" in linear.__dict__ or undocumented.has_hooks(linear):
        return False
    return type(linear.weight) in (Tensor, nn.Parameter)  # quantised weights multiply in their own way
