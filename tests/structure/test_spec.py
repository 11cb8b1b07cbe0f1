"""The table of names and rules, compared with the core, with the kernels for CUDA, with types and with the pages."""

import ast
import inspect
import itertools
import re
from pathlib import Path
from typing import Literal, get_args, get_origin

import numpy as np
import pytest

from householder import _core
from householder._base import spec, types
from householder._base.spec import DTYPES, NONLINEARITIES
from householder._cuda import instances, trials
from householder._functions import plan
from tests.docs.test_docstrings import DESCRIBED, parameter_entries

ROOT = Path(__file__).parents[2]
CODE = ("python", "rust", "cuda")
TEXTS = {".py", ".pyi", ".rs", ".cu", ".cuh", ".md", ".toml", ".yaml", ".hpp", ".cpp"}


def forward(dtype="float64", method="auto", columns="trapezoidal"):
    """Call the core as a backend does."""
    u, h = np.ones((4, 1), dtype), np.ones((2, 4), dtype)
    _core.forward(u, h, np.empty_like(h), None, False, method, False, columns, None)


def recurrence(nonlinearity="identity", dtype="float64", method="auto", n=4, bias=None, slope=0.1, backward=False):
    """Call the core as a backend does, with a bias of this length and without a tape; return the states."""
    u, x = np.ones((n, 1), dtype), -np.ones((3, 2, n), dtype)
    phi_bias = None if bias is None else np.ones(bias, DTYPES[dtype].real)
    inputs = u, x, None, None, None, None, phi_bias, None, None
    options = nonlinearity, slope, False, False, "trapezoidal", method
    h = np.empty_like(x)
    _core.rnn_forward(inputs, options, h, None, False)
    if backward:
        _core.rnn_backward(inputs, options, h, h, None, (np.empty_like(u), *[None] * 7), None)
    return h


def accepts(function, **arguments):
    try:
        function(**arguments)
    except (TypeError, ValueError):
        return False
    return True


@pytest.mark.parametrize(
    ("function", "argument", "names"),
    [
        (recurrence, "nonlinearity", NONLINEARITIES),
        (forward, "method", spec.METHODS),
        (forward, "columns", spec.FORMS),
        (forward, "dtype", spec.CORE),
    ],
)
def test_the_core_has_the_names_of_the_table_and_no_others(function, argument, names):
    with pytest.raises((TypeError, ValueError), match=f"{argument}: expected ") as refusal:
        function(**{argument: "float16" if argument == "dtype" else "unknown"})
    expected = str(refusal.value).partition("expected ")[2].partition(", got")[0]
    assert sorted(re.findall(r"\w+", expected.replace(" or ", " "))) == sorted(names)


