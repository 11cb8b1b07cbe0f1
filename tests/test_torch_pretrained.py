"""Models of transformers compute the same with our delta rule as with their fallback functions."""

import copy
import importlib
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

import householder.torch as ht
from torch_oracle import IGNORE_JIT_WARNING

transformers = pytest.importorskip("transformers", minversion="5", reason="transformers is not installed")
pytestmark = [
    pytest.mark.filterwarnings(IGNORE_JIT_WARNING),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

COMMON = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 16,
}
EXPERTS = {
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
KIMI = {
    "layer_types": ["linear_attention", "full_attention"],
    "num_key_value_heads": 2,
    "linear_num_heads": 2,
    "linear_head_dim": 8,
    "moe_intermediate_size": 16,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BAILING = {name: value for name, value in KIMI.items() if not name.startswith("linear")} | {
    "head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
INDEXED = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 64,
    "indexer_compress_ratio": 4,
    "hc_count": 2,
    "hc_lowrank": 4,
}
GLM_TEXT = {name: value for name, value in (COMMON | KIMI).items() if name != "num_local_experts"} | {
    "n_routed_experts": 2,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 0,
    "index_topk": 64,
    "index_head_dim": 8,
    "index_n_heads": 2,
    "index_kpool": 4,
    "hc_mult": 2,
}
GLM = {
    "text_config": GLM_TEXT,
    "vision_config": {"depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 32, "intermediate_size": 16},
}
MODELS = {
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", LINEAR | EXPERTS),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", LINEAR),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", LINEAR | EXPERTS),
    "olmo_hybrid": ("OlmoHybridConfig", "OlmoHybridForCausalLM", LINEAR | {"linear_num_value_heads": 2}),
    "lara_mini": ("LaraMiniConfig", "LaraMiniForCausalLM", LINEAR | EXPERTS),
    "kimi_linear": ("KimiLinearConfig", "KimiLinearForCausalLM", KIMI),
    "bailing_hybrid": ("BailingHybridConfig", "BailingHybridForCausalLM", BAILING),
    "qwen4_exp": ("Qwen4ExpTextConfig", "Qwen4ExpForCausalLM", LINEAR | EXPERTS | INDEXED),
    "glm5_next": ("Glm5NextConfig", "Glm5NextForConditionalGeneration", GLM),
}


@pytest.fixture(params=MODELS)
def model(request):
    config, kind, options = MODELS[request.param]
    try:
        module = importlib.import_module(f"transformers.models.{request.param}")
        config, kind = getattr(module, config), getattr(module, kind)
    except (ImportError, AttributeError):
        pytest.skip(f"this version of transformers has no {kind}")
    torch.manual_seed(0)
    return kind(config(**(options if "text_config" in options else COMMON | options))).float().eval()


def tokens(batch, length):
    return torch.randint(1, 64, (batch, length), generator=torch.Generator().manual_seed(0))


def test_logits_loss_and_gradients_agree(model):
    expected, ids = copy.deepcopy(model), tokens(2, 70)
    assert ht.accelerate(model)
    for each in (model, expected):
        each.train()
    ours, theirs = (each(input_ids=ids, labels=ids) for each in (model, expected))
    torch.testing.assert_close(ours.logits, theirs.logits, atol=1e-4, rtol=1e-3)
    ours.loss.backward()
    theirs.loss.backward()
    for (name, a), b in zip(model.named_parameters(), expected.parameters(), strict=True):
        if b.grad is not None:
            torch.testing.assert_close(
                a.grad, b.grad, atol=1e-4, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
            )


def test_prefill_and_decoding_agree(model):
    ids = tokens(2, 40)
    options = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    expected = model.generate(ids, **options)
    ht.accelerate(model)
    found = model.generate(ids, **options)
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(expected.logits), atol=1e-4, rtol=1e-3)
    cached = model(input_ids=ids[:, :33], use_cache=True)
    logits = [cached.logits]
    for t in range(33, 40):
        cached = model(input_ids=ids[:, t : t + 1], past_key_values=cached.past_key_values, use_cache=True)
        logits.append(cached.logits)
    torch.testing.assert_close(torch.cat(logits, 1), model(input_ids=ids).logits, atol=1e-4, rtol=1e-3)


def test_left_padded_batches_agree(model):
    ids, mask = tokens(2, 40), torch.ones(2, 40, dtype=torch.long)
    ids[0, :7], mask[0, :7] = 0, 0
    expected = model(input_ids=ids, attention_mask=mask).logits
    ht.accelerate(model)
    found = model(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(found[mask == 1], expected[mask == 1], atol=1e-4, rtol=1e-3)


def test_layers_train_on_packed_sequences(model):
    """A layer alone: attention keeps packed sequences apart by its mask, not by offsets."""
    layer = model.get_submodule(next(iter(ht.accelerate(model))))
    x, ends = torch.randn(1, 50, 32, requires_grad=True), [0, 20, 21, 50]
    packed = layer(x, cu_seq_lens_q=torch.tensor(ends, dtype=torch.int32))
    alone = torch.cat([layer(x[:, a:b]) for a, b in pairwise(ends)], 1)
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-4)
    found, expected = (torch.autograd.grad(y.square().sum(), x)[0] for y in (packed, alone))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_whole_models_train_on_packed_sequences(model):
    if model.config.model_type == "glm5_next":
        pytest.skip("its attention chooses keys of all sequences")
    ids, ends = tokens(1, 50), [0, 20, 21, 50]
    ht.accelerate(model)
    positions = torch.cat([torch.arange(b - a) for a, b in pairwise(ends)]).unsqueeze(0)
    offsets, longest = torch.tensor(ends, dtype=torch.int32), max(b - a for a, b in pairwise(ends))
    packed = {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": longest, "max_length_k": longest}
    together = model(input_ids=ids, position_ids=positions, use_cache=False, **packed).logits
    alone = torch.cat([model(input_ids=ids[:, a:b], use_cache=False).logits for a, b in pairwise(ends)], 1)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)
    trained = [p for p in model.parameters() if p.requires_grad]
    found, expected = (
        torch.autograd.grad(y.square().sum(), trained, allow_unused=True, materialize_grads=True)
        for y in (together, alone)
    )
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


def test_packed_sequences_do_not_continue_a_cache():
    from householder.torch import pretrained

    with pytest.raises(ValueError, match="cu_seq_lens_q ends at 4, expected 7"):
        pretrained._convolution(None, torch.zeros(1, 2, 7), torch.zeros(2, 4), cu_seq_lens_q=torch.tensor([0, 4]))


def test_restored_models_are_as_before(model, capsys):
    other, ids = copy.deepcopy(model), tokens(1, 40)
    expected = model(input_ids=ids).logits
    replaced = ht.accelerate(model)
    assert len(replaced) == 1
    assert "accelerated 1 layers of" in capsys.readouterr().out
    assert ht.accelerate(model) == {}
    assert not any("forward" in vars(layer) for layer in other.modules())
    assert ht.restore(model) == 1
    assert not any("forward" in vars(layer) for layer in model.modules())
    assert torch.equal(model(input_ids=ids).logits, expected)


OF_TRITON = {
    "torch_chunk_gated_delta_rule": "chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule": "fused_recurrent_gated_delta_rule",
    "chunk_kimi_delta_attention": "chunk_kda",
    "recurrent_kimi_delta_attention": "fused_recurrent_kda",
}
"""Fallback functions of transformers, and those of flash-linear-attention that it prefers."""


def needs_a_gpu(*_, **__):
    raise RuntimeError("Triton finds no GPU")


def test_functions_of_flash_linear_attention_are_replaced(model, monkeypatch):
    """Where that library is installed, transformers binds its functions, which do not run on the CPU."""
    from transformers.integrations import hub_kernels

    options = {"max_new_tokens": 3, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    ids = tokens(2, 40)
    expected = model.generate(ids, **options).logits
    module = sys.modules[type(model).__module__]
    monkeypatch.setitem(sys.modules, "fla", SimpleNamespace(**dict.fromkeys(OF_TRITON.values(), needs_a_gpu)))
    for ours, theirs in OF_TRITON.items():
        if hasattr(module, ours):
            bound = hub_kernels.use_kernel_func_from_hub_with_fallback(theirs, "fla")(getattr(module, ours).__wrapped__)
            monkeypatch.setattr(module, ours, bound)
    with pytest.raises(RuntimeError, match="Triton finds no GPU"):
        model(input_ids=ids)
    ht.accelerate(model)
    found = model.generate(ids, **options).logits
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), atol=1e-4, rtol=1e-3)


