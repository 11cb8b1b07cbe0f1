"""What this package takes for the works of the tables, and what of it became slower.

    python -m benches.suite [--threads 1] [--only REGEX] [--output FILE] [--compare FILE]

A machine has fast and slow hours, and so have processes on it. So every work takes turns with a calibration that does
not use this package, round after round, in several processes one after the other. A process's figure is the median of
its rounds: the time of the work over that of the calibration next to it. With one thread, the clock is the processor's.

``--compare`` names a work if the median of its figures is more than 10 % above the one in FILE, and none of its
processes was as fast as any of those. Such works are measured again, twice, and named only if they still are. The last
results of each processor are in ``benches/results/``.
"""

import json
import re
import statistics
import subprocess
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch

from benches.cases import CASES, QUICK, Application, Batch, Factor, Matrix, Sequence, Step, Vectors
from benches.measure import clock, heading, in_turn, machine, options, row
from benches.pages import delta_memory, versus_delta

SLOWER = 1.10
AGAIN = 2
PASSES = "forward", "both"
WATCHED = [
    *(case for case in CASES if isinstance(case, Sequence)),
    Application(128, 16, 50),
    Application(512, 64, 64),
    Application(1024, 64, 256),
    Application(1024, 1024, 256),
    Vectors(256, 1),
    Vectors(1024, 1),
    Vectors(1024, 8),
    Matrix(512, 511, "float32"),
    Matrix(1024, 1023, "float32"),
    Matrix(1024, 1023, "float64"),
    Batch(1024, 8, 8),
    Batch(100_000, 4, 3),
    Batch(16_384, 8, 4),
    Batch(1024, 32, 8),
    Batch(16_384, 16, 16),
    Step(64, 8),
    Step(128, 16),
    Factor(1024, "float32"),
    Factor(1024, "complex64"),
]
DELTA = ["gated DeltaNet", "KDA", "decoding step"]
KEPT = 4096
MEMORY = f"delta rule, {KEPT} tokens, memory kept for the backward pass"
"""Over that of the operands, a figure without a time."""


def works(only, quick):
    """Return the works whose names match as calls by name, one for each pass."""
    for case in QUICK if quick else WATCHED:
        if any(re.search(only, f"{case}, {way}") for way in PASSES):
            ours = next(case.candidates())
            yield f"{case}, forward", torch.no_grad()(ours.forward)
            if ours.both:
                yield f"{case}, both", ours.both
    for work in versus_delta.WORKS:
        if work.name in DELTA and any(re.search(only, f"delta rule, {work.name}, {way}") for way in PASSES):
            work = work._replace(tokens=min(work.tokens, 32) if quick else work.tokens)
            tensors, ours = versus_delta.problem(work), partial(versus_delta.ours, work)
            detached = [None if t is None else t.detach() for t in tensors]
            yield f"delta rule, {work.name}, forward", partial(ours, *detached)
            if work.tokens > 1:
                yield f"delta rule, {work.name}, both", partial(versus_delta.results, ours, tensors)


def calibration():
    """Do what takes arithmetic and calls of torch."""
    for _ in range(20):
        (SMALL * SMALL).sum().backward()


SMALL = torch.ones(8, requires_grad=True)


def measured_here(only, quick, threads):
    """Measure in this process: seconds and figure by name."""
    found = {}
    if re.search(only, MEMORY):
        kept, operands = delta_memory.kept("channel", delta_memory.ours, 64 if quick else KEPT)
        found[MEMORY] = None, kept / operands
    for name, call in works(only, quick):
        if re.search(only, name):
            calls = {"work": call, "calibration": calibration}
            times = in_turn(calls, 3 if quick else 25, 5, 2.0, clock(threads), 0.02, 0.002)
            figures = [work / own for work, own in zip(times["work"], times["calibration"], strict=True)]
            found[name] = statistics.median(times["work"]), statistics.median(figures)
    return found


def measured(only, quick, threads, processes):
    """Measure in processes one after the other: {name: {"ms": ..., "figures": [...]}}."""
    command = [sys.executable, "-m", "benches.suite", "--here", "--only", only, "--threads", str(threads)]
    command += ["--quick"] * quick
    found = {}
    for _ in range(processes):
        for name, (seconds, figure) in json.loads(subprocess.check_output(command)).items():
            entry = found.setdefault(name, {"ms": [], "figures": []})
            entry["ms"] += [] if seconds is None else [float(f"{1e3 * seconds:.4g}")]
            entry["figures"].append(float(f"{figure:.4g}"))
    return found


def ratio(new, old):
    """Return how many times as long it takes now."""
    return statistics.median(new["figures"]) / statistics.median(old["figures"])


def is_slower(new, old):
    return ratio(new, old) > SLOWER and min(new["figures"]) > max(old["figures"])


def slower(found, old, measure_again):
    """Return the names of what became slower; measures it again and adds to what was found."""
    names = [name for name in found if name in old and is_slower(found[name], old[name])]
    for _ in range(AGAIN):
        if names:
            for name, entry in measure_again(f"^({'|'.join(map(re.escape, names))})$").items():
                for key, values in entry.items():
                    found[name][key] += values
            names = [name for name in names if is_slower(found[name], old[name])]
    return names


def setting(threads):
    """Return what figures depend on: they are compared where all of it is the same."""
    packages = {name: version(name) for name in ("numpy", "torch")}
    return {**machine(threads), "Python": sys.version.split()[0], **packages}


def main():
    chosen = options(__doc__, threads=1, processes=3, only="", output=Path, compare=Path, quick=False, here=False)
    how = {"quick": chosen.quick, "threads": chosen.threads}
    if chosen.here:
        print(json.dumps(measured_here(chosen.only, **how)))
        return
    about = setting(chosen.threads)
    old = json.loads(chosen.compare.read_text(encoding="utf-8")) if chosen.compare else {"setting": about, "works": {}}
    if other := [
        f"{key}: {old['setting'].get(key)}, now {about[key]}" for key in about if old["setting"].get(key) != about[key]
    ]:
        raise SystemExit(f"{chosen.compare} is of another setting; " + "; ".join(other))
    commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], text=True).strip()
    found = measured(chosen.only, processes=chosen.processes, **how)
    names = slower(found, old["works"], partial(measured, processes=chosen.processes, **how))
    heading(chosen.threads, "work", "ms", "of the calibration", "processes", "times as long as before", "")
    for name, entry in found.items():
        figure, before = statistics.median(entry["figures"]), old["works"].get(name)
        apart = f"{max(entry['figures']) / min(entry['figures']):.2f}"
        ms = statistics.median(entry["ms"]) if entry["ms"] else ""
        row(name, ms, figure, apart, ratio(entry, before) if before else "", "SLOWER" if name in names else "")
    if chosen.output:
        about = {"commit": commit, "date": time.strftime("%Y-%m-%d"), "setting": about}
        lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in found.items()]
        text = f'{json.dumps(about)[:-1]}, "works": {{\n' + ",\n".join(lines) + "\n}}\n"
        chosen.output.write_text(text, encoding="utf-8")
    if names:
        raise SystemExit("slower: " + "; ".join(names))


if __name__ == "__main__":
    main()
