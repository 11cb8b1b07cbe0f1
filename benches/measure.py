"""How benchmarks measure: options, interleaved timing, peak memory, the machine, rows of a table."""

import argparse
import ctypes
import gc
import os
import platform
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import torch

import householder as hh
from householder import _core

SHORTEST = 0.04
"""Seconds that one measurement lasts at least: faster calls are repeated within it, as the steps of a training are.
Short ones are more often undisturbed by other work."""

PAUSE = 0.01
"""Seconds before each measurement: worker threads of the one before spin for a while and would take a core."""

LONGEST_PAUSE = 0.5
"""Seconds after which a measurement begins although threads still spin. Those of OpenBLAS rest after a tenth."""


def options(description, **defaults):
    """Return the options of a command, and set its ``threads``.

    A list takes several values, False is a flag, and a type stands for a value that is None by default.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        flag, example = f"--{name.replace('_', '-')}", default[0] if isinstance(default, list) else default
        if example is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(example, type):
            parser.add_argument(flag, type=example)
        else:
            nargs = "+" if isinstance(default, list) else None
            parser.add_argument(flag, type=type(example), default=default, nargs=nargs, help="default: %(default)s")
    found = parser.parse_args()
    use_threads(found.threads)
    return found


def use_threads(threads):
    """Set the threads of torch, of this package and of JAX, which reads them once, at its first use."""
    torch.set_num_threads(threads)
    hh.set_num_threads(threads)
    os.environ["NPROC"] = str(threads)


def clock(threads):
    """Return the clock that other work disturbs least: a thread's own time, or for several of them that of the wall."""
    return time.process_time if threads == 1 else time.perf_counter


def heading(threads, *cells):
    """Print the machine and the head of a table."""
    print("".join(f"- {name}: {text}\n" for name, text in machine(threads).items()))
    row(*cells)
    print("|---" * len(cells) + "|")


def row(*cells):
    """Print a row of a table; numbers with three digits."""
    texts = (f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells)
    print(f"| {' | '.join(texts)} |", flush=True)


class Times(NamedTuple):
    median: float
    minimum: float


def interleaved(calls, rounds, at_least=5, budget=10.0, clock=time.perf_counter):
    """Time each call in turn, round after round, so that all meet the same disturbances.

    After ``budget`` seconds no further round begins, once there are ``at_least`` so many. With ``time.process_time`` as
    the clock, busy neighbours disturb a single thread little. Returns {name: Times} in seconds per call.
    """
    found = in_turn(calls, rounds, at_least, budget, clock, SHORTEST, PAUSE)
    return {name: Times(statistics.median(seconds), min(seconds)) for name, seconds in found.items()}


def rest(pause):
    """Sleep until no thread of this process works any more, for ``pause`` seconds at least."""
    end = time.perf_counter() + LONGEST_PAUSE
    while time.perf_counter() < end:
        begun = time.process_time()
        time.sleep(pause)
        if time.process_time() - begun < pause / 2:
            return


def in_turn(calls, rounds, at_least, budget, clock, shortest, pause):
    """Return the seconds per call of every round: {name: [seconds, ...]}."""
    repeats = {}
    for name, call in calls.items():
        call()
        begun = clock()
        call()
        repeats[name] = max(1, round(shortest / max(clock() - begun, 1e-9)))
    seconds = {name: [] for name in calls}
    gc.collect()
    gc.disable()
    try:
        start = time.perf_counter()
        for done in range(rounds):
            if done >= at_least and time.perf_counter() - start > budget:
                break
            for name, call in calls.items():
                rest(pause)
                begun = clock()
                for _ in range(repeats[name]):
                    call()
                seconds[name].append((clock() - begun) / repeats[name])
    finally:
        gc.enable()
    return seconds


def peak_increment(call):
    """Return by how many bytes a call raises the resident memory of this process at its peak (Linux)."""
    gc.collect()
    hh.release_memory()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def machine(threads):
    """Return what the times depend on, as {heading: text}."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    vendor = fields.get("vendor_id", "")
    blas = "MKL" if torch.backends.mkl.is_available() else "no MKL"
    if blas == "MKL" and (limit := os.environ.get("MKL_ENABLE_INSTRUCTIONS")):
        blas += f", confined to {limit}"
    elif blas == "MKL" and vendor == "GenuineIntel":
        blas += ", on its fast path (Intel processor)"
    elif blas == "MKL":
        blas += ", on its slower generic path (not an Intel processor)"
    name = fields.get("model name") or platform.processor() or platform.machine()
    family = f" (family {fields['cpu family']}, model {fields['model']})" if "cpu family" in fields else ""
    return {
        "processor": name + family,
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "threads": str(threads),
        "householder uses": _core.instruction_set(),
        "torch uses": f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {blas}",
    }


def _status(key):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {key}")
