"""Whole language models of transformers, with random weights, before and after ``ht.accelerate``.

    python -m benches.pages.pretrained --threads 2 --dtype bfloat16 --models qwen3_5 kimi_linear

A few layers of published widths, with few words and few experts: a prompt, a token decoded after it, and a step of
training (forward, backward). Times are medians of interleaved rounds. Errors are those of logits, and for the step of
training of gradients, relative to the model that is not accelerated in float64.
"""

import copy
import importlib
from functools import partial
from unittest.mock import patch

import torch
from torch import nn

import householder.torch as ht
from benches.measure import clock, heading, interleaved, options, row

COMMON = {"vocab_size": 4096, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DELTA = ["linear_attention"] * 3 + ["full_attention"]
MODELS = {
    "qwen3_5": (  # of 0.8B
        "Qwen3_5TextConfig",
        "Qwen3_5ForCausalLM",
        {
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "layer_types": DELTA,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 16,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
        },
    ),
    "kimi_linear": (  # of 48B, with 8 experts instead of 256
        "KimiLinearConfig",
        "KimiLinearForCausalLM",
        {
            "hidden_size": 2304,
            "layer_types": DELTA[2:],
            "mlp_layer_types": ["sparse"] * 2,
            "linear_num_heads": 32,
            "linear_head_dim": 128,
            "moe_intermediate_size": 1024,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
    "granitemoehybrid": (  # of Granite 4.0 H 1B, which has no experts
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        {
            "hidden_size": 1536,
            "shared_intermediate_size": 4096,
            "layer_types": ["mamba"] * 3 + ["attention"],
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "mamba_n_heads": 48,
            "mamba_d_state": 128,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
        },
    ),
}
DECODED = 8
"""Tokens decoded one by one whose logits are compared."""


def random_model(name: str, dtype: torch.dtype):
    config, kind, settings = MODELS[name]
    module = importlib.import_module(f"transformers.models.{name}")
    torch.manual_seed(0)
    layers = {"num_hidden_layers": len(settings["layer_types"])}
    model = getattr(module, kind)(getattr(module, config)(**COMMON, **layers, **settings)).to(dtype)
    for key, parameter in model.named_parameters():
        if key.endswith("A_log"):
            nn.init.constant_(parameter, -4.0)  # decays near one: strong ones make subnormal numbers, which are slow
    return model


def training_step(model, ids):
    model.zero_grad()
    found = model(input_ids=ids, labels=ids, use_cache=False)
    found.loss.backward()
    return found.logits.detach(), [p.grad for p in model.parameters() if p.grad is not None]


def in_float64(model, ids):
    """Take a step of training in float64, even where the model converts to float32."""
    wide = copy.deepcopy(model).double()
    wide.set_experts_implementation("eager")  # the other ways take no float64
    types = patch.multiple(torch, float32=torch.float64, float=torch.float64)
    with types, patch.object(torch.Tensor, "float", torch.Tensor.double):
        return training_step(wide, ids)


@torch.no_grad()
def extend(model, cache, ids):
    """Return the logits of these tokens, and the cache of all tokens so far."""
    found = model(input_ids=ids, past_key_values=cache, use_cache=True)
    return found.logits, found.past_key_values


def error(found, expected) -> float:
    """Return the error of tensors relative to the norm of all of them."""
    wrong, whole = (
        sum(float(t.double().square().sum()) for t in tensors)
        for tensors in ([a - b for a, b in zip(found, expected, strict=True)], expected)
    )
    return (wrong / whole) ** 0.5


def measure(name: str, dtype: torch.dtype, tokens: int, rounds: int):
    """Print the rows of a model."""
    before = random_model(name, dtype)
    ids = torch.randint(1, COMMON["vocab_size"], (1, tokens + DECODED))
    prompt, rest = ids.split([tokens, DECODED], 1)
    exact, gradients = in_float64(before, ids)
    after = copy.deepcopy(before)
    ht.accelerate(after)
    calls = {work: {} for work in (f"prompt of {tokens} tokens", "one token decoded", "training step")}
    errors = {work: [] for work in calls}
    for state, model in (("before", before), ("after", after)):
        logits, cache = extend(model, None, prompt)
        decoded = [extend(model, cache, token)[0] for token in rest.split(1, 1)]
        found = error([logits], [exact[:, :tokens]]), error([torch.cat(decoded, 1)], [exact[:, tokens:]])
        found += (error(training_step(model, ids)[1], gradients),)
        own = partial(extend, model, None, prompt), partial(extend, model, cache, rest[:, :1])
        for work, wrong, call in zip(calls, found, (*own, partial(training_step, model, prompt)), strict=True):
            errors[work].append(f"{wrong:.1e}")
            calls[work][state] = call
    del gradients
    for work, both in calls.items():
        found = interleaved(both, rounds, 3, 30, clock(torch.get_num_threads()))
        times = {state: 1e3 * taken.median for state, taken in found.items()}
        row(name, work, times["before"], times["after"], f"{times['before'] / times['after']:.2g}", *errors[work])


def main():
    chosen = options(__doc__, threads=2, tokens=512, rounds=5, dtype="float32", models=list(MODELS))
    titles = "before, ms", "accelerated, ms", "before / accelerated", "error before", "error accelerated"
    heading(chosen.threads, "model", "", *titles)
    for name in chosen.models:
        measure(name, getattr(torch, chosen.dtype), chosen.tokens, chosen.rounds)


if __name__ == "__main__":
    main()
