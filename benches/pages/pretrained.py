"""A whole language model of transformers, with random weights, before and after ``ht.accelerate``.

    python -m benches.pages.pretrained [--threads 2] [--tokens 1024] [--rounds 5] [--models qwen3_next,kimi_linear]

Two layers of the published widths, one with the delta rule and one with attention, and a few small experts: a step of
training (forward, backward), and 32 tokens decoded one by one after a prompt. The losses are compared first.
"""

import copy
import importlib

import torch

import householder.torch as ht
from benches.measure import heading, interleaved, options, row

COMMON = {
    "vocab_size": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 2048,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
}
MODELS = {
    "qwen3_next": (
        "Qwen3Next",
        {
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "num_experts": 8,
            "shared_expert_intermediate_size": 512,
        },
    ),
    "kimi_linear": (
        "KimiLinear",
        {
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "linear_num_heads": 32,
            "linear_head_dim": 128,
            "num_local_experts": 8,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
        },
    ),
}
DECODED = 32


def random_model(name):
    kind, options = MODELS[name]
    module = importlib.import_module(f"transformers.models.{name}")
    torch.manual_seed(0)
    return getattr(module, f"{kind}ForCausalLM")(getattr(module, f"{kind}Config")(**COMMON, **options)).float()


def training_step(model, ids):
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    return loss.detach()


@torch.no_grad()
def decode(model, ids):
    found = model(input_ids=ids, use_cache=True)
    for _ in range(DECODED):
        last = found.logits[:, -1:].argmax(-1)
        found = model(input_ids=last, past_key_values=found.past_key_values, use_cache=True)
    return found.logits


def main():
    chosen = options(__doc__, threads=2, tokens=1024, rounds=5, models=",".join(MODELS))
    heading(chosen.threads, "model", "", "before, ms", "accelerated, ms", "before / accelerated")
    for name in chosen.models.split(","):
        before = random_model(name)
        after = copy.deepcopy(before)
        ht.accelerate(after)
        ids, prompt = torch.randint(1, COMMON["vocab_size"], (1, chosen.tokens)), torch.randint(1, 100, (1, 16))
        torch.testing.assert_close(training_step(after, ids), training_step(before, ids), rtol=1e-4, atol=1e-4)
        works = {
            "training step": lambda model, ids=ids: training_step(model, ids),
            f"{DECODED} tokens decoded": lambda model, prompt=prompt: decode(model, prompt),
        }
        for work, call in works.items():
            calls = {"before": lambda c=call, m=before: c(m), "after": lambda c=call, m=after: c(m)}
            times = {key: 1e3 * taken.median for key, taken in interleaved(calls, chosen.rounds, 3, 120).items()}
            row(name, work, times["before"], times["after"], f"{times['before'] / times['after']:.2g}")


if __name__ == "__main__":
    main()
