"""Devices on which a call has kernels, and the launch of those of CUDA."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from householder._base import notices
from householder.torch._base import autocast, undocumented
from householder.torch._base.undocumented import has_storage
from householder.torch._ops.route import COMPILED, NATIVE, TRANSFORMED, Route

if TYPE_CHECKING:
    from householder._base.types import AnyFunction
    from householder.torch._ops.operation import Inputs, Operation, OperatorArgument, Options, Results


def are_plain(*tensors: Tensor | None) -> bool:
    """Return whether tensors have memory, and no subclass overrides operators, as distributed tensors do."""
    default = Tensor.__torch_dispatch__
    return all(t is None or (type(t).__torch_dispatch__ is default and has_storage(t)) for t in tensors)


def kind_of(device: torch.device) -> str:
    """Return the type of a device."""
    return device.type


def lacks_kernel(operation: Operation, inputs: Inputs, options: Options, current: Route) -> bool:
    """Return whether no kernel computes a call, and say so once for each device.

    The answer is False for a compiled call if some device has a kernel for it: the graph keeps the operator.
    """
    device: torch.device = inputs[0].device
    kind = kind_of(device)
    if kind == "cpu":
        return False
    would_unroll = operation.is_loop and current in (COMPILED, TRANSFORMED)
    if not would_unroll and (reason := operation.reason_without_kernel(inputs, options)):
        say_without_kernels(device, reason)
        return True
    if current not in NATIVE or kind == "meta":
        return False
    if kind == "cuda":
        return not cuda_has_kernels(device)
    say_without_kernels(device, "there are kernels for the CPU and for CUDA only")
    return True


@undocumented.constant
def say_without_kernels(device: torch.device, reason: str) -> None:
    """Say once for each device that a call has no kernels there."""
    if device.type != "meta" and notices.kernel_mode() != "off":
        notices.warn_once(str(device), reason)


# What follows imports the modules of CUDA with the first tensor there, because most processes have none.


def cuda_has_kernels(device: torch.device) -> bool:
    """Return whether a CUDA device can use kernels at all, and say why if it cannot."""
    from householder._cuda import kernels

    if notices.kernel_mode() == "off":
        return False
    if torch.version.hip is not None:
        notices.warn_once(str(device), "there are kernels for CUDA but not for ROCm")
        return False
    if reason := kernels.missing():
        notices.warn_once(str(device), reason)
    return not reason


def launch(method: AnyFunction, inputs: Inputs, *arguments: OperatorArgument) -> Results:
    """Call a method that launches kernels: on torch's stream, below autograd and autocast.

    Return ``NotImplemented`` where kernels cannot be used.
    """
    from householder._cuda.library import library_of
    from householder._cuda.verdicts import UnusableError

    first: Tensor = inputs[0]
    if cuda_has_kernels(first.device):
        with suppress(UnusableError), torch.no_grad(), autocast.off(first.device), library_of(first).current(first):
            return method(inputs, *arguments)
    return NotImplemented
