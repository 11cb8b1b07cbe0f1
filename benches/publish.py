"""The tables of the pages that ``PAGES`` names, from runs of ``versus_peers.py``.

    python -m benches.versus_peers --threads 1 --output peers/1
    python -m benches.versus_peers --threads 2 --output peers/2
    python -m benches.publish peers/1 peers/2 [--pages docs/benchmarks.md ...]

Detailed tables are of the last run, those of single steps, small matrices and LAPACK of the first. A table stands
between ``<!-- its name -->`` and ``<!-- end -->``.
"""

import argparse
import json
import re
from pathlib import Path

from benches.cases import OURS
from benches.versus_peers import PASSES, markdown, strongest

APPLICATIONS = {
    "compact WY, by hand": "compact WY by hand",
    "blocked (FastH's idea), by hand": "blocked by hand",
    "torch.linalg.householder_product": "`householder_product`",
    "parametrizations.orthogonal cayley": "`parametrizations.orthogonal`, Cayley",
    "nn.Linear (not orthogonal)": "`nn.Linear`",
}
PAGES = ["docs/benchmarks.md", "docs/performance.md", "benches/results/peers.md"]
AHEAD = 0.97
"""Ratios from which on a rival is not ahead: they do not repeat more closely."""


class Run:
    """What one run of ``versus_peers.py`` wrote."""

    def __init__(self, folder: Path) -> None:
        found = json.loads((folder / "versus_peers.json").read_text(encoding="utf-8"))
        self.machine = found["machine"]
        self.on = f"{found['machine']['threads']} thread{'s' * (found['machine']['threads'] != '1')}"
        self.cases = {case["case"]: case["rows"] for case in found["cases"]}

    def of_kind(self, *kinds: str) -> dict[str, list[dict]]:
        """Return the rows of the cases of some kinds."""
        return {case: rows for case, rows in self.cases.items() if case.startswith(tuple(f"{kind} " for kind in kinds))}


def title(case: str) -> str:
    """Return a case's sizes as text."""
    return ", ".join(re.findall(r"\w+=\w+", case)).replace("=", " = ")


def table(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows])


def digits(ratio: float) -> str:
    return f"{ratio:.{0 if ratio >= 100 else 1 if ratio >= 10 else 2}f}"


def named(row: dict) -> str:
    return short(row["candidate"].removesuffix(", by hand").removesuffix(", tau given"))


def short(name: str) -> str:
    return name.replace("torch.linalg.", "").replace("householder.torch.", "ht.").replace("householder.", "hh.")


def beside(runs: list[Run], way: str) -> str:
    """Return sequences beside ``nn.RNN`` and the strongest rival, for each number of threads."""
    heads = ["sequence"]
    for run in runs:
        heads += [f"{run.on}: ours, ms", "`nn.RNN`", "strongest rival"]
    lines = []
    for case in runs[0].of_kind("sequence"):
        line = [title(case)]
        for run in runs:
            rows = run.cases[case]
            ours, rnn, *_ = rows
            best = strongest(rows, way)
            line += [f"{ours[way]['min_ms']:.3g}", digits(rnn[way]["ratio"])]
            line.append(f"{digits(best[way]['ratio'])} {named(best)}")
        lines.append(line)
    return table(heads, lines)


def ratios(run: Run, kind: str, rivals: dict[str, str]) -> str:
    """Return the table of a kind's ratios of both passes."""
    lines = []
    for case, rows in run.of_kind(kind).items():
        found = {row["candidate"]: row["both"]["ratio"] for row in rows if "both" in row}
        lines.append([title(case), *(digits(found[rival]) for rival in rivals)])
    return table([f"{kind}, {run.on}", *rivals.values()], lines)


def times(run: Run, kind: str, way: str | None, unit: str) -> str:
    """Return the times of a kind's candidates, a line for each case; both passes if ``way`` is None."""
    cases = run.of_kind(kind)
    scale = {"ms": 1, "us": 1000}[unit]
    ways = PASSES if way is None else (way,)
    columns = dict.fromkeys((row["candidate"], w) for w in ways for rows in cases.values() for row in rows if w in row)
    heads = [f"{short(name)}{'; with gradients' * (w == 'both')}" for name, w in columns]
    lines = []
    for case, rows in cases.items():
        found = {row["candidate"]: row for row in rows}
        cells = (f"{scale * found[name][w]['min_ms']:.3g}" if name in found else "" for name, w in columns)
        lines.append([title(case), *cells])
    return table([f"{kind}, {unit}", *heads], lines)


def behind(runs: list[Run]) -> str:
    """Return where the strongest rival is ahead of one of ours, by how much."""
    heads = [f"{PASSES[way]}, {run.on}" for way in PASSES for run in runs]
    lines = []
    for case, first in runs[0].cases.items():
        for name in (row["candidate"] for row in first if row["candidate"].startswith(OURS)):
            cells = []
            for way in PASSES:
                for run in runs:
                    if case not in run.cases:
                        cells.append("")
                        continue
                    (ours,) = (row for row in run.cases[case] if row["candidate"] == name)
                    best = strongest(run.cases[case], way)
                    ratio = best[way]["min_ms"] / ours[way]["min_ms"] if best and way in ours else 1.0
                    cells.append(f"{digits(ratio)} {named(best)}" if ratio < AHEAD else "")
            if any(cells):
                lines.append(
                    [f"{case.partition('=')[0].rpartition(' ')[0]}, {title(case)}", f"`{short(name)}`", *cells]
                )
    return table(["work", "ours", *heads], lines)


def tables(runs: list[Run]) -> dict[str, str]:
    """Return all tables by name."""
    first, last = runs[0], runs[-1]
    detailed = {
        kind: "\n".join(markdown(case, rows) for case, rows in last.of_kind(kind).items()).rstrip()
        for kind in ("sequence", "application", "batch")
    }
    return {
        "machine": "\n".join(f"- {heading}: {value}" for heading, value in last.machine.items()),
        "sequences, forward": beside(runs, "forward"),
        "sequences, both": beside(runs, "both"),
        "application ratios": ratios(last, "application", APPLICATIONS),
        "behind": behind(runs),
        "small": times(first, "batch", None, "ms"),
        "factor": times(first, "factor", "forward", "ms"),
        "step": times(first, "step", "forward", "us"),
        "matrix": times(first, "matrix", None, "ms"),
        "vectors": times(first, "vectors", None, "us"),
        **detailed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="what runs wrote, on more and more threads")
    parser.add_argument("--pages", type=Path, nargs="+", default=PAGES)
    options = parser.parse_args()
    found = tables([Run(folder) for folder in options.folders])
    pages = {Path(page): Path(page).read_text(encoding="utf-8") for page in options.pages}
    for name, text in found.items():
        place = re.compile(f"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if (places := sum(len(place.findall(page)) for page in pages.values())) != 1:
            raise SystemExit(f"{', '.join(map(str, pages))} have {places} places for the table '{name}', not one")
        pages = {path: place.sub(lambda m, text=text: m[1] + text + "\n" + m[2], page) for path, page in pages.items()}
    for path, page in pages.items():
        path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
