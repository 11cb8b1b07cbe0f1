"""Files that a run writes: whole or not at all, never through a link, and by one process at a time."""

import csv
import json
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from householder.cli.errors import UserError, system_error
from householder_experiments.readers import read_json, regular

LOCK = "run.lock"
HOLDER = "run.holder"
"""The files that lock a run's directory, and that say which process holds the lock."""
_WAIT_SECONDS = 2.0


def write_whole(path: Path, write: Callable[[BinaryIO], object], previous: Path | None = None) -> None:
    """Let ``write`` fill a new file, which then replaces ``path``; what it replaces is kept as ``previous``.

    The file is complete on disk before it takes its name, so a kill or a full disk leaves the old one. Its name until
    then is random, and nothing of that name may exist.

    Raises
    ------
    UserError
        The system refuses to write.
    """
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(8)}{path.suffix}")
    try:
        try:
            with temporary.open("xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            if previous is not None and path.exists():
                path.replace(previous)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except Exception as error:
        refusal = system_error(error) or error
        if not isinstance(refusal, OSError):
            raise
        raise UserError(f"cannot write {path}: {refusal.strerror or refusal}") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file whole."""
    write_whole(path, lambda file: file.write(text.encode()))


def table(rows: Iterable[Mapping[str, Any]], header: bool = True) -> str:
    """Return dictionaries with the same keys as the lines of a CSV file."""
    text = StringIO(newline="")
    for number, row in enumerate(rows):
        writer = csv.DictWriter(text, row)
        if header and number == 0:
            writer.writeheader()
        writer.writerow(row)
    return text.getvalue()


@contextmanager
def appended(path: Path) -> Iterator[BinaryIO]:
    """Open a file to add to its end.

    Raises
    ------
    UserError
        The path is a link or anything else than a regular file, or the system refuses to write.
    """
    try:
        with open(path, "ab", opener=_regular_without_links) as file:
            yield file
    except OSError as error:
        reason = "it is a link, and nothing is written through links" if path.is_symlink() else error.strerror or error
        raise UserError(f"cannot write {path}: {reason}") from error


def _regular_without_links(path: str, flags: int) -> int:
    return regular(path, flags | getattr(os, "O_NOFOLLOW", 0))


def inside(directory: Path, name: str) -> Path:
    """Return the path of a name in a directory.

    Raises
    ------
    UserError
        The name, or a folder on the way to it, is a link.
    """
    place = directory / name
    if place.resolve() != directory.resolve() / name:
        raise UserError(f"{place} is a link: nothing is written there")
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
        write_text(directory / HOLDER, json.dumps({"process": os.getpid(), "host": socket.gethostname()}))
        yield
    finally:
        (directory / HOLDER).unlink(missing_ok=True)
        lock.release()  # keep the file: processes that wait now and those that come later must lock the same one


def _holder(directory: Path) -> str:
    try:
        holder = read_json(directory / HOLDER)
        return f"process {holder['process']} on {holder['host']}"
    except (UserError, ValueError, TypeError, KeyError):
        return "another process"
