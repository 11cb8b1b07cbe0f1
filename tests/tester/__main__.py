"""Cases drawn at random, each compared with explicit reflections in double precision.

    python tests/tester [--seed 0] [--cases 20000] [--jobs 2] [--kinds NAMES] [--without NAMES] [--only INDEX]

A case is a function of the seed and its index. A wrong one is printed with the command that runs it alone.
"""

import argparse
import itertools
import multiprocessing
import os
import sys
import time

import kinds
import moments
import work
from compare import Record


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="index of the first case")
    parser.add_argument("--only", type=int, help="index of the only case")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--kinds", default=",".join(kinds.KINDS), help="names, separated by commas")
    parser.add_argument("--without", default="", help="kinds to leave out")
    options = parser.parse_args()
    chosen = [name for name in options.kinds.split(",") if name not in options.without.split(",")]
    unknown = set(chosen) - set(kinds.KINDS)
    if unknown:
        parser.error(f"unknown kinds {sorted(unknown)}, expected some of {list(kinds.KINDS)}")
    first, count = (options.first, options.cases) if options.only is None else (options.only, 1)
    os.environ["OMP_WAIT_POLICY"] = "passive"  # of the processes to come: two that spin on two cores take turns
    begun = time.perf_counter()
    totals, failures = {name: Record() for name in chosen}, []
    chunks = [(options.seed, range(i, min(i + 250, first + count)), chosen) for i in range(first, first + count, 250)]
    for done, (records, wrong) in enumerate(results(chunks, options.jobs), 1):
        for name, record in records.items():
            totals[name].add(record)
        for index, message in wrong:
            print(f"{message}\n    python tests/tester --seed {options.seed} --only {index}", flush=True)
        failures += wrong
        if done % 200 == 0:
            print(f"{250 * done} cases, {len(failures)} wrong, {time.perf_counter() - begun:.0f} s", flush=True)
    print(f"{'kind':16}{'cases':>9}{'results':>10}{'second bound':>14}{'worst error / bound':>21}")
    for name, total in totals.items():
        print(f"{name:16}{total.cases:9}{total.results:10}{total.disturbed:14}{total.worst:21.3f}")
    statistics = list(itertools.chain.from_iterable(moments.judge(total.moments) for total in totals.values()))
    for line, _ in statistics:
        print(line)
    wrong = len(failures) + sum(not right for _, right in statistics)
    cases = sum(total.cases for total in totals.values())
    print(f"{cases} cases, {wrong} wrong, {time.perf_counter() - begun:.0f} s")
    sys.exit(wrong > 0)


def results(chunks, jobs):
    """Records and failures of each chunk, by this many processes."""
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(work.chunk, chunks)
        pool.close()
        pool.join()  # a process that is killed leaves semaphores


if __name__ == "__main__":
    main()
