"""README's first picture: bars of the ratios in README's table, so that both say the same.

python -m benches.pages.first_screen [--output docs/speed.svg]
"""

import argparse
import re
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
BARS = {
    "recurrence, n = 128, m = 16": "RNN, 128 units: torch.nn.RNN",
    "recurrence, n = 512, m = 64, batch 64, 64": "RNN, 512 units: torch.nn.RNN",
    "recurrence, n = 512, m = 64, batch 1": "RNN, 512 units, one sequence: torch.nn.RNN",
    "recurrence, n = 512, m = 64, batch 64, 512": "RNN, 512 units, on a GPU: cuDNN",
    "`W h`, n = 128": "W h, n = 128: torch's householder_product",
    "gated delta rule": "gated delta rule: transformers",
    "its memory": "memory of the delta rule: transformers",
}
"""Rows by how they begin, and what their bars are called."""
TITLE = "Time or memory of torch and transformers, divided by ours"
WIDTH, ROW, BAR, LABEL = 720, 30, 18, 340
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
rect { fill: #2f6f9f }
.page { fill: #ffffff }
.ratio { font-weight: 600 }
"""


def ratios(readme: str) -> dict[str, float]:
    """Return the ratio beside torch's own in each row, by the row's first cell."""
    rows = (line.strip("| ").split(" | ") for line in readme.splitlines() if re.search(r": [\d.]+x", line))
    return {cells[0]: float(re.search(r"([\d.]+)x", cells[2]).group(1)) for cells in rows}


def draw(found: dict[str, float]) -> str:
    """Return the picture; every bar has its ratio at its end."""
    values = {label: next(x for cell, x in found.items() if cell.startswith(row)) for row, label in BARS.items()}
    longest = max(values.values())
    height = ROW * len(values) + 34
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Ratios">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" class="page"/>',
        f'<text x="12" y="20" class="ratio">{TITLE}</text>',
    ]
    for i, (label, ratio) in enumerate(values.items()):
        y, width = 30 + ROW * i, (WIDTH - LABEL - 60) * ratio / longest
        lines += [
            f'<text x="{LABEL - 10}" y="{y + 14}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>',
            f'<text x="{LABEL + width + 6:.1f}" y="{y + 14}" class="ratio">{ratio:g}x</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "speed.svg", metavar="FILE")
    options = parser.parse_args()
    options.output.write_text(draw(ratios((ROOT / "README.md").read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    main()
