"""The benchmarks run, each at its smallest size; the comparison with peers finds every candidate right."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = {
    "busy_neighbours": "--neighbours 1 --threads 1 --seconds 0.1",
    "deployment": "--hidden 16 --reflections 4 --batch 2 --steps 4 --rounds 1 --profile dev",
    "layers": "--hidden 16 --steps 5 --rounds 1 --threads 1",
    "migrating": "--divide 16 --rounds 1",
    "numerics": "--sizes 16",
    "second_derivatives": "--rounds 1",
    "small_calls": "--rounds 1",
    "states": "--rounds 1 --tokens 256",
    "training_step": "--hidden 16 --reflections 4 --batch 2 --rounds 1 --threads 1",
    "versus_delta": "--threads 1 --rounds 1 --tokens 32 --works gated KDA Product step",
    "uses": "--hidden 16 --reflections 4 --input 2 --batch 4 --steps 8 --rounds 1 --threads 1",
}
WITH_OTHERS = {
    "gated_layer": ("transformers", "--tokens 8 --rounds 1"),
    "gpu_host": ("cupy", "--rounds 1"),
    "operations": ("transformers", ""),
    "pretrained": ("transformers", "--threads 1 --tokens 8 --rounds 1 --models qwen3_5"),
    "versus_adapters": ("peft", "--size 32 --tokens 4 --rounds 1"),
    "versus_fallbacks": ("transformers", "--tokens 64 --rounds 1"),
    "versus_mamba": ("transformers", "--tokens 8 --rounds 1"),
    "versus_jax": ("jax", "--rounds 1"),
}
ALONE = {"adapters", "deep_networks", "delta_memory", "first_screen", "gradient_norms", "scaling"}
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
    "script",
    [
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("gated_layer", "gpu_host", "operations", "pretrained", "versus_fallbacks", "versus_mamba")
        ),
        "versus_adapters",
        "versus_jax",
    ],
)
def test_comparisons_with_other_libraries_print_a_table(script):
    library, options = WITH_OTHERS[script]
    pytest.importorskip("torch")
    pytest.importorskip(library, reason=f"{library} is not installed")
    assert "|" in run(f"pages.{script}", *options.split())


def test_the_first_picture_says_what_the_table_says(tmp_path):
    run("pages.first_screen", "--output", tmp_path / "speed.svg")
    assert (tmp_path / "speed.svg").read_text("utf-8") == (ROOT / "docs/speed.svg").read_text("utf-8")


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


def test_gradients_keep_their_norm_where_the_page_says_so(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("lightning_fabric")
    short = "--steps", "100", "--updates", "5"
    lines = run("pages.gradient_norms", *short, "--output", tmp_path / "figure.svg").splitlines()
    norms = {line[:38].strip(): [float(norm) for norm in line[38:].split()] for line in lines[1:-1]}
    first = {name: of_network[2] for name, of_network in norms.items()}
    kept = {name for name, norm in first.items() if 0.5 < norm < 2}
    assert kept == {"OrthogonalRNN, OPLU", "OrthogonalRNN, modReLU", "free matrix, orthogonal start, OPLU"}
    assert norms["OrthogonalRNN, OPLU"][5] == pytest.approx(1, abs=0.1)  # training changes nothing of it
    assert first["OrthogonalRNN, leaky ReLU (default)"] > 1e-2
    assert max(norm for name, norm in first.items() if "tanh" in name or name.startswith("nn.")) < 1e-9
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


@pytest.mark.long
def test_quick_comparison_and_its_pages(tmp_path, monkeypatch):
    pytest.importorskip("jax", reason="JAX is one of the rivals")
    monkeypatch.syspath_prepend(str(ROOT))
    from benches import publish

    run("versus_peers", "--quick", "--threads", "1", "--output", tmp_path)
    cases = {case["case"]: case["rows"] for case in json.loads((tmp_path / "versus_peers.json").read_text())["cases"]}
    assert all(row["error"] < 1e-4 for rows in cases.values() for row in rows)
    sequence, application = cases["sequence d=2 n=64 m=8 B=10 T=50"], cases["application n=32 m=32 B=5"]
    names = {row["candidate"] for row in sequence}
    assert names >= {"householder.torch.OrthogonalRNN", "nn.RNN", "dense loop, by hand",
                     "compact WY loop, by hand", "jax.lax.scan, dense", "ONNX Runtime"}  # fmt: skip
    assert len(application) >= 7
    assert "### application n=32 m=32 B=5" in (tmp_path / "versus_peers.md").read_text()

    run("plot_peers", tmp_path, "--output", tmp_path)
    for kind in ("sequences", "applications"):
        assert (tmp_path / f"benchmarks-{kind}.png").read_bytes().startswith(b"\x89PNG")

    page = tmp_path / "page.md"
    pages = [ROOT / name for name in publish.PAGES]
    places = [name for path in pages for name in re.findall("<!-- (.*) -->", path.read_text()) if name != "end"]
    page.write_text("".join(f"<!-- {name} -->\n\n<!-- end -->\n" for name in places))
    run("publish", tmp_path, "--pages", page)
    rnn = next(row for row in sequence if row["candidate"] == "nn.RNN")["both"]["ratio"]
    assert re.search(
        rf"\| d = 2, n = 64, m = 8, B = 10, T = 50 \| \S+ \| {rnn:.{1 if rnn >= 10 else 2}f} \|", page.read_text()
    )
    assert "### application n=32 m=32 B=5" in page.read_text()


def test_a_wrong_rival_is_not_timed(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT))
    from benches import cases, versus_peers

    right = torch.ones(3, dtype=torch.float64)
    wrong = cases.Candidate(
        "wrong", lambda: (right, right), lambda: right.float(), lambda: (right.float(), 1.1 * right)
    )
    with pytest.raises(SystemExit, match=r"wrong is wrong by 0\.1"):
        versus_peers.largest_error(cases.QUICK[0], wrong)


def test_the_suite_has_the_works_of_the_comparison_and_names_each_once(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT))
    from benches import cases, suite

    assert set(suite.WATCHED) <= set(cases.CASES)
    assert len({str(case) for case in cases.CASES}) == len(cases.CASES)
    assert len(suite.WATCHED) + len(suite.DELTA) >= 30


def test_what_became_slower_is_measured_again_before_it_is_named(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT))
    from benches import suite

    def entries(**figures):
        return {name: {"ms": [], "figures": list(values)} for name, values in figures.items()}

    old = entries(same=(1, 1, 1), noisy=(1, 1, 1.5), slower=(1, 1, 1), unlucky=(1, 1, 1), a_little=(1, 1, 1))
    new = entries(same=(1, 1, 1), noisy=(1.4, 1.4, 1.4), slower=(1.2, 1.2, 1.2), unlucky=(1.3, 1.3, 1.3),
                  a_little=(1.09, 1.09, 1.09), new=(1, 1, 1))  # fmt: skip
    asked = []

    def again(only):
        asked.append(only)
        return entries(slower=(1.2,), unlucky=(1,)) if len(asked) == 1 else entries(slower=(1.3,))

    assert suite.slower(new, old, again) == ["slower"]
    assert asked == ["^(slower|unlucky)$", "^(slower)$"]


@pytest.mark.long
def test_the_suite_compares_with_earlier_results_of_the_same_setting_alone(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed")
    results = tmp_path / "results.json"
    run("suite", "--quick", "--processes", "1", "--output", results)
    old = json.loads(results.read_text())
    assert set(old) == {"commit", "date", "setting", "works"}
    assert len(old["works"]) > 20
    step = "step n=24 m=8, forward"
    for name, work in old["works"].items():  # others cannot have become slower, whatever else the machine does
        work["figures"] = [figure / 3 if name == step else figure * 30 for figure in work["figures"]]
    results.write_text(json.dumps(old))
    done = start("suite", "--quick", "--processes", "1", "--only", "step", "--compare", results)
    assert done.returncode
    assert done.stderr.strip().endswith(f"slower: {step}")
    old["setting"]["threads"] = "7"
    results.write_text(json.dumps(old))
    done = start("suite", "--quick", "--compare", results)
    assert done.returncode
    assert "of another setting; threads: 7, now 1" in done.stderr


def test_every_result_that_is_kept_is_of_the_suite_as_it_is(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT))
    from benches import suite

    kept = [json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "benches/results").glob("*.json")]
    assert kept
    cases = {str(case) for case in suite.WATCHED}
    for result in kept:
        assert cases <= {name.rpartition(", ")[0] for name in result["works"]}
