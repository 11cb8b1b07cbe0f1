"""Files of a run: written whole or not at all, inside the run's directory, by one process at a time."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from householder.experiments.errors import UserError

LOCK = "run.lock"
HOLDER = "run.holder"
"""The files that lock a run's directory, and that say which process holds the lock."""
_WAIT_SECONDS = 2.0


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file, which then replaces ``path``.

    The file is complete on disk before it takes its name, so a kill leaves the old one. Temporary names differ between
    processes and keep the suffix.
    """
    temporary = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def inside(directory: Path, name: str) -> Path:
    """Return the path of a name in a directory.

    Raises
    ------
    UserError
        A link leads out of the directory.
    """
    place = directory / name
    if not place.resolve().is_relative_to(directory.resolve()):
        raise UserError(f"{place} is outside {directory}: nothing is written there")
    return place


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Hold a directory for this process; the kernel releases it when the process dies.

    Raises
    ------
    UserError
        Another process holds it; the message says which.
    """
    lock = FileLock(inside(directory, LOCK))
    try:
        lock.acquire(timeout=_WAIT_SECONDS)
    except Timeout:
        raise UserError(f"{directory} is in use by {_holder(directory)}") from None
    except OSError as error:
        raise UserError(f"cannot write to {directory}: {error.strerror}") from error
    try:
        write_text(inside(directory, HOLDER), json.dumps({"process": os.getpid(), "host": socket.gethostname()}))
        yield
    finally:
        (directory / HOLDER).unlink(missing_ok=True)
        lock.release()  # keep the file: processes that wait now and those that come later must lock the same one


def _holder(directory: Path) -> str:
    try:
        holder = json.loads((directory / HOLDER).read_text(encoding="utf-8"))
        return f"process {holder['process']} on {holder['host']}"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"
