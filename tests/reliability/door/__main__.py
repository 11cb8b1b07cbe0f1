"""Ten million calls with arrays of arbitrary shapes, strides, byte orders, addresses, dtypes and values.

    python tests/reliability/door [--calls 10000000] [--seed 0]

A problem is a function of its seed: a call, its numbers, and what is right by the readable algorithm (``oracle.py``) or
how it is to be refused. Each is called hundreds of times with the same numbers lying in memory in other ways
(``layouts.py``), by every method. The first result of a method is compared with what is right, all others with it, bit
for bit. The inputs must be as they were, with NaN around them untouched, although results are overwritten.
"""

import argparse
import collections
import itertools
import sys
import time

import numpy as np
from layouts import lay
from problems import problem

LAYOUTS = 12  # of each argument
CALLS = 500  # of each problem


def check(rng, ends):
    """Call one problem; return what went wrong first, or None."""
    asked = problem(rng)
    names = list(asked.arrays)
    laid = [[(a, None) if a is None else lay(rng, a) for _ in range(LAYOUTS)] for a in asked.arrays.values()]
    around = [(raw, raw.tobytes()) for each in laid for _, raw in each if raw is not None]
    picks = rng.integers(LAYOUTS, size=(CALLS, len(names))).tolist()
    variants = [{**asked.options, "method": method} for method in asked.methods] or [asked.options]
    first = {}
    for pick, variant in zip(picks, itertools.cycle(range(len(variants))), strict=False):
        arguments = {name: each[i][0] for name, each, i in zip(names, laid, pick, strict=True)}
        try:
            result = asked.function(**arguments, **variants[variant])
        except (TypeError, ValueError) as error:
            ends[type(error).__name__] += 1
            if not isinstance(error, asked.refusals):
                return f"{describe(asked)} was refused: {error}"
            continue
        ends[asked.function.__name__] += 1
        outs = [result] if isinstance(result, np.ndarray) else [out for out in result if out is not None]
        bits = [(out.dtype.char, out.shape, out.tobytes()) for out in outs]
        if variant not in first:
            first[variant] = bits
            if asked.right is None or not asked.right(result):
                return f"{describe(asked)}, {variants[variant]}: wrong"
        elif bits != first[variant]:
            return f"{describe(asked)}, {variants[variant]}: depends on how the arrays lie"
        for out in outs:
            out.fill(7)
    if any(raw.tobytes() != before for raw, before in around):
        return f"{describe(asked)}: an input was changed"
    return None


def describe(asked):
    """The call in a line."""
    arrays = {name: a if a is None else (a.dtype.str, a.shape) for name, a in asked.arrays.items()}
    return f"{asked.function.__name__} of {arrays}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0, help="the first problem's")
    options = parser.parse_args()
    np.seterr(all="ignore")
    ends, failures, begun = collections.Counter(), 0, time.perf_counter()
    seeds = range(options.seed, options.seed - (-options.calls // CALLS))
    for seed in seeds:
        failure = check(np.random.default_rng(seed), ends)
        if failure:
            failures += 1
            print(f"seed {seed}: {failure}", flush=True)
        if (seed + 1) % 5000 == 0 or seed == seeds[-1]:
            seconds = time.perf_counter() - begun
            print(
                f"{sum(ends.values())} calls, {seed + 1 - seeds[0]} problems, {failures} failed, {seconds:.0f} s",
                flush=True,
            )
    print(dict(ends))
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
