"""Modules import each other in one direction: what a module needs can be read without what needs it."""

import ast
import importlib.metadata
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


def test_the_core_has_folders_with_few_files_beside_them():
    assert len([path for path in (ROOT / "rust/core").iterdir() if path.is_file()]) <= 8


@pytest.mark.parametrize("root", ["python/householder", "experiments/householder_experiments"])
def test_python_modules_import_in_one_direction(root):
    assert circle(modules(ROOT / root, ".py", "__init__"), python_imports) == []


WINGS = ["_base", "_ops", "functions", "layers", "acceleration"]
PUBLIC = ["__init__.py", "fla.py", "flops.py", "parametrizations.py"]


def test_wings_of_torch_import_in_one_direction():
    root = ROOT / "python/householder/torch"
    assert sorted(path.name for path in root.iterdir() if path.name != "__pycache__") == sorted(WINGS + PUBLIC)
    arrows = {
        (wing, imported[1])
        for wing in WINGS
        for module, path in modules(root / wing, ".py", "__init__").items()
        for imported in python_imports(module, path)
        if imported[:1] == ("torch",) and imported[1:2] not in ((), (wing,))
    }
    assert [(wing, below) for wing, below in arrows if below not in WINGS[: WINGS.index(wing)]] == []
    assert len(arrows) <= 9


def test_a_circle_is_found(tmp_path):
    (tmp_path / "a.rs").write_text("use crate::b::{self, thing};")
    (tmp_path / "b.rs").write_text("use super::a;")
    assert circle(modules(tmp_path, ".rs", "mod"), rust_imports)


SHARED_TYPES = {"Cotangents", "Gradients", "Operands", "Saved", "Sizes"}
"""Types that several operations of the crate have, each in its own module, such as ``delta::Gradients``."""


def test_types_of_rust_have_names_of_their_own():
    defined: dict[str, list[Path]] = {}
    # Associated types, which are indented, have the names of their traits.
    pattern = r"^(?: *(?:pub(?:\(\w+\))? )?(?:unsafe )?(?:struct|enum|union|trait)|(?:pub(?:\(\w+\))? )?type) (\w+)"
    for path in (ROOT / "rust").rglob("*.rs"):
        text = path.read_text("utf-8").partition("#[cfg(test)]\nmod tests")[0]
        for name in re.findall(pattern, text, re.MULTILINE):
            defined.setdefault(name, []).append(path.relative_to(ROOT))
    several = {name: paths for name, paths in defined.items() if len(paths) > 1}
    assert several.keys() == SHARED_TYPES, several


def test_the_page_of_the_tests_names_every_folder_and_files_that_exist():
    tests = ROOT / "tests"
    named = re.findall(r"`([\w/.]+(?:/|\.py|\.rs))`", (tests / "README.md").read_text("utf-8"))
    missing = [name for name in named if not (tests / name).exists() and not (tests / "numpy" / name).exists()]
    assert not missing
    files = [file for suffix in ("py", "rs") for file in tests.rglob(f"*.{suffix}") if file.name != "__init__.py"]
    folders = {f"{file.parent.relative_to(tests).as_posix()}/" for file in files} - {"./"}
    assert folders <= set(named)


TRIED = {"torch": "2.15", "transformers": "5", "peft": "0.21"}
"""The last versions whose undocumented names were tried with all tests: raise one after the next passed them."""
OF_OTHERS = {
    r"\bhra_[a-z]": {"torch/acceleration/hra.py"},
    r"torch_chunk_gated_delta_rule|mamba2_chunk_scan": {"torch/acceleration/pretrained.py"},
    r"\bfla\.(?:backends|ops)": {"torch/fla.py", "torch/functions/fla_kernels.py"},
}


def names_of_others(path: Path) -> Iterator[str]:
    """Yield the names with an underscore that a file takes from others; methods that it extends are its own."""
    of_tuples = {"_make", "_replace", "_fields", "_asdict"}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("householder"):
            yield from (one.name for one in node.names if re.match(r"_[a-z]", one.name, re.IGNORECASE))
        elif isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr, re.IGNORECASE):
            own = node.attr in of_tuples or (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
            if not own and not ast.unparse(node).startswith("super()."):
                yield node.attr


def test_undocumented_names_of_other_packages_stand_in_one_file_each():
    root = ROOT / "python/householder"
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py") if "cli" not in path.parts}
    assert {file for file, path in files.items() if set(names_of_others(path))} == {"torch/_base/undocumented.py"}
    for names, places in OF_OTHERS.items():
        found = {file for file, path in files.items() if re.search(names, path.read_text("utf-8"))}
        assert found == places, names


@pytest.mark.parametrize("package", TRIED)
def test_undocumented_names_were_tried_with_the_installed_version(package):
    pytest.importorskip(package)
    installed, tried = (
        [int(part) for part in text.split(".")[:2]] for text in (importlib.metadata.version(package), TRIED[package])
    )
    assert installed[: len(tried)] <= tried


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("name", "most", "deepest"), [("hh.apply", 1, 1), ("ht.apply", 8, 4), ("ht.OrthogonalRNN", 12, 6)]
)
def test_a_small_call_takes_few_calls_of_ours(name, most, deepest, gradients):
    torch = pytest.importorskip("torch")
    import householder as hh
    import householder.torch as ht
    from householder import _core

    of_graph = 3  # the autograd function, and what it saves
    u, x, layer = torch.ones(4, 2), torch.ones(3, 2, 4), ht.OrthogonalRNN(4, 4, num_reflections=2)
    arrays = u.numpy(), x.numpy()
    layer.requires_grad_(gradients)
    u.requires_grad_(gradients)
    calls = {
        "hh.apply": lambda: hh.apply(*arrays),
        "ht.apply": lambda: ht.apply(u, x),
        "ht.OrthogonalRNN": lambda: layer(x),
    }
    names, open_calls, depths = [], [], []

    def watch(frame, event, function):
        if not frame.f_globals["__name__"].startswith("householder"):
            return
        if event == "call":
            names.append(frame.f_code.co_qualname)
            open_calls.append(names[-1])
        elif event == "return":
            open_calls.pop()
        elif event == "c_call" and function in (_core.forward, _core.rnn_forward):
            depths.append(len(open_calls))

    calls[name]()
    sys.setprofile(watch)
    try:
        calls[name]()
    finally:
        sys.setprofile(None)
    assert len(names) <= most + of_graph * gradients, names
    (depth,) = depths  # the core is called once
    assert depth <= deepest, names
