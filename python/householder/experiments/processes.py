"""How processes are started."""

import multiprocessing
import multiprocessing.forkserver
import signal
from multiprocessing.context import ForkServerContext, SpawnContext

_PRELOAD = ["householder.experiments.launch", "householder.experiments.training", "sklearn.model_selection"]


def process_context() -> ForkServerContext | SpawnContext:
    """Return the context that processes come from: a server that has torch loaded already, where there is one.

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
        # Ctrl-C reaches every process of the terminal; the server and its children leave it to the caller.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            multiprocessing.forkserver.ensure_running()
        finally:
            signal.signal(signal.SIGINT, handler)
