"""Twenty-four threads call concurrently for two minutes, with right answers; then memory after 100,000 calls.

python tests/reliability/threads.py [--threads 24] [--seconds 120] [--calls 100000]
"""

import argparse
import resource
import sys
import threading
import time

import numpy as np

import householder as hh

SHAPES = ((5, 3, 2), (16, 16, 9), (33, 20, 20), (64, 8, 50), (128, 16, 64))


def work(shape, dtype):
    """One of everything for a shape: the same bits each time."""
    n, m, rows = shape
    rng = np.random.default_rng(n)
    u, h = (rng.standard_normal(size).astype(dtype) for size in ((n, m), (rows, n)))
    x = np.stack([h] * 5)
    (states, _), vjp = hh.rnn_vjp(u, x)
    return [hh.forward(u, h), *hh.backward(u, h, h), hh.matrix(u), states, vjp(x).u]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--calls", type=int, default=100_000)
    options = parser.parse_args()
    problems = [(shape, dtype) for shape in SHAPES for dtype in (np.float32, np.float64)]
    expected = [work(*problem) for problem in problems]
    end = time.perf_counter() + options.seconds
    done, wrong = [0] * options.threads, [0] * options.threads

    def caller(thread):
        i = thread
        while time.perf_counter() < end:
            i = (i + 1) % len(problems)
            right = all(np.array_equal(a, b) for a, b in zip(work(*problems[i]), expected[i], strict=True))
            done[thread] += 1
            wrong[thread] += not right

    threads = [threading.Thread(target=caller, args=(thread,)) for thread in range(options.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(
        f"{options.threads} threads, {options.seconds:.0f} s: {sum(done)} rounds of six calls, at least {min(done)} by "
        f"each thread, {sum(wrong)} wrong"
    )

    u, h = np.ones((64, 8), np.float32), np.ones((16, 64), np.float32)

    def call(count):
        for _ in range(count):
            hh.forward(u, h)
            hh.backward(u, h, h)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = call(2000)
    growth = call(options.calls // 2) - before
    print(f"{options.calls} calls: the largest memory grew by {growth} KiB")
    sys.exit(sum(wrong) > 0 or growth > 4096)


if __name__ == "__main__":
    main()
