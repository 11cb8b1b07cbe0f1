"""``householder gpu-check``: whether the CUDA path computes correctly on this machine, and how fast.

Each check of :mod:`~householder.cli.gpu_check.correctness` and each case of :mod:`~householder.cli.gpu_check.timing`
runs in a process of its own. A kernel that hangs or corrupts memory then breaks no other. The report is written anew
after each of them, to one file that can be attached to an issue.
"""

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from householder.cli.errors import UserError
from householder.cli.gpu_check import supervisor
from householder.cli.gpu_check.supervisor import Check, Row, worker

TIMING_LIMIT = 300.0
"""Seconds that a case may take, because rivals are compiled and the CPU computes in double precision."""


def jobs(*, checks: bool, timings: bool, quick: bool) -> list[Check]:
    """Return the jobs in the order in which they run."""
    from householder.cli.gpu_check.correctness import CHECKS
    from householder.cli.gpu_check.timing import cases

    checks_and_timings = [Check(name, worker("check")) for name in CHECKS if checks]
    if checks:
        checks_and_timings.append(Check("clusters, barriers of block scope", worker("block-scope")))
    kind = worker("quick-timing" if quick else "timing")
    return checks_and_timings + [Check(str(case), kind, TIMING_LIMIT) for case in cases(quick) if timings]


def markdown(report: Row) -> str:
    """Write the report as a page, which ends with all numbers as JSON."""
    rows = report["rows"]
    lines = ["# GPU check", ""]
    lines += [f"* {heading}: {text}" for heading, text in report["machine"].items()]
    lines += ["", "| check | verdict | | s |", "|---|---|---|---|"]
    for row in rows:
        verdict = row["verdict"] if row["verdict"] == "passed" else f"**{row['verdict']}**"
        detail = row["detail"].replace("\n", " ").replace("|", "\\|")
        lines.append(f"| {row['check']} | {verdict} | {detail} | {row['seconds']} |")
    lines += _thresholds(rows)
    for row in rows:
        lines += _details(row)
    lines += ["", "<details><summary>All numbers</summary>", "", "```json", json.dumps(report, indent=1), "```", ""]
    return "\n".join([*lines, "</details>", ""])


def _thresholds(rows: list[Row]) -> list[str]:
    """Return the thresholds from which torch operations replace the general kernel, and which of both was faster."""
    from householder._cuda import instances

    lines = ["", "## Kernels or torch operations", ""]
    lines += ["Shapes that only the general kernel serves take torch operations from these numbers per step on:", ""]
    lines += [f"* {scalar}: {numbers}" for scalar, numbers in instances.STEPWISE_FROM.items()]
    lines += ["", "| case | kernel | numbers per step | pass | way | faster | times | verdict |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for row in rows:
        case = row.get("timing")
        if not case or not case["faster"]:
            continue
        kernel = "general" if any("fallback" in name for name in row.get("kernels", ())) else "its own"
        step = case["step"] or {"numbers": "", "prefers_steps": False}
        taken = "torch operations" if kernel == "general" and step["prefers_steps"] else "kernels"
        for f in case["faster"]:
            verdict = "the faster way is taken" if f["winner"] == taken else f"**{taken} are taken, the slower way**"
            cells = (
                case["case"],
                kernel,
                step["numbers"],
                f["pass"],
                f["way"],
                f["winner"],
                f"{f['times']:.2f}",
                verdict,
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _details(row: Row) -> list[str]:
    """Return the times of a case, the kernels that a check used, and the last output of one that went wrong."""
    lines = []
    if "timing" in row:
        case = row["timing"]
        lines += ["", f"## {case['case']}", "", "| | pass | way | median ms | minimum ms | times ours | error |"]
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [
            f"| {r['candidate']} | {r['pass']} | {r['way']} | {r['median_ms']:.3f} | {r['minimum_ms']:.3f} "
            f"| {r['ratio']:.2f} | {r['error']} |"
            for r in case["rows"]
        ]
        lines += ["", *(f"* {name}: {', '.join(kernels)}" for name, kernels in case["kernels"].items())]
        lines += [f"* {name}: failed, {reason}" for name, reason in case["failed"].items()]
    elif row.get("kernels"):
        lines += ["", f"## {row['check']}", "", *(f"* `{kernel}`" for kernel in row["kernels"])]
    if row.get("output"):
        lines += ["", f"## What {row['check']} said last", "", "```text", row["output"], "```"]
    return lines


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--quick", action="store_true", help="small shapes and few replays")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--only-checks", action="store_true", help="no timings")
    parts.add_argument("--only-timings", action="store_true", help="no checks")
    parser.add_argument(
        "--matching", default="", metavar="TEXT", help="only checks and timings whose names contain this text"
    )
    parser.add_argument(
        "--output", type=Path, default=Path(), metavar="DIR", help="directory of the report (default: .)"
    )


def gpu_check(options: Namespace) -> int:
    """Run checks and timings; the exit status is 0 if all passed and 1 if one did not.

    Raises
    ------
    UserError
        torch is missing, there is no CUDA device, or the report cannot be written.
    """
    (machine,) = supervisor.run([Check("machine", worker("machine"))])
    if machine["verdict"] == "failed":
        raise UserError(machine["detail"])
    report: Row = {"machine": machine.pop("machine", {}), "rows": [machine]}
    file = options.output / "gpucheck.md"
    _write(file, markdown(report))  # or a mistake would be told after minutes
    todo = jobs(checks=not options.only_timings, timings=not options.only_checks, quick=options.quick)
    for row in supervisor.run(job for job in todo if options.matching in job.name):
        report["rows"].append(row)
        _write(file, markdown(report))
        print(f"{row['verdict']:12} {row['check']}  {row['detail']}  ({row['seconds']} s)", flush=True)
    print(f"{file} can be attached to an issue")
    return 0 if all(row["verdict"] == "passed" for row in report["rows"]) else 1


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from error
