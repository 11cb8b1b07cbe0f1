"""Does the CUDA path compute what it should here, and how fast? Five minutes, one command, nothing but the package.

    python -m householder.experiments.gpucheck [--quick] [--only-checks | --only-timings] [--output DIR]

First every kind of call is compared with the CPU in double precision: activations, dtypes, sizes around the edges of
the kernels' tiles, packed sequences, gradients, streams, CUDA graphs, ``torch.compile``, see
:mod:`householder.experiments.gpucorrectness`. Then whole sequences are timed
against ``torch.nn.RNN`` and ``LSTM`` and applications against ``torch.linalg.householder_product``, see
:mod:`householder.experiments.gputiming`. What came out is printed as Markdown and written to ``gpucheck.json`` and
``gpucheck.md``. The exit status is 0 if all checks passed, 1 if one failed, 2 if there is no CUDA device.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from householder import _cuda
from householder.experiments.gpucorrectness import run_checks

cuda: Any = torch.cuda


def markdown(report: dict[str, Any]) -> str:
    """Write the report as a page."""
    lines = ["# GPU check", ""]
    lines += [f"* {heading}: {text}" for heading, text in report["machine"].items()]
    lines += ["", "| check | | |", "|---|---|---|"]
    lines += [
        f"| {r['check']} | {'passed' if r['passed'] else '**failed**'} | {r['detail']} |" for r in report["checks"]
    ]
    for case in report["timings"]:
        lines += ["", f"## {case['case']}", "", "| | pass | median ms | minimum ms | times ours | error | by |"]
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [
            f"| {r['candidate']} | {r['pass']} | {r['median_ms']:.3f} | {r['minimum_ms']:.3f} | {r['ratio']:.2f} "
            f"| {r['error']} | {r['timed_by']} |"
            for r in case["rows"]
        ]
        lines += ["", *(f"* {name}: {', '.join(kernels)}" for name, kernels in case["kernels"].items())]
        lines += [f"* {name}: failed, {reason}" for name, reason in case["failed"].items()]
    return "\n".join(lines) + "\n"


def machine() -> dict[str, str]:
    """Say what the times depend on."""
    cudnn: Any = torch.backends.cudnn
    versions = {"torch": f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {cudnn.version()}"}
    return versions | _cuda.describe()


def _write(report: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpucheck.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "gpucheck.md").write_text(markdown(report))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run checks and timings; give the exit status."""
    parser = argparse.ArgumentParser(prog="python -m householder.experiments.gpucheck", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="small shapes and few replays")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--only-checks", action="store_true", help="no timings")
    parts.add_argument("--only-timings", action="store_true", help="no checks")
    parser.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="where the reports go")
    options = parser.parse_args(arguments)
    found = _cuda.describe()["CUDA"]
    if found != "available" or not cuda.is_available():
        reason = f"CUDA is {found}" if found != "available" else "this torch finds no CUDA device"
        print(f"gpucheck: {reason}", file=sys.stderr)
        return 2
    checks: list[dict[str, Any]] = []
    timings: list[dict[str, Any]] = []
    report = {"machine": machine(), "checks": checks, "timings": timings}
    for row in () if options.only_timings else run_checks():
        print(f"{'passed' if row['passed'] else 'FAILED'}  {row['check']}: {row['detail']}", flush=True)
        checks.append(row)
    _write(report, options.output)  # now, whatever becomes of the timings
    if not options.only_checks:
        from householder.experiments.gputiming import compare_all

        for case in compare_all(quick=options.quick):
            print(f"timed   {case['case']}", flush=True)
            timings.append(case)
            _write(report, options.output)
    report["machine"] = machine()  # with the kernels that were in use
    _write(report, options.output)
    print(markdown(report))
    return 0 if all(row["passed"] for row in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
