"""Checks of the arguments of ``householder.torch``: types, devices and shapes; each message says what is expected."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import torch
from torch import Tensor, nn

from householder._base import sequences, validate
from householder._base.spec import of_phases, of_tau
from householder.torch._base import autocast
from householder.torch._base.dtypes import COMPUTE_TYPE, CORE_NAME, HALF_TYPES
from householder.torch._base.layout import allocated

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from householder._base.types import Argument, ArrayLike

_KNOWN = ("builtins", "torch", "householder")
"""Packages whose types messages name without the package."""
ArgumentsT = ParamSpec("ArgumentsT")


class SizeError(ValueError, RuntimeError):
    """A shape that does not fit; torch's modules raise either of these types."""


class DtypeError(TypeError, ValueError, RuntimeError):
    """A dtype or device that does not fit; torch's modules raise any of these types."""


def kind_of(value: Argument) -> str:
    """Return the type of a value as messages say it: "None", "a list", "a numpy.ndarray", "an LSTM"."""
    return validate.kind_of(value, _KNOWN)


def module(name: str, value: Argument, expected: str = "a torch.nn.Module", kind: type[nn.Module] = nn.Module) -> None:
    """Check that this is a module of a kind."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {kind_of(value)}, expected {expected}")


def constructor(init: Callable[Concatenate[Any, ArgumentsT], None]) -> Callable[Concatenate[Any, ArgumentsT], None]:
    """Improve the errors of calls that do not fit ``__init__``: they name the class called and a similar argument.

    Python names the class that defines ``__init__``, which may be a base that users do not know.
    """
    signature = inspect.signature(init)

    @wraps(init)
    def __init__(self: Any, /, *arguments: ArgumentsT.args, **options: ArgumentsT.kwargs) -> None:  # noqa: N807
        try:
            init(self, *arguments, **options)
        except TypeError:
            try:
                signature.bind(self, *arguments, **options)
            except TypeError as unfit:
                raise TypeError(f"{type(self).__name__}: {unfit}{_meant(options, signature.parameters)}") from None
            raise

    return __init__


def _meant(options: Iterable[str], known: Collection[str]) -> str:
    """Return a hint at an argument whose name is like that of an unknown one."""
    unknown = next((name for name in options if name not in known), "")
    near = get_close_matches(unknown, known, 1)
    return f", did you mean {near[0]!r}?" if near else ""


def operands(u: ArrayLike, of: str = "u", /, **others: Argument) -> torch.dtype:
    """Check that the tensors can be computed with; return the dtype to compute in.

    All share the dtype of ``u``, which messages call ``of``. Half types may come with a float32 ``u``, and float32
    with a half ``u`` under autocast. A half ``u`` is computed with in float32.
    """
    tensor(of, u)
    dtype, device = u.dtype, u.device
    compute = COMPUTE_TYPE.get(dtype)
    if compute is None:
        raise TypeError(f"{of} has dtype {dtype}, expected one of {', '.join(map(str, COMPUTE_TYPE))}")
    for name, other in others.items():
        if other is None:
            continue
        tensor(name, other)
        if other.dtype is not dtype or other.device != device:
            _mixed(name, other, of, u)
    return compute


def of_layer(parameter: Tensor, **values: Argument) -> None:
    """Check that a layer with this parameter can compute with arguments, which may be None."""
    for name, value in values.items():
        if value is not None:
            _of_layer(name, value, parameter)


def _of_layer(name: str, value: Argument, parameter: Tensor) -> None:
    tensor(name, value)
    if value.dtype is not parameter.dtype or value.device != parameter.device:
        _mixed(name, value, "the layer", parameter)


def vectors(name: str, value: Argument, parameter: Tensor, size: int) -> None:
    """Check vectors ``(..., size)`` that a layer with this parameter multiplies."""
    _of_layer(name, value, parameter)
    last_axis(name, value, size)


def last_axis(name: str, value: Tensor, size: int) -> None:
    """Check the width of vectors ``(..., size)``."""
    if not value.dim() or value.shape[-1] != size:
        raise SizeError(f"{name} has shape {tuple(value.shape)}, expected a last axis of {size}")


def channels(name: str, value: Argument, u: Tensor) -> None:
    """Check images ``(..., n, height, width)`` whose channels ``u (n, m)`` multiplies."""
    _of_layer(name, value, u)
    if value.dim() < 3 or value.shape[-3] != len(u):
        raise ValueError(f"{name} has shape {tuple(value.shape)}, expected (..., {len(u)}, height, width)")


def of_linear(name: str, value: Argument, weight: Tensor) -> None:
    """Check that ``torch.nn.Linear`` with this weight takes a tensor: without autocast, of its dtype only."""
    of_device(name, value, weight)
    if value.dtype is not weight.dtype and not autocast.is_on(value.device):
        raise DtypeError(f"{name} has dtype {value.dtype} but the layer has dtype {weight.dtype}")


def of_device(name: str, value: Argument, parameter: Tensor) -> None:
    """Check that this is a tensor where a layer's parameter is."""
    tensor(name, value)
    if value.device != parameter.device:
        raise DtypeError(f"{name} is on {value.device} but the layer is on {parameter.device}")


