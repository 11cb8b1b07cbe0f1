"""The benchmarks run, each at its smallest size; the comparison with peers finds every candidate right."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = {
    "busy_neighbours": "--neighbours 0 1 --threads 1 --seconds 0.1",
    "layers": "--hidden 16 --steps 5 --rounds 1 --threads 1",
    "migrating": "--divide 16 --rounds 1",
    "numerics": "--sizes 16",
    "second_derivatives": "--rounds 1",
    "training_step": "--hidden 16 --reflections 4 --batch 2 --rounds 1 --threads 1",
    "versus_delta": "--threads 1 --rounds 1 --tokens 32 --works gated KDA Product",
    "uses": "--hidden 16 --reflections 4 --input 2 --batch 4 --steps 8 --rounds 1 --threads 1",
}
WITH_OTHERS = {
    "pretrained": ("transformers", "--tokens 8 --rounds 1 --models qwen3_next"),
    "versus_adapters": ("peft", "--size 32 --tokens 4 --rounds 1"),
    "versus_jax": ("jax", "--rounds 1"),
}
ALONE = {"adapters", "deep_networks", "delta_memory", "scaling"}
"""Scripts that a test of their own runs."""


def test_no_benchmark_is_forgotten():
    scripts = {path.stem for path in (ROOT / "benches/pages").glob("*.py")}
    assert scripts == SMALL.keys() | WITH_OTHERS.keys() | ALONE


def start(script, *options):
    command = [sys.executable, "-m", f"benches.{script}", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def run(script, *options):
    done = start(script, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("script", SMALL)
def test_benchmarks_print_a_table(script):
    pytest.importorskip("torch")
    assert "|" in run(f"pages.{script}", *SMALL[script].split())


@pytest.mark.parametrize(
    "script", [pytest.param("pretrained", marks=pytest.mark.long), "versus_adapters", "versus_jax"]
)
def test_comparisons_with_other_libraries_print_a_table(script):
    library, options = WITH_OTHERS[script]
    pytest.importorskip("torch")
    pytest.importorskip(library, reason=f"{library} is not installed")
    assert "|" in run(f"pages.{script}", *options.split())


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "options", "output", "figure"),
    [
        ("deep_networks", "--depths 1 2 --widths 16 --rounds 1 --threads 1", "layers.png", "layers.png"),
        ("scaling", "--sizes 16 32 --rounds 1", "figures", "figures/scaling.png"),
    ],
)
def test_benchmarks_print_a_table_and_draw_it(script, options, output, figure, tmp_path):
    pytest.importorskip("torch")
    assert "|" in run(f"pages.{script}", *options.split(), "--output", tmp_path / output)
    assert (tmp_path / figure).read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_memory_between_the_passes_is_printed_and_drawn(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers", reason="transformers is not installed")
    lines = run("pages.delta_memory", "--tokens", "64", "128", "--output", tmp_path / "figure.svg")
    assert lines.count("bytes, operands") == 8
    assert "<svg" in (tmp_path / "figure.svg").read_text()


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_one_adapter_is_measured_beside_the_frozen_layer():
    pytest.importorskip("torch")
    options = "--size 32 --tokens 4 --rounds 1 --threads 1 --only LoRA"
    table = run("pages.adapters", *options.split())
    assert "| frozen layer alone |" in table
    assert "| LoRA |" in table
    assert "| OrthogonalAdapter |" not in table


def test_a_comparison_on_a_gpu_refuses_what_it_would_ignore():
    pytest.importorskip("torch")
    done = start("versus_peers", "--device", "cuda", "--only", "batch", "--threads", "1")
    assert done.returncode
    assert "leave out --only, --threads" in done.stderr
