"""``householder gpu-check``: whether the CUDA path computes what it should here, and how fast.

First :mod:`householder.cli.gpu_correctness` compares every kind of call with the CPU in double precision: activations,
dtypes, sizes around the edges of the kernels' tiles, packed sequences, gradients, streams, CUDA graphs and
``torch.compile``. Then :mod:`householder.cli.gpu_timing` times whole sequences against ``torch.nn.RNN`` and ``LSTM``,
and applications against ``torch.linalg.householder_product``. The report is printed as Markdown and written to
``gpucheck.json`` and ``gpucheck.md``.
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from householder import _cuda
from householder.experiments.errors import UserError


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
    import torch

    cudnn: Any = torch.backends.cudnn
    versions = {"torch": f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {cudnn.version()}"}
    return versions | _cuda.describe()


def _write(report: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpucheck.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "gpucheck.md").write_text(markdown(report))


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--quick", action="store_true", help="small shapes and few replays")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--only-checks", action="store_true", help="no timings")
    parts.add_argument("--only-timings", action="store_true", help="no checks")
    parser.add_argument("--output", type=Path, default=Path(), metavar="DIR", help="where the reports go (default: .)")


def gpu_check(options: Namespace) -> int:
    """Run checks and timings; the exit status is 0 if all checks passed and 1 if one failed.

    Raises
    ------
    UserError
        torch is missing, or there is no CUDA device.
    """
    found = _cuda.describe()["CUDA"]
    if found != "available":
        raise UserError(f"CUDA is {found}")
    try:
        import torch
    except ModuleNotFoundError:
        raise UserError("torch is not installed; this needs: pip install 'householder[torch]'") from None
    if not torch.cuda.is_available():
        raise UserError("this torch finds no CUDA device")
    from householder.cli.gpu_correctness import run_checks

    checks: list[dict[str, Any]] = []
    timings: list[dict[str, Any]] = []
    report = {"machine": machine(), "checks": checks, "timings": timings}
    for row in () if options.only_timings else run_checks():
        print(f"{'passed' if row['passed'] else 'FAILED'}  {row['check']}: {row['detail']}", flush=True)
        checks.append(row)
    _write(report, options.output)  # now, whatever becomes of the timings
    if not options.only_checks:
        from householder.cli.gpu_timing import compare_all

        for case in compare_all(quick=options.quick):
            print(f"timed   {case['case']}", flush=True)
            timings.append(case)
            _write(report, options.output)
    report["machine"] = machine()  # with the kernels that were in use
    _write(report, options.output)
    print(markdown(report))
    return 0 if all(row["passed"] for row in checks) else 1
