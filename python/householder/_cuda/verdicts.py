"""Which kernels a device can use: each kernel is tried once on each device, and not again after it failed.

A trial compiles the kernel, launches it on a small problem and checks the result. A failure is reported once. Callers
then use matrix products, another kernel or torch operations.
"""

import threading
from collections.abc import Callable
from functools import partial

from householder._base import notices
from householder._base.types import AnyFunction
from householder._cuda import kernels

_NO_VERDICT = (2, 214, 700, 702, 710, 714, 715, 716, 717, 718, 719)
"""Statuses of the driver that say nothing about a kernel: no memory, or a context that is lost for every kernel."""

_verdicts: dict[tuple[int, str], str] = {}
_on_trial: set[tuple[int, str]] = set()
_lock = threading.RLock()


class UnusableError(RuntimeError):
    """A kernel cannot be used on a device; the message says why."""


class WrongError(ArithmeticError):
    """A kernel computed a wrong result."""


def require(index: int, name: str, trial: AnyFunction, *arguments: object) -> None:
    """Make sure that a kernel, by its name expression, can be used on a device; the first call for it runs the trial.

    Raises
    ------
    UnusableError
        It cannot be compiled or launched here, or its results were wrong.
    CaptureError
        It has not been tried yet, and a CUDA graph is being captured.
    """
    verdict = _verdicts.get((index, name))
    if verdict is None:
        verdict = _tried((index, name), partial(trial, *arguments))
    if verdict:
        raise UnusableError(verdict)


def usable(index: int, name: str, trial: AnyFunction, *arguments: object) -> bool:
    """Return whether ``require`` succeeds."""
    try:
        require(index, name, trial, *arguments)
    except UnusableError:
        return False
    return True


def _tried(key: tuple[int, str], trial: Callable[[], None]) -> str:
    """Return the reason why a kernel cannot be used, empty if it can. A trial may use the kernel that it tests."""
    with _lock:
        if key in _on_trial:
            return ""
        if key not in _verdicts:
            kernels.refuse_capture(key[1])
            _on_trial.add(key)
            try:
                _verdicts[key] = _verdict(key, trial)
            finally:
                _on_trial.discard(key)
        return _verdicts[key]


def _verdict(key: tuple[int, str], trial: Callable[[], None]) -> str:
    index, name = key
    try:
        trial()
    except WrongError as error:
        reason = f"the kernel {name} gives wrong results ({error}): please report this with the output of gpu-check"
    except Exception as error:
        if getattr(error, "status", None) in _NO_VERDICT:
            raise
        reason = f"a kernel cannot be used: {type(error).__name__}: {error}".partition("\n")[0]
    else:
        return ""
    notices.warn_once(f"CUDA device {index}", reason)
    return reason
