"""Layers of Python run in Rust, from the files of their parameters."""

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
def run_example(tmp_path):
    """Return a function that runs an example with parameters and inputs, and returns the arrays that it writes."""

    def run(example, parameters, inputs, *arguments, features=("--features", "safetensors")):
        files = [tmp_path / f"{name}.safetensors" for name in ("layer", "x", "y")]
        safetensors.save_file(parameters, files[0])
        safetensors.save_file(inputs, files[1])
        command = ["cargo", "run", "--quiet", "--locked", *features, "--example", example, "--", *files, *arguments]
        done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return safetensors.load_file(files[2])

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
        ((2, 64), {"num_reflections": 60, "bias": False, "nonlinearity": "oplu"}, 16),
        ((2, 20), {"num_reflections": 4, "nonlinearity": "real_modrelu"}, 2),
    ],
    ids=["one sequence", "two layers that learn all", "no bias, OPLU", "modReLU"],
)
def test_sequences_and_steps_have_the_bits_of_python(run_example, sizes, options, batch):
    torch.manual_seed(0)
    layer = ht.OrthogonalRNN(*sizes, **options)
    for cell in layer.cells:
        if cell.bias is not None:
            torch.nn.init.normal_(cell.bias)
    x = torch.randn(50, batch, sizes[0])
    with torch.no_grad():
        expected = layer(x)[0]
    states = run_example("infer", layer.state_dict(), {"x": x}, layer.nonlinearity, layer.num_layers)
    assert torch.equal(states["sequence"], expected)
    assert torch.equal(states["stream"], steps(layer, x))


def qwen(heads, widths):
    """Return a gated DeltaNet layer of Qwen3.5 in float32, and an empty cache for it. All its parameters are random."""
    module = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    config = module.Qwen3_5TextConfig(
        hidden_size=40,
        num_hidden_layers=1,
        linear_num_key_heads=heads[0],
        linear_num_value_heads=heads[1],
        linear_key_head_dim=widths[0],
        linear_value_head_dim=widths[1],
        layer_types=["linear_attention"],
    )
    layer = module.Qwen3_5GatedDeltaNet(config, 0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1)
    return layer, module.DynamicCache(config=config)


@pytest.mark.parametrize(
    ("heads", "widths", "length", "dtype", "prefix"),
    [
        ((2, 6), (24, 16), 70, torch.float32, []),
        ((3, 3), (32, 32), 2, torch.bfloat16, ["model.layers.0.linear_attn."]),
    ],
    ids=["heads in groups", "weights of a model in bfloat16, a prompt shorter than the convolution"],
)
def test_a_layer_of_qwen_has_the_outputs_of_transformers(run_example, heads, widths, length, dtype, prefix):
    torch.manual_seed(0)
    layer, cache = qwen(heads, widths)
    parameters = {"".join(prefix) + name: array.to(dtype) for name, array in layer.state_dict().items()}
    layer.to(dtype).float()
    prompt, tokens = torch.randn(length, 40), torch.randn(9, 40)
    with torch.no_grad():
        expected = {
            "prompt": layer(prompt[None], cache)[0],
            "tokens": torch.cat([layer(token[None, None], cache)[0] for token in tokens]),
        }
    inputs = {"prompt": prompt, "tokens": tokens}
    outputs = run_example("gated_layer", parameters, inputs, heads[0], *prefix)
    for name, exact in expected.items():
        assert (outputs[name] - exact).abs().max() < 1e-5 * exact.abs().max()
