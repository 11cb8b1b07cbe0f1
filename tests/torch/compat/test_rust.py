"""A layer that was trained in Python runs in Rust, from the file of its parameters, with the same bits."""

import shutil
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch", reason="needs safetensors")

import householder.torch as ht  # noqa: E402

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.long,  # it compiles the crate
    pytest.mark.skipif(shutil.which("cargo") is None, reason="needs cargo"),
]


@pytest.fixture
def infer(tmp_path):
    """Return what ``examples/infer.rs`` computes: all states in one call, and step by step."""

    def run(layer, x):
        files = [tmp_path / f"{name}.safetensors" for name in ("layer", "x", "y")]
        safetensors.save_file(layer.state_dict(), files[0])
        safetensors.save_file({"x": x}, files[1])
        command = ["cargo", "run", "--quiet", "--locked", "--example", "infer", "--features", "safetensors", "--"]
        command += [*files, str(layer.num_layers)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        results = safetensors.load_file(files[2])
        return results["sequence"], results["stream"]

    return run


@torch.no_grad()
def steps(layer, x):
    """Run the layer step by step, with weights that its cells have prepared before."""
    shape = len(layer.cells), x.shape[1], layer.hidden_size
    initial = [torch.zeros(shape[2]) if cell.h0 is None else cell.h0 for cell in layer.cells]
    begin = torch.stack(initial).unsqueeze(1).expand(shape).contiguous()
    layer(x[:1], begin)
    h, outputs = begin, []
    for x_t in x.split(1):
        output, h = layer(x_t, h)
        outputs.append(output)
    return torch.cat(outputs)


@pytest.mark.parametrize(
    ("sizes", "options", "batch"),
    [
        ((3, 128), {"num_reflections": 16}, 1),
        ((5, 33), {"num_reflections": 33, "num_layers": 2, "learn_h0": True}, 4),
        ((2, 64), {"num_reflections": 60, "bias": False}, 16),
    ],
    ids=["one sequence", "two layers that learn all", "no bias"],
)
def test_sequences_and_steps_have_the_bits_of_python(infer, sizes, options, batch):
    torch.manual_seed(0)
    layer = ht.OrthogonalRNN(*sizes, **options)
    for cell in layer.cells:
        if cell.bias is not None:
            torch.nn.init.normal_(cell.bias)
    x = torch.randn(50, batch, sizes[0])
    with torch.no_grad():
        expected = layer(x)[0]
    sequence, stream = infer(layer, x)
    assert torch.equal(sequence, expected)
    assert torch.equal(stream, steps(layer, x))
