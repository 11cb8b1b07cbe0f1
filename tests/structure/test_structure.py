"""Modules import each other in one direction: what a module needs can be read without what needs it."""

import ast
import os
import re
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Path_ = tuple[str, ...]


def modules(root: Path, suffix: str, package_file: str) -> dict[Path_, Path]:
    found = {}
    for path in root.rglob(f"*{suffix}"):
        parts = path.relative_to(root).with_suffix("").parts
        found[parts[:-1] if parts[-1] == package_file else parts] = path
    return found


def rust_paths(tree: str) -> Iterator[str]:
    """Flatten ``a::{b, c::{d, e}}``."""
    head, brace, rest = tree.partition("{")
    if not brace:
        yield head.split(" as ")[0].strip()
        return
    depth, item = 0, ""
    for character in rest.rpartition("}")[0] + ",":
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            yield from (head.strip() + path for path in rust_paths(item) if item.strip())
            item = ""
        else:
            item += character


def rust_imports(module: Path_, path: Path) -> Iterator[Path_]:
    text = re.sub(r"//.*", "", path.read_text("utf-8")).partition("#[cfg(test)]")[0]
    for tree in re.findall(r"^\s*(?:pub(?:\(\w+\))? )?use ([^;]+);", text, re.MULTILINE):
        for imported in rust_paths(tree):
            parts = tuple(imported.split("::"))
            if parts[0] == "crate":
                yield parts[1:]
            else:
                supers = len(list(takewhile("super".__eq__, parts)))
                yield module[: len(module) - supers] + parts[supers:]


def python_imports(_module: Path_, path: Path) -> Iterator[Path_]:
    tree = ast.parse(path.read_text("utf-8"))
    typing_only = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    ]
    skipped = {id(node) for block in typing_only for node in ast.walk(block)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in skipped:
            for name in node.names:
                yield (*node.module.split("."), name.name)[1:]
        elif isinstance(node, ast.Import) and id(node) not in skipped:
            for name in node.names:
                yield tuple(name.name.split("."))[1:]


def circle(found: dict[Path_, Path], imports) -> list[Path_]:
    """Return a circle of imports; a module and the package that contains it count as one step down, not as a circle."""
    graph: dict[Path_, set[Path_]] = {module: set() for module in found}
    for module, path in found.items():
        for imported in imports(module, path):
            while imported and imported not in found:
                imported = imported[:-1]
            if imported and imported != module[: len(imported)]:
                graph[module].add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


@pytest.mark.parametrize("root", ["rust/core", "rust/binding", "rust/python", "rust/torch", "fuzz/src"])
def test_rust_modules_import_in_one_direction(root):
    assert circle(modules(ROOT / root, ".rs", "mod"), rust_imports) == []


def test_python_modules_import_in_one_direction():
    assert circle(modules(ROOT / "python/householder", ".py", "__init__"), python_imports) == []


def test_a_circle_is_found(tmp_path):
    (tmp_path / "a.rs").write_text("use crate::b::{self, thing};")
    (tmp_path / "b.rs").write_text("use super::a;")
    assert circle(modules(tmp_path, ".rs", "mod"), rust_imports)


def test_the_page_of_the_tests_names_every_folder_and_files_that_exist():
    tests = ROOT / "tests"
    named = re.findall(r"`([\w/.]+(?:/|\.py|\.rs))`", (tests / "README.md").read_text("utf-8"))
    missing = [name for name in named if not (tests / name).exists() and not (tests / "numpy" / name).exists()]
    assert not missing
    files = [file for suffix in ("py", "rs") for file in tests.rglob(f"*.{suffix}") if file.name != "__init__.py"]
    folders = {f"{file.parent.relative_to(tests).as_posix()}/" for file in files} - {"./"}
    assert folders <= set(named)


@pytest.mark.parametrize(
    ("function", "most", "call"),
    [
        ("forward", 4, lambda ht, torch: ht.apply(torch.ones(4, 2, requires_grad=True), torch.ones(4))),
        ("rnn_forward", 6, lambda ht, torch: ht.OrthogonalRNN(3, 4)(torch.ones(5, 2, 3))),
    ],
)
def test_few_frames_lead_from_a_users_call_to_the_core(monkeypatch, function, most, call):
    torch = pytest.importorskip("torch")
    import householder.torch as ht
    from householder import _core

    names, native = [], getattr(_core, function)

    def watched(*arguments):
        frame = sys._getframe(1)
        while frame:
            if f"{os.sep}householder{os.sep}" in frame.f_code.co_filename and "test" not in frame.f_code.co_filename:
                names.append(frame.f_code.co_qualname)
            frame = frame.f_back
        return native(*arguments)

    monkeypatch.setattr(_core, function, watched)
    call(ht, torch)
    assert len(names) <= most, names
