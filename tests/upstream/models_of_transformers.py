"""The tests that transformers has of its models, with and without ``ht.accelerate``: what differs fails.

    python tests/upstream/models_of_transformers.py CHECKOUT [MODEL ..]

CHECKOUT is the source of the installed version of transformers, because its wheel has no tests. The models are those
that ``ht.accelerate`` finds, or the given ones. Each test file runs twice. A test that passes without acceleration and
does not pass with it is printed, and the command fails. Tests that need a GPU, downloads or much time are left out by
transformers itself.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import transformers

from householder.torch.acceleration import pretrained

HERE = Path(__file__).parent
FEWEST = 10
"""Tests that must pass in each file, so that a file that no longer runs is seen."""
CLASSES = ("MiniMaxLightningAttention", "xLSTMBackend", r"\w+ShortConv(?:olution)?")
"""Layers that are accelerated without such a function."""


def supported() -> list[str]:
    """Return the models whose module has a fallback function or a layer that ``ht.accelerate`` replaces."""
    used = re.compile(
        "|".join([*(rf"\b{name}\b" for name in pretrained._GLOBALS), *map("class {}\\(".format, CLASSES)])
    )
    sources = Path(transformers.__file__).parent.glob("models/*/modeling_*.py")
    found = {source.parent.name for source in sources if used.search(source.read_text("utf-8"))}
    return sorted(found - {"lfm3_vl"})  # its convolutions are of pictures


def run(checkout: Path, tests: Path, *options: str) -> tuple[dict[str, str], str]:
    """Return the outcome of each test and what pytest said."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        paths = os.pathsep.join([str(HERE), str(checkout)])
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *options]
        env = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        env.pop("PYTEST_ADDOPTS", None)  # with workers, none of which says what it counted
        done = subprocess.run(
            [*command, str(tests)],
            cwd=checkout,
            env=env,
            capture_output=True,
            text=True,
        )
        if not report.exists():
            raise SystemExit(f"{tests}: pytest wrote no report\n{done.stdout}{done.stderr}")
        cases = ElementTree.parse(report).getroot().iter("testcase")
        return {f"{case.get('classname')}.{case.get('name')}": outcome(case) for case in cases}, done.stdout


def outcome(case: ElementTree.Element) -> str:
    """Return how a test ended."""
    return next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")


def worse(checkout: Path, tests: Path) -> list[str]:
    """Return the tests of a file that pass without acceleration alone."""
    before, _ = run(checkout, tests)
    after, said = run(checkout, tests, "-p", "accelerated_models")
    layers = int(re.findall(r"^accelerated layers: (\d+)$", said, re.MULTILINE)[-1])
    passed = [name for name, outcome in before.items() if outcome == "passed"]
    print(f"{tests.parent.name}: {len(passed)} of {len(before)} tests pass, {layers} layers accelerated", flush=True)
    if len(passed) < FEWEST or not layers:
        return [f"{tests}: {len(passed)} tests pass, and {layers} layers were accelerated"]
    return [f"{name}: {after.get(name, 'missing')}" for name in passed if after.get(name) != "passed"]


def main(checkout: str, *models: str) -> int:
    """Compare the test files of all models."""
    root = Path(checkout).resolve()
    found = [name for name in models or supported() if (root / f"tests/models/{name}").is_dir()]
    if not found:
        raise SystemExit(f"{root}: no tests of {', '.join(models or supported())}")
    failures = [line for name in found for line in worse(root, root / f"tests/models/{name}/test_modeling_{name}.py")]
    print(*failures, sep="\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
