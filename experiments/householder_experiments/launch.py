"""Several models trained side by side, one process each."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Event
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from householder.cli.errors import UserError, first_line, system_error
from householder_experiments.experiment import Experiment
from householder_experiments.files import appended, held
from householder_experiments.group import Group, free_port
from householder_experiments.outcome import Outcome, Progress
from householder_experiments.own import permitted, permitted_modules
from householder_experiments.processes import process_context

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess, SpawnProcess

LOG = "log.txt"
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Failure:
    """Why a model could not be trained, in one line."""

    message: str


Result = Outcome | Failure


@dataclass(frozen=True)
class Job:
    """One model of an experiment, and the folder of its checkpoints and logs."""

    experiment: Experiment
    model: str
    directory: Path


def launch(
    jobs: Mapping[str, Job], at_a_time: int, report: Callable[[str, Progress], None], group: Group | None = None
) -> dict[str, Result]:
    """Train several models, each in processes of its own.

    The first Ctrl-C (or SIGTERM) lets each process write a checkpoint and end; the second ends them at once.

    Parameters
    ----------
    jobs : dict of str to Job
        What to do, by the name it is reported under.
    at_a_time : int
        Number of models trained at a time.
    report : callable
        Called with a job's name and progress.
    group : Group, optional
        The processes that train each model; by default one.

    Returns
    -------
    dict of str to Outcome or Failure
        The result of each job that was started. Outcomes reach only the command that starts the first process.
    """
    group = group or Group()
    context = process_context()
    stop = context.Event()
    waiting = list(jobs)
    running: dict[Connection, tuple[str, ForkServerProcess | SpawnProcess]] = {}
    results: dict[str, Result] = {}
    with _interrupts() as interrupts:
        try:
            while running or (waiting and not interrupts):
                while waiting and len({name for name, _ in running.values()}) < at_a_time and not interrupts:
                    name = waiting.pop(0)
                    port = free_port() if group.port is None else group.port + list(jobs).index(name)
                    for rank in group.started_here:
                        receiver, sender = context.Pipe(duplex=False)
                        process = context.Process(
                            target=_work,
                            args=(jobs[name], group, rank, port, permitted_modules(), sender, stop),
                            daemon=True,
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
                        if not process.exitcode:
                            continue
                        message = Failure(f"{name}: its process died (exit code {process.exitcode})")
                    if isinstance(message, Progress):
                        report(name, message)
                        continue
                    results.setdefault(name, message)
                    if isinstance(message, Failure):
                        _end(process for other, process in running.values() if other == name)
        finally:
            _end(process for _, process in running.values())
    return {name: results[name] for name in jobs if name in results}


def _work(
    job: Job, group: Group, rank: int, port: int, modules: frozenset[str], messages: Connection, stop: Event
) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach every process; the parent decides
        signal.signal(number, signal.SIG_IGN)
    if group.size > 1:
        os.environ.update(group.environment(rank, port))
    is_first = group.node == 0 and rank == 0
    result: Result
    try:
        _redirect_output(job.directory / LOG)
        from householder_experiments.training import Run  # slow to load, and of no use to the parent

        # The command has locked the run. Each process locks its model's folder, because it may outlive the command.
        with permitted(modules), held(job.directory) if is_first else nullcontext():
            run = Run(job.experiment, job.model, job.directory, group)
            result = run.train(messages.send if is_first else _keep_quiet, stop.is_set)
    except BrokenPipeError:  # the parent is gone
        return
    except UserError as error:
        result = Failure(str(error))
    except BaseException as error:  # unforeseen errors go to the log in full
        summary = first_line(error)
        if (refusal := system_error(error)) not in (None, error):
            summary += f": {refusal}"
        messages.send(Failure(f"{job.model}: {summary} (see {job.directory / LOG})"))
        raise
    if is_first or isinstance(result, Failure):
        messages.send(result)


def _end(processes: Iterable["ForkServerProcess | SpawnProcess"]) -> None:
    for process in processes:
        process.kill()


def _keep_quiet(_: Progress) -> None:
    """Leave reports to the first process."""


def _redirect_output(path: Path) -> None:
    """Send what libraries print, also below Python, to a file: the terminal belongs to the progress bars."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {path.parent}: {error.strerror}") from error
    with appended(path) as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Collect the interrupts that arrive inside the ``with`` block."""
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
