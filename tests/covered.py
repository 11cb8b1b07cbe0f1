"""Whether the short set of tests covers each module as well as all tests do.

``python tests/covered.py`` takes about half an hour and needs the package ``coverage``. Lines and branches of
``python/householder`` count, also in other processes.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ALLOWED = 1.0
"""Percentage points by which a module may be covered less."""


def covered(folder, *selection):
    """Percentage of each module that these tests cover."""
    environment = {**os.environ, "COVERAGE_FILE": str(folder / "data")}

    def coverage(*arguments):
        return subprocess.run([sys.executable, "-m", "coverage", *arguments], env=environment, check=False).returncode

    if coverage("run", "-m", "pytest", "--quiet", "--numprocesses", "2", *selection):
        sys.exit("tests failed")
    coverage("combine", "--quiet")
    coverage("json", "--quiet", "-o", str(folder / "report.json"))
    files = json.loads((folder / "report.json").read_text())["files"]
    return {name: file["summary"]["percent_covered"] for name, file in files.items()}


def main():
    with tempfile.TemporaryDirectory() as short, tempfile.TemporaryDirectory() as every:
        found, wanted = covered(Path(short)), covered(Path(every), "-m", "")
    worse = {name: percent for name, percent in wanted.items() if found.get(name, 0.0) < percent - ALLOWED}
    for name, percent in worse.items():
        print(f"{name}: {found.get(name, 0.0):.1f} % by the short set, {percent:.1f} % by all tests")
    print(f"{len(wanted)} modules, {len(worse)} covered less by the short set than by all tests")
    sys.exit(bool(worse))


if __name__ == "__main__":
    main()
