"""The order of an operator's arguments, in schemas and calls, from the ``NamedTuple`` classes of its operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from householder.torch._ops.operation import BackwardArguments, Inputs, Kind, OperatorArgument, Options, Results

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from householder.torch._ops.operation import Operation

_IN_SCHEMA = {"T": "Tensor", "T | None": "Tensor?", "Tensor | None": "Tensor?"}
"""Types of fields in schemas. Inputs are generic in T, and other types have the same names."""


class Signature:
    """The arguments of both operators, flat and by their names."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.inputs = len(operation.inputs_type._fields)
        self.saved = len(operation.saved_type._fields) - 1
        self.results = len(operation.grads_type._fields)
        self.saves = self.saved > 0
        self.options = len(operation.options_type._fields)

    def schemas(self) -> tuple[str, str]:
        """Return the schemas of the forward and of the backward operator."""
        name, inputs = self.operation.name, _declared(self.operation.inputs_type)
        options = _declared(self.operation.options_type)
        saved = _declared(self.operation.saved_type)[: self.saved]
        grads = _declared(self.operation.grads_type, "grad_")
        forward = [*inputs, *["bool save"] * self.saves, *options]
        backward = [*inputs, *saved, *grads, "bool[] needs_grad", *options]
        return (
            _schema(name, forward, self.results + self.saves),
            _schema(f"{name}_backward", backward, self.operation.differentiable),
        )

    def join_forward(self, inputs: Inputs, save: bool, options: Options) -> tuple[OperatorArgument, ...]:
        """Return the flat arguments of the forward operator."""
        return (*inputs, save, *options) if self.saves else (*inputs, *options)

    def split_forward(self, arguments: Sequence[OperatorArgument]) -> tuple[Inputs, bool, Options]:
        """Return the inputs, whether to save, and the options."""
        of, last = self.operation, len(arguments) - self.options
        save = arguments[self.inputs] if self.saves else False
        return of.inputs_type(*arguments[: self.inputs]), save, of.options_type(*arguments[last:])

    def join_backward(self, arguments: BackwardArguments) -> tuple[OperatorArgument, ...]:
        """Return the flat arguments of the backward operator."""
        inputs, saved, grads, needs_grad, options = arguments
        needed = list(map(bool, needs_grad[: self.operation.differentiable]))
        return (*inputs, *saved[: self.saved], *grads, needed, *options)

    def split_backward(self, arguments: Sequence[OperatorArgument]) -> BackwardArguments:
        """Name the arguments of the backward operator, or a flag, or the mapped axis, of each."""
        of, after, last = self.operation, self.inputs + self.saved, len(arguments) - self.options
        needed = arguments[last - 1] or ()
        return BackwardArguments(
            of.inputs_type(*arguments[: self.inputs]),
            of.saved_type(*arguments[self.inputs : after], native=None),
            of.grads_type(*arguments[after : last - 1]),
            of.inputs_type(*needed, *[False] * (self.inputs - len(needed))),
            of.options_type(*arguments[last:]),
        )

    def split_results(self, returned: Results) -> tuple[Results, Tensor | None]:
        """Split what the forward operator returns into results and the tensor of what is saved."""
        if not self.saves:
            return returned, None
        *results, tensor = returned
        return (tuple(results) if self.results > 1 else results[0]), tensor


def _schema(name: str, arguments: Sequence[str], count: int) -> str:
    """Return the schema of an operator that returns ``count`` tensors."""
    return f"{name}({', '.join(arguments)}) -> ({', '.join(['Tensor'] * count)})"


def _declared(kind: Kind, prefix: str = "") -> list[str]:
    """Return the fields of a ``NamedTuple`` class as a schema declares them."""
    written = {name: getattr(field, "__forward_arg__", field) for name, field in kind.__annotations__.items()}
    return [f"{_IN_SCHEMA.get(text, text)} {prefix}{name}" for name, text in written.items()]