def test_functions_that_older_versions_bind_to_a_layer_are_replaced():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.chunk_gated_delta_rule = self.recurrent_gated_delta_rule = needs_a_gpu

        def forward(self, *tensors):
            return self.chunk_gated_delta_rule(*tensors)[0], self.recurrent_gated_delta_rule(*tensors)[0]

    layer = Layer()
    q, k, v = torch.randn(3, 1, 5, 2, 4)
    g, beta = -torch.rand(1, 5, 2), torch.rand(1, 5, 2)
    assert ht.accelerate(layer) == {"": ["chunk_gated_delta_rule", "recurrent_gated_delta_rule"]}
    for o in layer(q, k, v, g, beta):
        torch.testing.assert_close(o, ht.delta_rule(q, k, v, beta, g)[0])
    ht.restore(layer)
    with pytest.raises(RuntimeError, match="Triton finds no GPU"):
        layer(q, k, v, g, beta)


def kimi_functions():
    module = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    return [("chunk_kimi_delta_attention", module), ("recurrent_kimi_delta_attention", module)]


@pytest.mark.parametrize("which", [0, 1])
def test_kimi_delta_attention_agrees(which):
    from householder.torch import pretrained

    name, module = kimi_functions()[which]
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 70, 2, 8)
    g, beta, state = -torch.rand(2, 70, 2, 8), torch.rand(2, 70, 2), torch.randn(2, 2, 8, 8)
    options = {"initial_state": state, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
    before = getattr(module, name).__wrapped__
    expected = before(q, k, v, g=g, beta=beta, **options)
    found = pretrained._delta_rule(before, q, k, v, g=g, beta=beta, **options)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


def test_what_is_no_module_is_named():
    with pytest.raises(TypeError, match=r"model is a builtins.int, expected a torch.nn.Module"):
        ht.accelerate(3)
