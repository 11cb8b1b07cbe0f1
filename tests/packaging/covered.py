"""Whether the short set of tests covers each module as well as all tests do.

``python tests/packaging/covered.py`` takes about half an hour and needs the package ``coverage``. Lines and branches of
``python/householder`` and ``experiments`` count, also in other processes.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ALLOWED = 1.0
"""Percentage points by which a module may be covered less."""


def coverage(data, *arguments):
    """Run the tool on this file of data."""
    environment = {**os.environ, "COVERAGE_FILE": str(data)}
    return subprocess.run([sys.executable, "-m", "coverage", *arguments], env=environment, check=False).returncode


def measure(data, *selection):
    """Run these tests and write which lines and branches they reach."""
    if coverage(data, "run", "-m", "pytest", "--quiet", "--numprocesses", "2", *selection):
        sys.exit("tests failed")
    coverage(data, "combine", "--quiet")


def percentages(data):
    """How much of each module was reached."""
    report = data.with_suffix(".json")
    coverage(data, "json", "--quiet", "-o", str(report))
    files = json.loads(report.read_text())["files"]
    return {name: file["summary"]["percent_covered"] for name, file in files.items()}


def main():
    with tempfile.TemporaryDirectory() as folder:
        short, long, every = (Path(folder) / name for name in ("short", "long", "every"))
        measure(short)
        measure(long, "-m", "long")
        coverage(every, "combine", "--quiet", "--keep", str(short), str(long))
        found, wanted = percentages(short), percentages(every)
    worse = {name: percent for name, percent in wanted.items() if found.get(name, 0.0) < percent - ALLOWED}
    for name, percent in worse.items():
        print(f"{name}: {found.get(name, 0.0):.1f} % by the short set, {percent:.1f} % by all tests")
    print(f"{len(wanted)} modules, {len(worse)} covered less by the short set than by all tests")
    sys.exit(bool(worse))


if __name__ == "__main__":
    main()
