"""Threads and memory of the process."""

from collections.abc import Callable

from householder import _cpu, _validate

on_release: list[Callable[[], None]] = []
"""What else gives memory back: torch's side adds itself when it is imported."""


def set_num_threads(k: int) -> None:
    """Let every later call use up to k threads (default: all processors). Results do not depend on it, bit for bit.

    With ``householder.torch``, set ``torch.set_num_threads`` instead: its next call on the CPU hands a new number on.

    Raises
    ------
    TypeError, ValueError
        k is not an integer from 1 to 1024.

    Examples
    --------
    >>> import householder as hh
    >>> hh.set_num_threads(2)
    >>> hh.get_num_threads()
    2
    """
    _cpu.set_num_threads(_validate.integer("k", k, 1, 1024))


def release_memory() -> None:
    """Give the memory that is kept for the next calls back to the system.

    That is at most 128 MiB of workspaces, and as much that large results of torch have left.

    What other threads keep for themselves, at most 32 blocks below 4 KiB each, stays.

    Examples
    --------
    >>> import householder as hh
    >>> hh.release_memory()
    """
    _cpu.release_memory()
    for release in on_release:
        release()


def get_num_threads() -> int:
    """How many threads a call may use.

    Examples
    --------
    >>> import householder as hh
    >>> hh.get_num_threads() >= 1
    True
    """
    return _cpu.get_num_threads()
