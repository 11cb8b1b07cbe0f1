"""The tables of docs/benchmarks.md, from a run of ``versus_peers.py``.

    python benches/versus_peers.py --output peers
    python benches/publish.py peers [--page docs/benchmarks.md]

A table stands between ``<!-- its name -->`` and ``<!-- end -->``.
"""

import argparse
import json
import re
from pathlib import Path

from versus_peers import markdown

SEQUENCES = {"nn.RNN": "`nn.RNN`", "nn.LSTM": "`nn.LSTM`"}
APPLICATIONS = {
    "compact WY, by hand": "compact WY by hand",
    "blocked (FastH's idea), by hand": "blocked by hand",
    "torch.linalg.householder_product": "`householder_product`",
    "nn.Linear (not orthogonal)": "`nn.Linear`",
}


def measured(folder: Path, kind: str) -> dict[str, dict[str, dict]]:
    """Return the cases of one kind, as ``{case: {candidate: row}}``."""
    cases = json.loads((folder / "versus_peers.json").read_text(encoding="utf-8"))["cases"]
    return {
        case["case"]: {row["candidate"]: row for row in case["rows"]} for case in cases if case["case"].startswith(kind)
    }


def ratios(folder: Path, kind: str, rivals: dict[str, str]) -> str:
    """Return the table of a kind's median ratios."""
    lines = [f"| {kind} | {' | '.join(rivals.values())} |", "|---" * (1 + len(rivals)) + "|"]
    for case, rows in measured(folder, kind).items():
        title = case.partition(" ")[2].replace(" ", ", ").replace("=", " = ")
        medians = [rows[rival]["median_ratio"] for rival in rivals]
        lines.append(f"| {title} | {' | '.join(f'{ratio:.{int(ratio < 100)}f}' for ratio in medians)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what the run wrote")
    parser.add_argument("--page", type=Path, default=Path("docs/benchmarks.md"))
    options = parser.parse_args()
    about = json.loads((options.folder / "versus_peers.json").read_text(encoding="utf-8"))["machine"]
    tables = {"machine": "\n".join(f"- {heading}: {value}" for heading, value in about.items())}
    for kind, rivals in (("sequence", SEQUENCES), ("application", APPLICATIONS)):
        tables[f"{kind} ratios"] = ratios(options.folder, kind, rivals)
    for kind in ("sequence", "application", "batch"):
        cases = measured(options.folder, kind)
        tables[kind] = "\n".join(markdown(case, list(rows.values())) for case, rows in cases.items()).rstrip()
    page = options.page.read_text(encoding="utf-8")
    for name, table in tables.items():
        place = re.compile(f"(<!-- {name} -->\n).*?(\n<!-- end -->)", re.DOTALL)
        page, found = place.subn(lambda match, table=table: match[1] + table + match[2], page)
        if found != 1:
            raise SystemExit(f"{options.page} has {found} places for the table '{name}', not one")
    options.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
