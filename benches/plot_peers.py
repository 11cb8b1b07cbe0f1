"""Speed and error of every candidate, drawn from what ``versus_peers.py --output DIR`` wrote.

    python -m benches.plot_peers DIR [DIR ...] [--output docs]

Folders are searched to their bottom. Writes ``benchmarks-sequences.png`` and ``benchmarks-applications.png``: one line
for each case, on the left times relative to householder's, on the right errors relative to float64.
"""

import argparse
import json
from pathlib import Path

from matplotlib.figure import Figure

KINDS = {"sequences": ("sequence",), "applications": ("application", "batch")}
MARKERS = "osDv^P*Xd<>"


def measured(folders):
    """Every case of every file, as ``{case: {candidate: row}}``."""
    files = sorted(file for folder in folders for file in folder.rglob("versus_peers.json"))
    cases = [case for file in files for case in json.loads(file.read_text(encoding="utf-8"))["cases"]]
    return {case["case"]: {row["candidate"]: row for row in case["rows"] if "both" in row} for case in cases}


def size(case):
    """What one orders cases by: n, m and the batch, whatever their number of digits."""
    words = (word.split("=") for word in case.split() if "=" in word)
    return [(name, int(value)) for name, value in sorted(words, key=lambda word: "nmdBT".find(word[0]))]


def draw(cases, path):
    """Two panels over common lines."""
    ours = next(name for rows in cases.values() for name in rows if name.startswith("householder"))
    names = list(dict.fromkeys(name for rows in cases.values() for name in rows))
    order = sorted(cases, key=size, reverse=True)
    figure = Figure(figsize=(12, 2.2 + 0.42 * len(order)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    for i, (marker, name) in enumerate(zip(MARKERS, names, strict=False)):
        lines = [line for line, case in enumerate(order) if name in cases[case]]
        style = {"marker": marker, "color": f"C{i}", "markersize": 6, "linestyle": "", "label": name, "alpha": 0.8}
        if name == ours:
            style |= {"markersize": 10, "zorder": 3}
        values = lambda row: row["both"]["ratio"], lambda row: row["error"]
        for panel, value in zip(panels, values, strict=True):
            panel.plot([value(cases[order[line]][name]) for line in lines], lines, **style)
    panels[0].axvline(1, color="C0", linewidth=1)
    panels[0].set(xscale="log", xlabel="time relative to householder's, least of all rounds (right: slower)")
    panels[1].set(xscale="log", xlabel="error of results and gradients, relative to float64")
    panels[0].set_yticks(
        range(len(order)), [case.partition(" ")[2].replace(" ", ", ").replace("=", " = ") for case in order]
    )
    for panel in panels:
        panel.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path, dpi=110)
    print(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--output", type=Path, default=Path("docs"))
    options = parser.parse_args()
    cases = measured(options.folders)
    for kind, words in KINDS.items():
        chosen = {case: rows for case, rows in cases.items() if case.startswith(words)}
        if chosen:
            draw(chosen, options.output / f"benchmarks-{kind}.png")


if __name__ == "__main__":
    main()
