"""Every block of Python in the README and on the site runs, each page from top to bottom as its reader would."""

import importlib
import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def blocks(text):
    """The blocks of Python, each where it stands in the text: a failure then names the page's own line."""
    for block in re.finditer(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        yield "\n" * text.count("\n", 0, block.start(1)) + block[1]


def run_blocks(text, file):
    """Run the blocks one after the other, as somebody does who pastes them."""
    names = {"__name__": "page"}
    for block in blocks(text):
        exec(compile(block, file, "exec"), names)


WITH_CODE = [page for page in PAGES if page.stem != "migrating" and any(blocks(page.read_text(encoding="utf-8")))]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_code_of_a_page_runs(page, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    text = page.read_text(encoding="utf-8")
    if "householder.jax" in text:
        pytest.importorskip("jax", reason="needs jax")
    monkeypatch.chdir(tmp_path)
    run_blocks(text, str(page))


def test_a_section_of_the_page_for_migration_runs_when_pasted_alone(tmp_path, monkeypatch):
    pytest.importorskip("peft", reason="needs peft")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
    for section in re.split(r"^## ", text, flags=re.MULTILINE):
        run_blocks(section, section.partition("\n")[0])


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs(notebook, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "notebook"}
    for number, cell in enumerate(json.loads(notebook.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{notebook.name}[{number}]", "exec"), names)


@pytest.fixture(scope="module", autouse=True)
def _my_module(tmp_path_factory):
    """Put the module that a page shows where its command lines find it."""
    text = (ROOT / "docs" / "train-your-own.md").read_text(encoding="utf-8")
    (code,) = (block for block in blocks(text) if "class FirstSymbol" in block)
    folder = tmp_path_factory.mktemp("modules")
    (folder / "my_module.py").write_text(code, encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


def test_the_task_of_a_page_is_judged_by_data_of_its_own():
    task = importlib.import_module("my_module").FirstSymbol()
    parts = [next(task.held_out(part)).targets.tolist() for part in ("validation", "test")]
    assert len({tuple(part) for part in [*parts, task.batch(500, 1, 0, 0).targets.tolist()]}) == 3


def command_lines():
    """Every call of the command in blocks of shell code, and where it stands."""
    for page in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE):
            for line in re.findall(r"\bhouseholder (.*)", block.replace("\\\n", "")):
                yield pytest.param(line.split("#")[0].strip(") "), id=f"{page.stem}-{line[:40]}")


@pytest.mark.parametrize("line", list(command_lines()))
def test_command_lines_are_understood(line, tmp_path):
    cli = pytest.importorskip("householder.cli.entry")
    asked = {
        name: getattr(pytest.importorskip(f"householder_experiments.{module}"), function)
        for name, module, function in (("train", "session", "asked"), ("compare", "compare", "asked_grid"))
    }
    line = line.replace("DIR", str(tmp_path)).replace("TASK", "digits").replace("RUN", str(tmp_path))
    options = cli.parser().parse_args(shlex.split(line))
    if options.command.name in asked and not options.resume:
        options.changes = [change for change in options.changes if ".." not in change]
        named = pytest.importorskip("householder_experiments.arguments").named_modules(options)
        with pytest.importorskip("householder_experiments.own").permitted(named):
            assert asked[options.command.name](options)


@pytest.mark.parametrize(
    "line",
    [
        "train digits --set models.ornn.rate=1",
        "train digits --model gru",
        "compare digits --models gru",
        "compare digits --over task.delay=1,2",
    ],
)
def test_command_lines_that_no_longer_work_are_noticed(line, tmp_path):
    errors = pytest.importorskip("householder.cli.errors")
    with pytest.raises(errors.UserError):
        test_command_lines_are_understood(line, tmp_path)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


NAMED_FILE = re.compile(r"(?<![\w/.:<-])((?:\.?\w[\w.-]*/)+[\w.-]+\.(?:py|rs|cpp|md|ya?ml|json|toml|ipynb))\b")
NAMED_MODULE = re.compile(r"python -m (benches[.\w]*)")
PLACEHOLDER = re.compile(r"[A-Z]+")


def named_files(text):
    """The files that a page names by a path of two or more parts or runs as modules; ``FILE.json`` is none."""
    modules = (module.replace(".", "/") + ".py" for module in NAMED_MODULE.findall(text))
    return {path for path in (*NAMED_FILE.findall(text), *modules) if not PLACEHOLDER.fullmatch(Path(path).stem)}


@pytest.fixture(scope="module")
def endings():
    """The path of each file of the repository, and what remains of it without its first folders."""
    folders = (
        "benches",
        "cuda",
        "docs",
        "examples",
        "experiments",
        "fuzz",
        "python",
        "rust",
        "tests",
        ".ci",
        ".github",
    )
    paths = [path.relative_to(ROOT).parts for folder in folders for path in (ROOT / folder).rglob("*.*")]
    return {"/".join(path[first:]) for path in paths for first in range(len(path))}


OTHER_PAGES = [ROOT / "CONTRIBUTING.md", *(ROOT / folder / "README.md" for folder in ("experiments", "rust", "tests"))]


@pytest.mark.parametrize("page", [*PAGES, *OTHER_PAGES], ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_files_that_a_page_names_exist(page, endings):
    assert named_files(page.read_text(encoding="utf-8")) - endings == set()


def test_a_path_that_lacks_a_folder_is_noticed(endings):
    text = "`experiments/models/looped.py`, benches/results/FILE.json, python -m benches.pages.looped"
    assert named_files(text) - endings == {"experiments/models/looped.py", "benches/pages/looped.py"}


@pytest.mark.parametrize("name", ["householder", "householder.torch", "householder.jax"])
def test_every_public_name_has_its_place_in_the_reference(name):
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/api").glob("*.md"))
    assert set(re.findall(rf":: {name}\.(\w+)(?:\(\))?\n", pages)) >= set(pytest.importorskip(name).__all__)


@pytest.mark.parametrize(
    ("short", "name"), [("hh", "householder"), ("ht", "householder.torch"), ("hj", "householder.jax")]
)
def test_every_public_function_stands_in_the_table_of_names(short, name):
    functions = {f"{short}.{function}" for function in pytest.importorskip(name).__all__ if function[0].islower()}
    table = (ROOT / "docs/api/names.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(h[htj]\.\w+)`", table)) >= functions


def test_the_table_of_arguments_is_up_to_date():
    for name in ("torch", "jax"):
        pytest.importorskip(name)
    names = runpy.run_path(str(ROOT / "docs" / "names.py"))
    text = names["PAGE"].read_text(encoding="utf-8")
    assert text == names["page"](text), "run: python docs/names.py"


def test_the_table_of_model_types_is_up_to_date():
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    models = runpy.run_path(str(ROOT / "docs" / "model_types.py"))
    text = models["PAGE"].read_text(encoding="utf-8")
    assert text == models["page"](text), "run: python docs/model_types.py"


def accelerated_types():
    """Model types of the rows of the table that say yes."""
    rows = re.findall(
        r"^\| (`.*`) \| .* \| yes \|$", (ROOT / "docs" / "delta-rule.md").read_text("utf-8"), re.MULTILINE
    )
    return sorted(name for names in rows for name in re.findall(r"`(\w+)`", names))


def test_every_accelerated_model_type_of_the_table_is_tested():
    """By tests of ours, and by its own of transformers."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers", minversion="5")
    from tests.torch.compat.test_pretrained import MODELS

    upstream = runpy.run_path(str(ROOT / "tests" / "upstream" / "models_of_transformers.py"))
    assert accelerated_types() == sorted(MODELS) == upstream["supported"]()


def test_the_page_of_commands_and_settings_is_up_to_date():
    pytest.importorskip("lightning_fabric")
    names = runpy.run_path(str(ROOT / "docs" / "command_line.py"))
    page = names["page"]()
    assert names["PAGE"].read_text(encoding="utf-8") == page, "run: python docs/command_line.py"
    assert "<class" not in page


def test_every_setting_is_described_and_counts_have_units():
    pytest.importorskip("lightning_fabric")
    names = runpy.run_path(str(ROOT / "docs" / "command_line.py"))
    kinds = [*names["PACKAGED_TASKS"].values(), *names["PACKAGED_MODELS"].values(), names["Experiment"]]
    for kind in kinds:
        for name, field in kind.model_fields.items():
            assert field.description or name == "kind", (kind, name)
            if "integer" in names["field_type"](field) and name not in ("seed", "excerpt"):
                assert names["unit"](field), (kind, name)


@pytest.mark.parametrize("command", ["train", "compare"])
def test_help_lists_tasks_and_models_with_a_line_each(command, capsys):
    entry = pytest.importorskip("householder.cli.entry")
    catalogue = pytest.importorskip("householder_experiments.catalogue")
    with pytest.raises(SystemExit):
        entry.main([command, "--help"])
    out = capsys.readouterr().out
    for name, line in {**catalogue.TASKS, **catalogue.MODELS}.items():
        assert f"  {name:<16}{line}\n" in out
