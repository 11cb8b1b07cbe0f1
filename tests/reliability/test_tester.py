"""The randomised tester: a few of its cases pass, and it notices wrong numbers."""

import os
import subprocess
import sys
from pathlib import Path

TESTER = Path(__file__).parents[1] / "tester"

WRONG = """
import functools
import sys
sys.path.insert(0, {tester!r})
import householder as hh
right = hh.forward
hh.forward = functools.wraps(right)(lambda *a, **k: right(*a, **k) * (1 + 1e-4))
import run
found = filter(None, (run.case(0, i, ["arrays"]) for i in range(600)))
print(sum("result 0 is off by" in (message or "") for _, _, message in found))
"""


def test_cases_drawn_at_random_are_right():
    command = [sys.executable, TESTER, "--seed", "7", "--cases", "500", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1].startswith("500 cases, 0 wrong"), done.stdout + done.stderr


def test_a_wrong_number_is_found():
    command = [sys.executable, "-c", WRONG.format(tester=os.fspath(TESTER))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0
