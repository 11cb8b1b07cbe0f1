"""Standard output: it takes texts of any alphabet, and a failure to write it is told from one to write a file."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from householder.cli.errors import UserError


@contextmanager
def standard_output() -> Iterator[None]:
    """Let :data:`sys.stdout` raise :class:`UserError` in the ``with`` block if it cannot be written.

    Raises
    ------
    UserError
        The device is full, or refuses to write for another reason.
    BrokenPipeError
        The reader has closed it.
    """
    _open_closed_streams()
    before = sys.stdout
    if type(before) is not io.TextIOWrapper:  # the stream of a notebook, or of a test
        escape_what_is_lacking(before)
        yield
        return
    sys.stdout = stdout = _StandardOutput(
        before.buffer,
        before.encoding,
        "backslashreplace",
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
    try:
        try:
            yield
        finally:
            stdout.flush()
    except (BrokenPipeError, OutputError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())  # Python flushes it once more when it exits
        raise
    finally:
        sys.stdout = before
        stdout.detach()


def escape_what_is_lacking(stream: TextIO) -> None:
    r"""Let a stream write ``\u2122`` for a character that its encoding lacks, where it can."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


class OutputError(UserError):
    """Standard output cannot be written."""


class _StandardOutput(io.TextIOWrapper):
    def write(self, text: str) -> int:
        with _told_from_files():
            return super().write(text)

    def flush(self) -> None:
        with _told_from_files():
            super().flush()


@contextmanager
def _told_from_files() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write standard output: {error.strerror or error}") from error


def _open_closed_streams() -> None:
    """Open the null device in place of standard streams that are closed, or files would take their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
