"""README's first picture: bars of the ratios in README's table, so that both say the same.

python -m benches.pages.first_screen [--output docs/speed.svg]
"""

import argparse
import re
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
BARS = {
    "recurrence, n = 128, m = 16": "RNN, 128 units",
    "recurrence, n = 512, m = 64, batch 64, 64": "RNN, 512 units",
    "recurrence, n = 512, m = 64, batch 1": "RNN, 512 units, one sequence",
    "recurrence, n = m = 128": "RNN, 128 units, all reflections",
    "recurrence, n = 512, m = 510": "RNN, 512 units, 510 reflections, one sequence",
    "recurrence, n = 512, m = 64, batch 64, 512": "RNN, 512 units, on a GPU",
    "`W h`, n = 128": "one product W h, 128 units, 16 reflections",
    "gated delta rule": "gated delta rule, 2,048 tokens",
    "its memory": "memory of the delta rule",
}
"""Rows by how they begin, and what they are called."""
TITLE = "Time or memory of others, divided by ours (dashed line: equal); CPU with AVX-512"
LEGEND = (("theirs", "torch or transformers"), ("rival", "the strongest rival"))
WIDTH, ROW, BAR, LABEL = 740, 38, 14, 316
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.theirs { fill: #2f6f9f }
.rival { fill: #9cc3de }
.page { fill: #ffffff }
.line { stroke: #24292f; stroke-dasharray: 3 3 }
.ratio { font-weight: 600 }
"""


def ratios(readme: str) -> dict[str, list[tuple[str, float]]]:
    """Return the names and ratios of torch or transformers and of the strongest rival, by the first cell of a row."""
    rows = (line.strip("| ").split(" | ") for line in readme.splitlines() if re.search(r": [\d.]+x", line))
    return {cells[0]: [ratio for cell in cells[2:] if (ratio := ratio_of(cell))] for cells in rows}


def ratio_of(cell: str) -> tuple[str, float] | None:
    """Return the name and the ratio in a cell."""
    match = re.match(r"(.+): ([\d.]+)x", cell)
    return (match[1].replace("`", ""), float(match[2])) if match else None


def draw(of_rows: dict[str, list[tuple[str, float]]]) -> str:
    """Return the picture; every bar has its ratio and whose it is at its end, and a line stands at 1."""
    values = {label: next(x for cell, x in of_rows.items() if cell.startswith(row)) for row, label in BARS.items()}
    longest = max(ratio for bars in values.values() for _, ratio in bars)
    scale, height = (WIDTH - LABEL - 170) / longest, ROW * len(values) + 62
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Ratios">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" class="page"/>',
        f'<text x="12" y="20" class="ratio">{TITLE}</text>',
    ]
    for i, (kind, text) in enumerate(LEGEND):
        x = LABEL + 220 * i
        lines += [
            f'<rect x="{x}" y="30" width="12" height="12" class="{kind}"/>',
            f'<text x="{x + 18}" y="41">{text}</text>',
        ]
    for i, (label, bars) in enumerate(values.items()):
        y = 52 + ROW * i
        lines.append(f'<text x="{LABEL - 10}" y="{y + 19}" text-anchor="end">{escape(label)}</text>')
        for (kind, _), (name, ratio) in zip(LEGEND, bars, strict=False):
            width = scale * ratio
            lines += [
                f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" class="{kind}"/>',
                f'<text x="{LABEL + width + 6:.1f}" y="{y + 12}">'
                f'<tspan class="ratio">{ratio:g}x</tspan> {escape(name)}</text>',
            ]
            y += BAR + 1
    one = LABEL + scale
    lines.append(f'<line x1="{one:.1f}" x2="{one:.1f}" y1="48" y2="{height - 6}" class="line"/>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "speed.svg", metavar="FILE")
    options = parser.parse_args()
    options.output.write_text(draw(ratios((ROOT / "README.md").read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    main()
