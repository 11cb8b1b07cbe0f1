"""A layer with two threads while other processes keep the processors busy, under OpenMP's two ways to wait.

    python -m benches.pages.busy_neighbours [--neighbours 0 1 2 4] [--threads 2] [--seconds 3]

A thread of OpenMP that waits for others spins by default, and takes a processor from whoever would have work for it;
``OMP_WAIT_POLICY=passive`` lets it sleep. Each measurement is a process of its own, because the policy is read once.
Times are medians and the ninth decile, in milliseconds, of forward plus backward; candidates take turns.
"""

import os
import statistics
import subprocess
import sys
import time

from benches.measure import heading, options, row

NEIGHBOUR = "while True: pass"
POLICIES = {"default": {}, "passive": {"OMP_WAIT_POLICY": "passive"}}


def measured(threads, seconds):
    """Time the candidates in turn in this process; prints a name, the median and the ninth decile a line."""
    import torch
    from torch import nn

    import householder.torch as ht

    torch.set_num_threads(threads)
    layers = {
        "OrthogonalRNN": ht.OrthogonalRNN(8, 128, num_reflections=16, nonlinearity="relu"),
        "nn.RNN": nn.RNN(8, 128, nonlinearity="relu"),
    }
    x, times = torch.randn(50, 32, 8), {name: [] for name in layers}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, times.values())) < 20:
        for name, layer in layers.items():
            begun = time.perf_counter()
            layer(x)[0].sum().backward()
            times[name].append(1e3 * (time.perf_counter() - begun))
    for name, taken in times.items():
        print(name, statistics.median(taken), statistics.quantiles(taken, n=10)[-1])


def main():
    chosen = options(__doc__, threads=2, neighbours=[0, 1, 2, 4], seconds=3.0, here=False)
    if chosen.here:
        measured(chosen.threads, chosen.seconds)
        return
    heading(chosen.threads, "busy processes", "waiting", "layer", "median, ms", "90th percentile, ms")
    for count in chosen.neighbours:
        busy = [subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) for _ in range(count)]
        try:
            for policy, variables in POLICIES.items():
                command = [
                    sys.executable,
                    "-m",
                    "benches.pages.busy_neighbours",
                    "--here",
                    "--threads",
                    str(chosen.threads),
                ]
                command += ["--seconds", str(chosen.seconds)]
                rows = subprocess.check_output(command, env=os.environ | variables, text=True)
                for name, median, decile in map(str.split, rows.splitlines()):
                    row(count, policy, name, float(median), float(decile))
        finally:
            for process in busy:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
