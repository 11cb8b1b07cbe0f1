"""Run checks in separate processes with a time limit; none passes without evidence.

A kernel that hangs or corrupts the memory of its process then fails only its own check. A child writes its findings to
a file. A check has passed only if its child exited normally and the file is complete and belongs to this check.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]
"""A row of the report, an object of JSON."""

LIMIT = 60.0
"""Seconds that a check may take, its imports and compilations included."""
_LAST_WORDS = 2000


class Check(NamedTuple):
    """A check to be run."""

    name: str
    command: Sequence[str]
    """A program that takes three more arguments: the name, a word to repeat, and the file for its result."""
    limit: float = LIMIT


def worker(kind: str) -> list[str]:
    """Return the command that runs one of the package's own checks."""
    return [sys.executable, "-m", "householder.cli.gpu_check.worker", kind]


def run(jobs: Iterable[Check]) -> Iterator[Row]:
    """Run the jobs one after the other; yield ``{"check", "verdict", "detail", "seconds", ...}`` for each.

    Verdicts are "passed", "failed", "crashed", "hung" and "no evidence".
    """
    for job in jobs:
        begun = time.monotonic()
        row = _run(job)
        yield {"check": job.name, **row, "seconds": round(time.monotonic() - begun, 1)}


def _run(job: Check) -> Row:
    word = secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as folder:
        result, output = Path(folder) / "found.json", Path(folder) / "output.txt"
        with output.open("wb") as stream:
            child = subprocess.Popen(
                [*job.command, job.name, word, str(result)],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = child.wait(job.limit)
            except subprocess.TimeoutExpired:
                return {"verdict": "hung", "detail": f"no end after {job.limit:g} s", "output": _last_words(output)}
            finally:  # also after Ctrl-C, which does not reach the child
                if child.poll() is None:
                    _end(child)
        if status:
            what = _signal(-status) if status < 0 else f"exit status {status}"
            return {"verdict": "crashed", "detail": what, "output": _last_words(output)}
        row = _evidence(result, job.name, word)
        return row if row["verdict"] == "passed" else row | {"output": _last_words(output)}


def _evidence(result: Path, name: str, word: str) -> Row:
    """Read the result of a child that ended normally, if it belongs to this check of this run."""
    try:
        row = json.loads(result.read_text())
        belongs = row["check"] == name and row["word"] == word and type(row["passed"]) is bool
        detail = row["detail"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return {"verdict": "no evidence", "detail": f"it ended well but left no result: {type(error).__name__}"}
    if not belongs or not isinstance(detail, str):
        return {"verdict": "no evidence", "detail": "it ended well but its result is about something else"}
    rest = {key: value for key, value in row.items() if key not in ("check", "word", "passed", "detail")}
    return {"verdict": "passed" if row["passed"] else "failed", "detail": detail, **rest}


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child and all that it has started; a process that waits in the driver may take a while to end."""
    if hasattr(os, "killpg"):
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()
    with suppress(subprocess.TimeoutExpired):
        child.wait(10)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_words(output: Path) -> str:
    return output.read_bytes()[-_LAST_WORDS:].decode(errors="replace").strip()
