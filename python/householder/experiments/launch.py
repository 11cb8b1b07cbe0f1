"""Several models trained side by side, one process each."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Event
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from householder.experiments.errors import UserError
from householder.experiments.experiment import Experiment
from householder.experiments.outcome import Outcome, Progress
from householder.experiments.processes import process_context

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess, SpawnProcess

LOG = "log.txt"
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Failure:
    """Why a model could not be trained, in one line."""

    message: str


Result = Outcome | Failure


def launch(
    experiment: Experiment, directory: Path, jobs: int, report: Callable[[str, Progress], None]
) -> dict[str, Result]:
    """Train every model of an experiment, ``jobs`` at a time.

    The first Ctrl-C (or SIGTERM) lets each process write a checkpoint and end; the second ends them at once.

    Parameters
    ----------
    experiment : Experiment
        What to do.
    directory : Path
        Each model's checkpoints and logs go into a folder of its name here.
    jobs : int
        Number of processes at a time.
    report : callable
        Called with a model's name and progress.

    Returns
    -------
    dict of str to Outcome or Failure
        The result of each model that was started.
    """
    context = process_context()
    stop = context.Event()
    waiting = list(experiment.models)
    running: dict[Connection, tuple[str, ForkServerProcess | SpawnProcess]] = {}
    results: dict[str, Result] = {}
    with _interrupts() as interrupts:
        try:
            while running or (waiting and not interrupts):
                while waiting and len(running) < jobs and not interrupts:
                    name = waiting.pop(0)
                    receiver, sender = context.Pipe(duplex=False)
                    process = context.Process(
                        target=_work, args=(experiment, name, directory / name, sender, stop), daemon=True
                    )
                    process.start()
                    sender.close()
                    running[receiver] = name, process
                if interrupts:
                    stop.set()
                if len(interrupts) > 1:
                    raise KeyboardInterrupt
                for ready in wait(list(running), timeout=_POLL_SECONDS):
                    assert isinstance(ready, Connection)
                    name, process = running[ready]
                    try:
                        message = ready.recv()
                    except EOFError:
                        process.join()
                        del running[ready]
                        results.setdefault(name, Failure(f"{name}: its process died (exit code {process.exitcode})"))
                        continue
                    if isinstance(message, Progress):
                        report(name, message)
                    else:
                        results[name] = message
        finally:
            for _, process in running.values():
                process.kill()
    return {name: results[name] for name in experiment.models if name in results}


def _work(experiment: Experiment, name: str, directory: Path, messages: Connection, stop: Event) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach every process; the parent decides
        signal.signal(number, signal.SIG_IGN)
    directory.mkdir(parents=True, exist_ok=True)
    _redirect_output(directory / LOG)
    result: Result
    try:
        from householder.experiments.training import Run  # slow to load, and of no use to the parent

        result = Run(experiment, name, directory).train(messages.send, stop.is_set)
    except BrokenPipeError:  # the parent is gone
        return
    except UserError as error:
        result = Failure(str(error))
    except BaseException as error:  # what is not foreseen goes to the log in full
        summary = str(error).splitlines()[0] if str(error) else "no message"
        messages.send(Failure(f"{name}: {type(error).__name__}: {summary} (see {directory / LOG})"))
        raise
    messages.send(result)


def _redirect_output(path: Path) -> None:
    """Send what libraries print, also below Python, to a file: the terminal belongs to the progress bars."""
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("a", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Collect the interrupts that arrive meanwhile."""
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
