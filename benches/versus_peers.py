"""What one would use instead, on the same work, side by side.

    python -m benches.versus_peers [--quick] [--threads 2] [--only REGEX] [--output DIR] [--device cpu|cuda]

Every candidate is compared with float64 before it is timed; those of a case are timed in turn, round after round: the
forward pass without gradients, and both passes with the gradients of every parameter, of single applications' inputs
and of sequences' initial states. Ratios are of the least times, which other work on the machine disturbs least; with
one thread, times are the processor's. ``error`` is the largest over results and
gradients, each relative to its largest entry; ``memory`` is by how much a further call raises the resident memory.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
import torch

from benches.cases import CASES, OURS, QUICK, Candidate, Case, Sequence
from benches.measure import clock, interleaved, machine, options, peak_increment

TOLERANCES = 1e-3, 1e-2
"""Of results, by their largest error, and of gradients, by their norm: of ten million ReLUs a few switch elsewhere than
in float64, in every candidate, and a long sequence's gradient jumps there in single entries."""
PASSES = {"forward": "forward", "both": "forward + backward"}


def largest_error(case: Case, candidate: Candidate) -> float:
    """Return the largest error of results and gradients, each relative to its largest entry, once it is no mistake."""
    exact = candidate.exact()
    alone = [candidate.checked(candidate.forward())]
    checks = [zip(alone, exact[:1], strict=True)]
    if candidate.both:
        checks.append(zip(candidate.both(), exact, strict=True))
    largest = 0.0
    for check in checks:
        for number, (found, true) in enumerate(check):
            difference = torch.from_numpy(np.array(found.detach().numpy() if torch.is_tensor(found) else found)) - true
            errors = [(difference.norm(p) / true.norm(p).clamp(min=1e-30)).item() for p in (torch.inf, 2)]
            if not errors[number > 0] < TOLERANCES[number > 0]:
                raise SystemExit(f"{case}: {candidate.name} is wrong by {errors[number > 0]:.2g}")
            largest = max(largest, errors[0])
    return largest


def compare(case: Case, rounds: int, threads: int) -> list[dict]:
    """Check and time the candidates of a case; return a row for each."""
    candidates = list(case.candidates())
    calls = {(c.name, way): getattr(c, way) for c in candidates for way in PASSES if getattr(c, way)}
    with torch.set_grad_enabled(any(way == "both" for _, way in calls)):
        rows = {c.name: {"candidate": c.name, "error": largest_error(case, c)} for c in candidates}
        found = interleaved(calls, rounds, 5, 6.0, clock(threads))
    for (name, way), times in found.items():
        rows[name][way] = {"median_ms": 1e3 * times.median, "min_ms": 1e3 * times.minimum}
    first = rows[candidates[0].name]
    for c in candidates:
        row = rows[c.name]
        for way in PASSES:
            if way in row:
                row[way]["ratio"] = row[way]["min_ms"] / first[way]["min_ms"]
        if isinstance(case, Sequence) and sys.platform == "linux" and c.both and c.name != "oneDNN":  # it gets buffers
            row["memory_mb"] = peak_increment(c.both) / 1e6
    return list(rows.values())


def markdown(case: Case | str, rows: list[dict]) -> str:
    """Return a case's table."""
    ways = [way for way in PASSES if way in rows[0]]
    with_memory = "memory_mb" in rows[0]
    heads = [head for way in ways for head in (f"{PASSES[way]}: least, ms", "times ours", "median, ms")]
    heads += ["error", *["memory, MB"] * with_memory]
    lines = [f"### {case}", "", f"| | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for row in rows:
        times = [row.get(way) for way in ways]
        cells = []
        for time in times:
            cells += [f"{time['min_ms']:.3g}", f"{time['ratio']:.2f}", f"{time['median_ms']:.3g}"] if time else [""] * 3
        cells += [f"{row['error']:.1e}", *[f"{row['memory_mb']:.1f}" if "memory_mb" in row else ""] * with_memory]
        lines.append(f"| {row['candidate']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def strongest(rows: list[dict], way: str) -> dict | None:
    """Return the fastest of the rivals that compute the same."""
    rivals = [r for r in rows if not r["candidate"].startswith(OURS) and "not orthogonal" not in r["candidate"]]
    return min((r for r in rivals if way in r), key=lambda r: r[way]["min_ms"], default=None)


def main() -> None:
    defaults = {"device": "cpu", "only": "", "threads": 2}
    chosen = options(__doc__, **defaults, quick=False, output=Path)
    if chosen.device == "cuda":
        if ignored := [f"--{name}" for name in ("only", "threads") if vars(chosen)[name] != defaults[name]]:
            raise SystemExit(f"--device cuda times all of its own cases; leave out {', '.join(ignored)}")
        from householder.cli import main as householder

        quick = ["--quick"] if chosen.quick else []
        sys.exit(householder(["gpu-check", "--only-timings", "--output", str(chosen.output or "."), *quick]))
    cases = [case for case in (QUICK if chosen.quick else CASES) if re.search(chosen.only, str(case))]
    about = machine(chosen.threads)
    text = "".join(f"- {heading}: {value}\n" for heading, value in about.items())
    print(text)
    results = []
    for case in cases:
        rows = compare(case, 3 if chosen.quick else 40, chosen.threads)
        results.append({"case": str(case), "rows": rows})
        print(markdown(case, rows), flush=True)
        text += "\n" + markdown(case, rows)
        if chosen.output:
            chosen.output.mkdir(parents=True, exist_ok=True)
            (chosen.output / "versus_peers.json").write_text(json.dumps({"machine": about, "cases": results}, indent=2))
            (chosen.output / "versus_peers.md").write_text(text)


if __name__ == "__main__":
    main()
