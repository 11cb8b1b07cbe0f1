"""Every block of Python in the README and on the site runs, each page from top to bottom as its reader would."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def blocks(page):
    """The blocks of Python, each where it stands in the file: a failure then names the page's own line."""
    text = page.read_text(encoding="utf-8")
    for block in re.finditer(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        yield "\n" * text.count("\n", 0, block.start(1)) + block[1]


@pytest.mark.parametrize("page", [page for page in PAGES if any(blocks(page))], ids=lambda page: page.stem)
def test_code_of_a_page_runs(page, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs(notebook, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "notebook"}
    for number, cell in enumerate(json.loads(notebook.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{notebook.name}[{number}]", "exec"), names)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
