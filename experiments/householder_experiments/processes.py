"""How processes are started."""

import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys
from multiprocessing.context import ForkServerContext, SpawnContext

_PRELOAD = ["householder_experiments.launch", "householder_experiments.training", "sklearn.model_selection"]


_SAFE = "PYTHONSAFEPATH"


def process_context() -> ForkServerContext | SpawnContext:
    """Return the context that starts processes: a fork server with torch loaded, where the platform has one.

    Forking a process that has used torch's threads is unsafe, and starting each afresh takes seconds.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context


def warm_up() -> None:
    """Start the server now, so that it loads torch while the caller does something else."""
    if isinstance(process_context(), ForkServerContext):
        # Both reach every process of a terminal or a job; the server and its children leave them to the caller.
        handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        searched = os.environ.get(_SAFE)
        os.environ[_SAFE] = "1"  # or the server would import multiprocessing from the working directory
        try:
            multiprocessing.forkserver.ensure_running()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            if searched is None:
                del os.environ[_SAFE]
            else:
                os.environ[_SAFE] = searched


def models_at_a_time(threads: int, devices: int = 1) -> int:
    """Return how many models may train at a time on the cores that this process may use."""
    return max(1, usable_cores() // (threads * devices))


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if sys.version_info >= (3, 13):
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