def _mixed(name: str, value: Tensor, whose: str, like: Tensor) -> None:
    """Refuse other devices, and dtypes that may not be mixed."""
    if value.device != like.device:
        raise DtypeError(f"{name} is on {value.device} but {whose} is on {like.device}")
    if value.dtype is not like.dtype and not _may_mix(like.dtype, value.dtype, like.device):
        raise DtypeError(f"{name} has dtype {value.dtype} but {whose} has dtype {like.dtype}")


def _may_mix(dtype: torch.dtype, other: torch.dtype, device: torch.device) -> bool:
    if dtype in HALF_TYPES and autocast.is_on(device):
        return other is torch.float32 or other in HALF_TYPES
    return dtype is torch.float32 and other in HALF_TYPES


def tensor(name: str, value: Argument) -> None:
    """Check that this is a tensor with strides."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is {kind_of(value)}, expected a torch.Tensor")
    if value.is_nested:
        raise TypeError(f"{name} is a nested tensor, expected torch.strided: use torch.nn.utils.rnn.pack_sequence")
    if value.layout is not torch.strided:
        raise TypeError(f"{name} has layout {value.layout}, expected torch.strided: call to_dense()")


def computable(name: str, value: Argument) -> None:
    """Check that this is a tensor of a type that the core computes in."""
    tensor(name, value)
    if value.dtype not in CORE_NAME:
        raise TypeError(f"{name} has dtype {value.dtype}, expected one of {', '.join(map(str, CORE_NAME))}")


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert if the dtype differs."""
    return tensor if tensor.dtype is dtype else allocated(tensor).to(dtype)


def columns(u: Tensor, columns: Argument, tau: ArrayLike, phases: ArrayLike, h: ArrayLike = None) -> tuple[int, int]:
    """Check columns of this form, and ``tau (..., m)`` or phases if there are any; return ``n, m``."""
    n, m = validate.reflections(u, columns, tau is not None, h)
    if tau is not None:
        validate.not_both(phases, tau)
        if tau.dtype is not u.dtype:
            raise DtypeError(f"tau has dtype {tau.dtype} but u has dtype {u.dtype}")
        shape("tau", tau, of_tau(u.shape))
    if phases is not None:
        matrix_phases(phases, u, n)
    return n, m


def matrix_phases(value: Argument, u: Tensor, n: int) -> None:
    """Check real ``theta (n,)``, or a row for each of the matrices ``u (..., n, m)``, of a complex ``u``."""
    tensor("phases", value)
    validate.takes_phases(u.dtype)
    if value.dtype != u.real.dtype or value.device != u.device:
        raise TypeError(f"phases are {value.dtype} on {value.device} but u is {u.dtype} on {u.device}")
    shape("phases", value, of_phases(u.shape[:-2], n, value.dim()))


def shape(name: str, value: Argument, expected: tuple[int, ...]) -> None:
    """Check that this is None or a tensor of this shape."""
    if value is None:
        return
    tensor(name, value)
    if tuple(value.shape) != expected:
        raise SizeError(f"{name} has shape {tuple(value.shape)}, expected {expected}")


def batch_sizes(sizes: ArrayLike, x: Tensor) -> tuple[int, int]:
    """Check the batch sizes of packed sequences with rows ``x``; return the numbers of steps and of sequences."""
    tensor("batch_sizes", sizes)
    if sizes.dtype != torch.int64:
        raise TypeError(f"batch_sizes has dtype {sizes.dtype}, expected torch.int64")
    if sizes.dim() != 1 or sizes.device.type != "cpu" or not len(sizes):
        raise ValueError(
            f"batch_sizes is a {sizes.dtype} tensor of shape {tuple(sizes.shape)} on {sizes.device}, "
            "expected a non-empty 1-D int64 tensor on the CPU, as in a PackedSequence"
        )
    if sizes[-1] < 1 or (sizes[1:] > sizes[:-1]).any():
        raise ValueError(f"batch_sizes is {sizes.tolist()}, expected positive numbers that never increase")
    if sizes[0] > len(x) or sizes.sum() != len(x):  # sizes up to the rows cannot overflow the sum
        sequences.rows(tuple(x.shape), sum(sizes.tolist()))
    return len(sizes), int(sizes[0])


def nonlinearity_bias(bias: ArrayLike, u: Tensor, expected: tuple[int, ...]) -> None:
    """Check that this is None, or a real tensor of this shape in the precision of ``u``."""
    if bias is not None:
        tensor("nonlinearity_bias", bias)
        real = u.real.dtype if u.is_complex() else u.dtype
        if bias.dtype != real or bias.device != u.device:
            raise TypeError(f"nonlinearity_bias is {bias.dtype} on {bias.device} but u is {u.dtype} on {u.device}")
        shape("nonlinearity_bias", bias, expected)
