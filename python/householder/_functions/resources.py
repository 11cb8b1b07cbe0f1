"""Threads and memory of the process."""

from householder import _core
from householder._base import validate


def set_num_threads(k: int) -> None:
    """Let every later call use up to k threads (default: all processors). Results are bitwise equal for any k.

    With ``householder.torch``, call ``torch.set_num_threads`` instead; it takes effect with its next call on the CPU.

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
    _core.set_num_threads(validate.integer("k", k, 1, 1024))


def release_memory() -> None:
    """Return the memory that is held for later calls to the system.

    This is at most 128 MiB of workspaces.

    Every other thread still keeps its own small blocks: at most 32, each below 4 KiB.

    Examples
    --------
    >>> import householder as hh
    >>> hh.release_memory()
    """
    _core.release_memory()


def get_num_threads() -> int:
    """Return the number of threads that a call may use.

    Examples
    --------
    >>> import householder as hh
    >>> hh.get_num_threads() >= 1
    True
    """
    return _core.get_num_threads()
