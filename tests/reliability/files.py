"""Damages the files that the command reads, over and over: each is read, or one line says what is wrong.

python tests/reliability/files.py [SEED [CASES]]
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2]))

from experiments.tests.damaged_files import KINDS, complaint, damaged

SLOW = {"resumed checkpoint": 0.02, "checkpoint": 0.5, "plotted results": 0.2}


def main(seed: int = 1, cases: int = 100_000) -> int:
    read: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    weights = [SLOW.get(name, 1.0) for name in KINDS]
    with tempfile.TemporaryDirectory() as place:
        valid = {}
        for name, kind in KINDS.items():
            (Path(place) / name).mkdir()
            valid[name] = kind.content(Path(place) / name)
        for case in range(cases):
            random = Random(f"{seed}-{case}")
            name = random.choices(list(KINDS), weights)[0]
            try:
                message = complaint(KINDS[name], Path(place) / name, damaged(random, valid[name]))
            except BaseException:
                print(f"seed {seed}, case {case}: {name}", flush=True)
                raise
            assert message is None or "\n" not in message, (seed, case, message)
            (read if message is None else refused)[name] += 1
    for name in KINDS:
        print(f"{name}: {read[name]} read, {refused[name]} refused in one line")
    print(f"{cases} files, no traceback")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
