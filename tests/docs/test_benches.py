"""The benchmarks run; the comparison with peers finds every candidate right."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHES = Path(__file__).parents[2] / "benches"
SMALL = {
    "batched.py": "--count 4 --rounds 1",
    "busy_neighbours.py": "--neighbours 0 1 --threads 1 --seconds 0.1",
    "factor.py": "--size 16 --rounds 1 --threads 1",
    "lapack.py": "--sizes 16 --vectors 1 2 --rounds 1",
    "layers.py": "--hidden 16 --steps 5 --rounds 1 --threads 1",
    "migrating.py": "--divide 16 --rounds 1",
    "numerics.py": "--sizes 16",
    "second_derivatives.py": "--rounds 1",
    "streaming.py": "--rounds 1",
    "training_step.py": "--hidden 16 --reflections 4 --batch 2 --rounds 1 --threads 1",
    "versus_delta.py": "--threads 1 --rounds 1 --tokens 32 --works gated KDA Product",
    "uses.py": "--hidden 16 --reflections 4 --input 2 --batch 4 --steps 8 --rounds 1 --threads 1",
}
WITH_OTHERS = {
    "small_matrices.py": ("jax", "--divide 200 --rounds 1"),
    "pretrained.py": ("transformers", "--tokens 8 --rounds 1 --models qwen3_next"),
    "versus_mamba.py": ("transformers", "--tokens 8 --rounds 1"),
    "versus_adapters.py": ("peft", "--size 32 --tokens 4 --rounds 1"),
}
ALONE = {  # scripts that a test of their own runs
    "adapters.py", "deep_networks.py", "delta_memory.py", "plot_peers.py", "publish.py", "scaling.py", "versus_jax.py",
    "versus_peers.py",
}  # fmt: skip


def test_no_benchmark_is_forgotten():
    scripts = {path.name for path in BENCHES.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")}
    assert scripts == SMALL.keys() | WITH_OTHERS.keys() | ALONE


def start(script, *options):
    return subprocess.run([sys.executable, BENCHES / script, *options], capture_output=True, text=True, check=False)


def run(script, *options):
    done = start(script, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("script", SMALL)
def test_benchmarks_print_a_table(script):
    pytest.importorskip("torch")
    assert "|" in run(script, *SMALL[script].split())


@pytest.mark.parametrize(
    "script",
    [
        *(pytest.param(name, marks=pytest.mark.long) for name in ("pretrained.py", "versus_mamba.py")),
        "versus_adapters.py",
    ],
)
def test_comparisons_with_other_libraries_print_a_table(script):
    library, options = WITH_OTHERS[script]
    pytest.importorskip(library, reason=f"{library} is not installed")
    assert "|" in run(script, *options.split())


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "options", "output", "figure"),
    [
        ("deep_networks.py", "--depths 1 2 --widths 16 --rounds 1 --threads 1", "layers.png", "layers.png"),
        ("scaling.py", "--sizes 16 32 --rounds 1", "figures", "figures/scaling.png"),
    ],
)
def test_benchmarks_print_a_table_and_draw_it(script, options, output, figure, tmp_path):
    pytest.importorskip("torch")
    assert "|" in run(script, *options.split(), "--output", tmp_path / output)
    assert (tmp_path / figure).read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_memory_between_the_passes_is_printed_and_drawn(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers", reason="transformers is not installed")
    lines = run("delta_memory.py", "--tokens", "64", "128", "--output", tmp_path / "figure.svg")
    assert lines.count("bytes, operands") == 8
    assert "<svg" in (tmp_path / "figure.svg").read_text()


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_one_adapter_is_measured_beside_the_frozen_layer():
    pytest.importorskip("torch")
    table = run("adapters.py", "--size", "32", "--tokens", "4", "--rounds", "1", "--threads", "1", "--only", "LoRA")
    assert "| frozen layer alone |" in table
    assert "| LoRA |" in table
    assert "| OrthogonalAdapter |" not in table


def test_calls_through_jax_are_measured():
    pytest.importorskip("torch")
    pytest.importorskip("jax", reason="needs jax")
    assert "| W h, 8 x 2, 4 vectors | householder.jax |" in run("versus_jax.py", "--rounds", "1")


def test_a_comparison_on_a_gpu_refuses_what_it_would_ignore():
    pytest.importorskip("torch")
    done = start("versus_peers.py", "--device", "cuda", "--only", "batch", "--threads", "1")
    assert done.returncode == 2
    assert "leave out --only, --threads" in done.stderr


@pytest.mark.long
def test_quick_comparison_and_its_page(tmp_path):
    run("versus_peers.py", "--quick", "--threads", "1", "--only", "n=24|n=32", "--output", tmp_path)
    sequence, application, *_ = json.loads((tmp_path / "versus_peers.json").read_text())["cases"]
    assert [row["candidate"] for row in sequence["rows"]] == ["householder.torch.OrthogonalRNN", "nn.RNN", "nn.LSTM"]
    assert len(application["rows"]) >= 9
    assert all(row["error"] < 1e-4 for case in (sequence, application) for row in case["rows"])
    assert "### application n=32 m=32 B=5" in (tmp_path / "versus_peers.md").read_text()

    run("plot_peers.py", tmp_path, "--output", tmp_path)
    for kind in ("sequences", "applications"):
        assert (tmp_path / f"benchmarks-{kind}.png").read_bytes().startswith(b"\x89PNG")

    page = tmp_path / "page.md"
    names = "machine", "sequence ratios", "application ratios", "sequence", "application", "batch"
    page.write_text("".join(f"<!-- {name} -->\n\n<!-- end -->\n" for name in names))
    run("publish.py", tmp_path, "--page", page)
    ratios = " | ".join(f"{row['median_ratio']:.1f}" for row in sequence["rows"][1:])
    assert f"| d = 2, n = 24, m = 24, B = 3, T = 20 | {ratios} |" in page.read_text()
    assert "### application n=32 m=32 B=5" in page.read_text()
