"""``householder info`` and ``householder bench``, as a user calls them."""

import os
import sys

import pytest

import householder
from householder import _core, cli
from householder._base import torch_library
from householder.cli import info


def test_info_names_versions_and_instruction_set(capsys):
    assert cli.main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = {line.split("  ")[0]: line for line in lines}
    assert householder.__version__ in found["householder"]
    assert {"NumPy", "torch", "processor", "instruction set", "threads", "huge pages", "CUDA"} <= set(found)


@pytest.mark.parametrize(("wanted", "remark"), [(_core.instruction_set(), ")"), ("AVX2", " is ignored: this machine")])
def test_info_says_what_was_forced(monkeypatch, wanted, remark):
    monkeypatch.setitem(os.environ, "HOUSEHOLDER_SIMD", wanted)
    assert f"(HOUSEHOLDER_SIMD={wanted}{remark}" in info.describe()["instruction set"]


def test_info_prints_the_path_of_the_library_without_python(monkeypatch, capsys):
    if path := torch_library.path():
        assert cli.main(["info", "--libraries"]) == 0
        assert capsys.readouterr().out == f"{path}\n"
    monkeypatch.setattr(torch_library, "path", lambda: None)
    assert cli.main(["info", "--libraries"]) == 2
    assert "has no library for programs without Python" in capsys.readouterr().err


def test_info_needs_nothing_but_numpy(run_script):
    out = run_script(
        """
import sys
sys.modules.update(dict.fromkeys(("torch", "cupy", "lightning_fabric", "pydantic", "yaml", "matplotlib")))
from householder.cli import main
sys.exit(main(["info"]))
"""
    )
    assert "NumPy" in out


def test_bench_measures_prints_and_draws(tmp_path, monkeypatch, capsys):
    bench = pytest.importorskip("householder.cli.bench")
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(bench, "cases", lambda every=bench.cases: every()[-2:-1])
    figure = tmp_path / "bench.png"
    assert cli.main(["bench", "--seconds", "0", "--output", str(figure)]) == 0
    out = capsys.readouterr().out
    assert "householder" in out
    assert "1.00x" in out
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "0"], "--threads: expected an integer from 1 on, got '0'"),
        (["--seconds", "-5"], "--seconds: expected a number of seconds from 0 on, got '-5'"),
        (["--seconds", "nan"], "--seconds: expected a number of seconds"),
        (["--seconds", "0", "--output", "missing/bench.png"], "cannot write missing/bench.png"),
    ],
)
def test_mistakes_are_one_line(arguments, message, tmp_path, monkeypatch, call):
    bench = pytest.importorskip("householder.cli.bench")
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "cases", lambda every=bench.cases: every()[-2:-1])
    status, _, err = call("bench", *arguments)
    assert (status, err.count("\n")) == (2, 1)
    assert message in err


def test_bench_without_torch_says_what_to_install(monkeypatch, refusal):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install torch" in refusal("bench")
