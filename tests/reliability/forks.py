"""Forks while other threads compute, many times: the child computes as well, and ends.

    python tests/reliability/forks.py [--forks 10000] [--torch]

A child that does not end within half a minute has inherited a lock that a thread of the parent held. Its Python frames
are printed, and it is killed.
"""

import argparse
import faulthandler
import os
import signal
import sys
import threading
import time

import numpy as np

import householder as hh

PATIENCE = 30.0  # seconds: a child computes for milliseconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forks", type=int, default=10_000)
    parser.add_argument("--torch", action="store_true", help="call ht.apply; threads of the parent are torch's")
    arguments = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)
    hh.set_num_threads(3)
    rng = np.random.default_rng(0)
    u, h = rng.standard_normal((256, 32)).astype(np.float32), rng.standard_normal((512, 256)).astype(np.float32)
    call = call_of_torch(u, h) if arguments.torch else lambda: hh.forward(u, h)
    expected = np.asarray(call())
    ends = threading.Event()

    def compute() -> None:
        while not ends.is_set():
            call()

    threads = [threading.Thread(target=compute) for _ in range(3)]
    for thread in threads:
        thread.start()
    hung = wrong = 0
    begun = time.monotonic()
    for number in range(arguments.forks):
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(np.asarray(call()), expected) else 1)
        status = wait(child)
        if status is None:
            hung += 1
            print(f"fork {number} hangs", flush=True)
            os.kill(child, signal.SIGUSR1)
            time.sleep(1)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        wrong += status not in (None, 0)
    ends.set()
    for thread in threads:
        thread.join()
    print(f"{arguments.forks} forks in {time.monotonic() - begun:.0f} s: {hung} hung, {wrong} wrong")
    return int(hung + wrong > 0)


def call_of_torch(u: np.ndarray, h: np.ndarray):
    import torch

    import householder.torch as ht

    u, h = torch.from_numpy(u), torch.from_numpy(h)
    return lambda: ht.apply(u, h)


def wait(child: int) -> int | None:
    """Return the child's status, or None if it does not end."""
    begun = time.monotonic()
    while time.monotonic() - begun < PATIENCE:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.0002)
    return None


if __name__ == "__main__":
    sys.exit(main())