@pytest.mark.parametrize("name", NONLINEARITIES)
@pytest.mark.parametrize("dtype", spec.CORE)
def test_the_core_applies_the_rules_of_nonlinearities(name, dtype):
    phi, is_complex = NONLINEARITIES[name], dtype in spec.COMPLEX
    for n in (4, 5):
        lengths = [phi.moduli(n, is_complex)] if phi.has_bias else [None]
        accepted = [
            bias for bias in (None, n // 2, n) if accepts(recurrence, nonlinearity=name, dtype=dtype, n=n, bias=bias)
        ]
        expected = lengths if phi.acts_on(n, is_complex) else []
        assert (accepted if phi.has_bias else accepted[:1]) == expected


@pytest.mark.parametrize("name", NONLINEARITIES)
def test_the_core_reads_the_parameters_of_nonlinearities(name):
    phi = NONLINEARITIES[name]
    bias = phi.moduli(4, False) if phi.has_bias else None
    flat, steep = (recurrence(name, bias=bias, slope=slope) for slope in (0.2, 0.8))
    assert phi.has_slope != np.array_equal(flat, steep)
    assert phi.has_flags != accepts(recurrence, nonlinearity=name, bias=bias, backward=True)


def test_the_core_takes_the_methods_of_sequences():
    assert [method for method in spec.METHODS if accepts(recurrence, method=method)] == list(spec.SEQUENCE_METHODS)


@pytest.mark.parametrize("name", spec.CORE)
def test_types_of_numbers_are_numpys(name):
    a = np.zeros(1, name)
    assert DTYPES[name].real == a.real.dtype
    assert DTYPES[name].double == np.result_type(a, np.float64)
    assert DTYPES[name].compute == name


def test_types_for_type_checkers_have_the_names_of_the_table():
    named = {
        kind: next(get_args(one) for one in get_args(kind) if get_origin(one) is Literal)
        for kind in (types.RealType, types.ComplexType)
    }
    assert list(named.values()) == [spec.REAL, spec.COMPLEX]


def test_torch_has_the_types_of_the_table():
    torch = pytest.importorskip("torch")
    from householder.torch._base import dtypes

    for dtype, name in dtypes.CORE_NAME.items():
        assert torch.empty(1, dtype=dtype).numpy().dtype == name
        assert dtypes.DOUBLE[dtype] is torch.promote_types(dtype, torch.float64)
    halves = dict.fromkeys((torch.bfloat16, torch.float16), torch.float32)
    assert {dtype: dtype for dtype in dtypes.CORE_NAME} | halves == dtypes.COMPUTE_TYPE


def test_kernels_for_cuda_have_a_constant_for_each_nonlinearity():
    constants = re.search(r"enum \{ (.*) \};", (ROOT / "cuda/activation.cuh").read_text("utf-8"))[1].split(", ")
    others = {"MODRELU_COMPLEX"}
    assert sorted(constants) == sorted({name.upper() for name in NONLINEARITIES} | others)
    first = constants.index("MODRELU")  # from here on, nonlinearities have a bias
    assert {name for name, phi in NONLINEARITIES.items() if phi.has_bias} == {
        name.lower() for name in set(constants[first:]) - others
    }


def strings(node):
    """The strings and the names of attributes in a list."""
    for one in getattr(node, "elts", ()):
        if isinstance(one, (ast.Constant, ast.Attribute)):
            yield one.value if isinstance(one, ast.Constant) else one.attr


@pytest.mark.parametrize("names", [DTYPES, NONLINEARITIES, spec.METHODS], ids=["types", "nonlinearities", "methods"])
def test_no_other_file_lists_the_names(names):
    for path in (ROOT / "python").rglob("*.py"):
        if path.name != "spec.py":
            nodes = ast.walk(ast.parse(path.read_text("utf-8")))
            assert not [node.lineno for node in nodes if len(set(strings(node)) & set(names)) > 2], path


def test_tables_of_something_else_have_these_names():
    assert list(plan._REASONS) == list(spec.METHODS[1:])
    assert set(instances.STORED) == set(trials._ALLOWED) == {*spec.REAL, *spec.HALF}
    stub = ast.get_docstring(ast.parse((ROOT / "python/householder/_core.pyi").read_text("utf-8")))
    assert set(re.findall(r'``"(\w+)"``', stub)) == {*spec.METHODS, *spec.FORMS}


def section(page, title):
    """The text of a section of a page."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    return re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)[1]


def test_the_guide_describes_every_nonlinearity():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\| (.*?) ?\|", section("choosing.md", "Nonlinearity"), re.MULTILINE)

    def described(phi):
        states = [f"real{' (n even)' * phi.is_paired}", *["complex"] * (not phi.is_real)]
        biases = ["`(n/2,)`" if phi.is_paired else "`(n,)`", *["complex `(n,)`"] * (not phi.is_real)]
        return phi.name, ", ".join(states), ", ".join(biases * phi.has_bias)

    assert rows == [described(phi) for phi in NONLINEARITIES.values()]


@pytest.mark.parametrize("name", DESCRIBED)
def test_docstrings_list_the_names_of_the_table(name):
    thing = DESCRIBED[name]
    methods = spec.SEQUENCE_METHODS if "nonlinearity" in inspect.signature(thing).parameters else spec.METHODS
    for names, kind in parameter_entries(thing):
        if kind.startswith("{") and {"method", "columns"} & set(names):
            assert re.findall(r'"(\w+)"', kind) == list(methods if "method" in names else spec.FORMS)
    one = rf"\b(?:{'|'.join(spec.CORE)})\b"
    for listed in re.findall(rf"{one}(?:(?:,|,? or|,? and) {one})+", inspect.getdoc(thing)):
        assert set(re.findall(one, listed)) in map(set, (spec.CORE, spec.REAL, spec.COMPLEX))


def mentioning(text):
    """The files of the project that contain a name, as Python, Rust or C++ spells it."""
    spelled = re.compile(text.replace("_", "_?"), re.IGNORECASE)
    folders = (*CODE, "docs", "tests", "benches", "fuzz/src", "examples")
    paths = itertools.chain(ROOT.glob("*.md"), *((ROOT / folder).rglob("*") for folder in folders))
    texts = (path for path in paths if path.suffix in TEXTS and path.is_file())
    return {str(path.relative_to(ROOT)) for path in texts if spelled.search(path.read_text("utf-8"))}


def listed_files(title):
    return set(re.findall(r"`([\w/-]+\.\w+)`", section("architecture.md", title)))


@pytest.mark.parametrize("title", ["To add a nonlinearity", "To add an operation", "To add a dtype"])
def test_the_files_that_the_page_lists_exist(title):
    listed = listed_files(title)
    assert listed
    assert [path for path in listed if not (ROOT / path).is_file()] == []


def test_a_nonlinearity_stands_in_few_files_which_the_page_lists():
    everywhere = set.intersection(*map(mentioning, NONLINEARITIES))  # the others use some of them
    code = {path for path in everywhere if path.startswith(CODE) and not path.endswith(".md")}
    assert everywhere <= listed_files("To add a nonlinearity")
    assert len(code) <= 6
    assert len(everywhere) <= 14


def test_an_operation_of_torch_stands_in_few_files_which_the_page_lists():
    listed = listed_files("To add an operation")
    assert len(listed) <= 8
    assert {path for path in mentioning("delta") if "/torch/_ops/" in path} <= listed
