"""A gated DeltaNet layer of transformers, as it is and accelerated: prompts, training steps and steps of decoding.

    python -m benches.pages.gated_layer --threads 1

The layer has the shape of Qwen3.5-0.8B: 1,024 inputs, 16 heads of 128 x 128, four taps. Its numbers are random. The
last rows time its function for one token, of 32 heads for each of 8 sequences, and what puts the states into the cache.
Times are medians of interleaved rounds. Errors are those of the outputs, relative to a layer in float32 that is not
accelerated.
"""

import copy
import importlib
from functools import partial

import torch
from torch import nn

import householder.torch as ht
from benches.measure import clock, heading, interleaved, options, row
from householder.torch.acceleration.pretrained import _delta_step

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def layer():
    """Return a layer in float32."""
    module = importlib.import_module("transformers.models.qwen3_5.modeling_qwen3_5")
    kind = importlib.import_module("transformers.models.qwen3_5.configuration_qwen3_5").Qwen3_5TextConfig
    torch.manual_seed(0)
    config = kind(
        hidden_size=1024,
        num_hidden_layers=1,
        linear_num_key_heads=16,
        linear_num_value_heads=16,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        layer_types=["linear_attention"],
    )
    model = module.Qwen3_5GatedDeltaNet(config, 0)
    nn.init.constant_(model.A_log, -4.0)  # decays near one: strong ones make subnormal numbers, which are slow
    return model


def training_step(model, x):
    model.zero_grad(set_to_none=True)
    model(x).square().mean().backward()


def of_layers(dtype, tokens, rounds, clock, show_profile):
    exact = layer()
    before = copy.deepcopy(exact).to(dtype)
    after = copy.deepcopy(before)
    ht.accelerate(after)
    x = torch.randn(1, tokens, 1024).to(dtype)
    with torch.no_grad():
        want = exact(x.float())
        errors = {
            name: float((model(x).float() - want).norm() / want.norm())
            for name, model in (("transformers", before), ("accelerated", after))
        }
    calls = {}
    for name, model in (("transformers", before), ("accelerated", after)):
        calls[name, "forward"] = torch.no_grad()(lambda model=model: model(x))
        calls[name, "training"] = lambda model=model: training_step(model, x)
    if show_profile:
        profile(calls["accelerated", "forward"])
        profile(calls["accelerated", "training"])
    times = {key: time.median for key, time in interleaved(calls, rounds, 3, 60, clock).items()}
    for name in errors:
        ratios = (times[name, part] / times["transformers", part] for part in ("forward", "training"))
        cells = (1e3 * times[name, part] for part in ("forward", "training"))
        row(f"layer, {tokens} tokens", name, *cells, *ratios, f"{errors[name]:.1e}")


def profile(call):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        call()
    print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=40))


def of_steps(dtype, rounds, clock):
    module = importlib.import_module("transformers.models.qwen3_5.modeling_qwen3_5")
    before = module.torch_recurrent_gated_delta_rule
    before = getattr(before, "before", before).__wrapped__
    shape = 8, 1, 32
    q, k, v = torch.randn(3, *shape, 128).to(dtype)
    g, beta, state = -torch.rand(shape), torch.rand(shape).to(dtype), torch.randn(8, 32, 128, 128)
    given = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}

    def step(function, cache):
        _, last = function(q, k, v, g, beta, initial_state=cache, **given)
        cache.copy_(last)

    calls = {
        name: torch.no_grad()(partial(step, function, state.clone()))
        for name, function in (("transformers", before), ("accelerated", _delta_step))
    }
    target = torch.empty_like(state)
    calls["copy of the states"] = lambda: target.copy_(state)
    times = {name: time.median for name, time in interleaved(calls, rounds, clock=clock).items()}
    for name, time in times.items():
        row("step, 8 x 32 heads", name, 1e3 * time, "", time / times["transformers"], "", "")


def main():
    chosen = options(__doc__, threads=1, rounds=7, tokens=2048, dtype="bfloat16", profile=False)
    titles = "forward, ms", "training step, ms", "forward, of transformers'", "training, of transformers'", "error"
    heading(chosen.threads, "work", "candidate", *titles)
    time = clock(chosen.threads)
    of_layers(DTYPES[chosen.dtype], chosen.tokens, chosen.rounds, time, chosen.profile)
    of_steps(DTYPES[chosen.dtype], chosen.rounds, time)


if __name__ == "__main__":
    main()
