"""Models of transformers compute the same with our recurrences as with their fallback functions."""

import copy
import importlib
import logging
import sys
import threading
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import householder.torch as ht
from householder.torch.acceleration import lightning, mamba, mlstm, pretrained
from tests.cases import copies

transformers = pytest.importorskip("transformers", minversion="5", reason="transformers is not installed")
pytestmark = [
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
LARGE = {"initializer_range": 0.3}
"""Weights so large that recurrences matter in logits."""
MAMBA = LARGE | {
    "layer_types": ["mamba", "attention"],
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
}
NEMOTRON = LARGE | {
    "layers_block_type": ["mamba", "attention"],
    "ssm_state_size": 16,
    "mamba_num_heads": 8,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "chunk_size": 16,
    "head_dim": 16,
}
GRANITE = MAMBA | {"num_local_experts": 2, "num_experts_per_tok": 1, "shared_intermediate_size": 16}
FALCON = {name: value for name, value in MAMBA.items() if name != "layer_types"} | {
    "mamba_d_ssm": 64,
    "num_hidden_layers": 1,  # of attention and Mamba-2 beside each other
}
BAMBA = FALCON | {"attn_layer_indices": [1], "num_hidden_layers": 2}
ZAMBA = LARGE | {
    "layers_block_type": ["hybrid"],
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "mamba_d_state": 16,
    "mamba_ngroups": 2,
    "n_mamba_heads": 8,
    "chunk_size": 16,
    "adapter_rank": 4,
}
MAMBA2 = LARGE | {
    "num_hidden_layers": 1,
    "num_heads": 8,
    "head_dim": 8,
    "state_size": 16,
    "n_groups": 2,
    "chunk_size": 16,
    "time_step_limit": (0.01, 0.5),
}
MINIMAX = LARGE | {
    "layer_types": ["linear_attention", "full_attention"],
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "block_size": 16,
}
XLSTM = {"num_hidden_layers": 1, "num_heads": 2, "hidden_size": 128, "chunk_size": 16}
CONVOLUTION = LARGE | {"layer_types": ["conv", "full_attention"], "head_dim": 16, "bos_token_id": 1, "eos_token_id": 2}
LFM_MOE = CONVOLUTION | {
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "num_dense_layers": 1,
}
INKLING = LARGE | {
    "layer_types": ["hybrid_sliding", "hybrid"],
    "mlp_layer_types": ["dense", "sparse"],
    "head_dim": 16,
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 1,
    "swa_head_dim": 16,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "d_rel": 4,
    "rel_extent": 16,
    "eos_token_id": 2,
    "unpadded_vocab_size": 64,
}
LOOPED = INKLING | {
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "num_hidden_layers": 3,
    "n_layers_per_attn_res_block": 1,
    "loop_layer_index_start": 1,
    "loop_layer_index_end": 2,
    "loop_num_passes": 2,
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
    "nemotron_h": ("NemotronHConfig", "NemotronHForCausalLM", NEMOTRON),
    "granitemoehybrid": ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM", GRANITE),
    "falcon_h1": ("FalconH1Config", "FalconH1ForCausalLM", FALCON),
    "bamba": ("BambaConfig", "BambaForCausalLM", BAMBA),
    "zamba2": ("Zamba2Config", "Zamba2ForCausalLM", ZAMBA),
    "mamba2": ("Mamba2Config", "Mamba2ForCausalLM", MAMBA2),
    "minimax": ("MiniMaxConfig", "MiniMaxForCausalLM", MINIMAX),
    "xlstm": ("xLSTMConfig", "xLSTMForCausalLM", XLSTM),
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM", CONVOLUTION),
    "lfm2_moe": ("Lfm2MoeConfig", "Lfm2MoeForCausalLM", LFM_MOE),
    "lfm3": ("Lfm3Config", "Lfm3ForCausalLM", CONVOLUTION),
    "inkling": ("InklingTextConfig", "InklingForCausalLM", INKLING),
    "inkling2": ("Inkling2TextConfig", "Inkling2ForCausalLM", INKLING),
    "inkling2_loop": ("Inkling2LoopTextConfig", "Inkling2LoopForCausalLM", LOOPED),
}


def build(name):
    config, kind, options = MODELS[name]
    try:
        module = importlib.import_module(f"transformers.models.{name}")
        config, kind = getattr(module, config), getattr(module, kind)
    except (ImportError, AttributeError):
        pytest.skip(f"this version of transformers has no {kind}")
    torch.manual_seed(0)
    model = kind(config(**(options if "text_config" in options else COMMON | options))).float().eval()
    for gates in (layer for layer_name, layer in model.named_modules() if layer_name.endswith("gate_preact")):
        nn.init.normal_(gates.weight, std=0.5)  # they have no weight at the start of training
    return model


@pytest.fixture(params=MODELS)
def model(request):
    return build(request.param)


@pytest.fixture
def qwen():
    return build("qwen3_5")


OF_CONVOLUTIONS = [name for name in MODELS if name.startswith(("lfm", "inkling"))]
"""Models whose layers that are accelerated are short convolutions alone."""
WITHOUT_BEAMS = {"xlstm"}
"""Models whose caches cannot be reordered."""


def is_convolution(model):
    return type(model).__name__ in {MODELS[name][1] for name in OF_CONVOLUTIONS}


def continued(cached):
    """Options of a call that continues after another."""
    return {"cache": cached["cache"]} if "cache" in cached else {"past_key_values": cached.past_key_values}


@pytest.fixture
def calls(request, monkeypatch):
    """A list that grows with each call of our recurrences, or of our convolution for layers that have no recurrence."""
    called = []

    def counted(function):
        def call(*arguments, **options):
            called.append(function)
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(pretrained, "run", counted(pretrained.run))
    monkeypatch.setattr(mamba, "_run", counted(mamba._run))
    for module in (lightning, mlstm):
        monkeypatch.setattr(module, "linear_attention", counted(module.linear_attention))
    if "model" in request.fixturenames and is_convolution(request.getfixturevalue("model")):
        monkeypatch.setattr(pretrained, "causal_convolution", counted(pretrained.causal_convolution))
    return called


def delta_layer(model):
    return next(layer for layer in model.modules() if hasattr(layer, "conv1d"))


def ours(before):
    """What takes the place of one of the delta rules of transformers."""
    return pretrained.ReplacedFunction(before, pretrained._delta_rule)


def fallback(module, name):
    """The function of transformers, which accelerated layers of this process may have replaced."""
    return getattr(getattr(module, name), "before", getattr(module, name))


def tokens(batch, length):
    return torch.randint(1, 64, (batch, length), generator=torch.Generator().manual_seed(0))


def test_logits_loss_and_gradients_agree(model):
    expected, ids = copy.deepcopy(model), tokens(2, 70)
    assert ht.accelerate(model)
    for each in (model, expected):
        each.train()
    ours, theirs = (each(input_ids=ids, labels=ids, use_cache=False) for each in (model, expected))
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

    def outcomes():
        cached = model(input_ids=ids[:, :33], use_cache=True)
        logits = [cached.logits]
        for t in range(33, 40):
            cached = model(input_ids=ids[:, t : t + 1], **continued(cached), use_cache=True)
            logits.append(cached.logits)
        return torch.stack(model.generate(ids, **options).logits), torch.cat(logits, 1)

    expected = outcomes()  # not those of the whole sequence: limits of time steps do not act on single tokens
    ht.accelerate(model)
    torch.testing.assert_close(outcomes(), expected, atol=1e-4, rtol=1e-3)


def test_convolutions_and_norms_of_layers_are_ours(model, monkeypatch):
    called = set()

    def noted(name):
        function = getattr(pretrained, name)

        def call(*tensors, **options):
            called.add(name)
            return function(*tensors, **options)

        monkeypatch.setattr(pretrained, name, call)

    noted("causal_convolution")
    noted("gated_norm")
    ids = torch.arange(1, 9)[None]
    with torch.no_grad():
        model(ids)
        assert not called
        ht.accelerate(model)
        model(ids)
    has_neither = model.config.model_type in ("minimax", "xlstm")
    has_gates_first = hasattr(model.config, "chunk_size") or hasattr(model.config, "mamba_chunk_size")  # Mamba-2
    expected = set() if has_neither else {"causal_convolution"}
    assert called == expected | (set() if has_neither or has_gates_first or is_convolution(model) else {"gated_norm"})


@pytest.mark.parametrize("length", [3, 4, 6])
@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_convolutions_of_single_tokens_are_ours(dtype, tokens, length):
    module = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 5, tokens), (2, 5, length), (5, 4), (5,)
    x, state, weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    before, after = state.clone(), state.clone()
    given = (weight, bias), {"activation": "silu"}
    expected = fallback(module, "causal_conv1d_update").__wrapped__(x, before, *given[0], **given[1])
    found = pretrained._convolve_step(x, after, *given[0], **given[1])
    assert found.dtype is dtype
    assert torch.equal(after, before)
    torch.testing.assert_close(found, expected, **({"atol": 0.05, "rtol": 0.05} if dtype is torch.bfloat16 else {}))
    assert pretrained._convolve_step(x[:1], after, *given[0], **given[1]) is NotImplemented


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("model", OF_CONVOLUTIONS, indirect=True)
def test_short_convolutions_of_half_types_lose_no_more_than_those_of_transformers(model, dtype, calls):
    paths = [*ht.accelerate(model)]
    ht.restore(model)
    for path in paths:
        before = model.get_submodule(path).to(dtype)
        x = tokens_of_a_convolution(before).to(dtype)
        exact = copy.deepcopy(before).float()(x.float())
        after = copy.deepcopy(before)
        ht.accelerate(after)
        theirs, ours = before(x), after(x)
        assert ours.dtype is theirs.dtype is dtype
        losses = [float((found - exact).norm() / exact.norm()) for found in (theirs, ours)]
        assert losses[1] < max(2 * losses[0], torch.finfo(dtype).eps)
    assert len(calls) == len(paths)


def tokens_of_a_convolution(layer):
    convolution = next(part for part in layer.modules() if isinstance(part, nn.Conv1d))
    return torch.randn(2, 40, convolution.out_channels, generator=torch.Generator().manual_seed(0))


def test_decoding_updates_the_states_of_the_cache_in_place(qwen, monkeypatch):
    ids, run, states = torch.arange(1, 9)[None], pretrained.run, []

    def noted(inputs, *, in_place, **options):
        o, last = run(inputs, **options, in_place=in_place)
        if in_place:
            states.append((inputs.initial_state, last))
        return o, last

    monkeypatch.setattr(pretrained, "run", noted)
    ht.accelerate(qwen)
    with torch.no_grad():
        expected = qwen(ids).logits[:, -1]
        cache = qwen(ids[:, :-1]).past_key_values
        state = cache.layers[0].recurrent_states[0]
        address, before = state.data_ptr(), state.clone()
        found = qwen(ids[:, -1:], past_key_values=cache).logits[:, -1]
    assert [(given is state, last.data_ptr()) for given, last in states] == [(True, address)]
    assert not torch.equal(cache.layers[0].recurrent_states[0], before)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_beams_agree(model):
    ids, options = tokens(2, 20), {"max_new_tokens": 5, "num_beams": 3, "do_sample": False}

    if model.config.model_type in WITHOUT_BEAMS:
        for prepare in (lambda _: None, ht.accelerate):
            prepare(model)
            with pytest.raises(ValueError, match="cannot use beam search"):
                model.generate(ids, **options)
        return
    expected = model.generate(ids, **options)
    ht.accelerate(model)
    assert torch.equal(model.generate(ids, **options), expected)


def test_left_padded_batches_agree(model):
    ids, mask = tokens(2, 40), torch.ones(2, 40, dtype=torch.long)
    ids[0, :7], mask[0, :7] = 0, 0
    expected = model(input_ids=ids, attention_mask=mask).logits
    ht.accelerate(model)
    found = model(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(found[mask == 1], expected[mask == 1], atol=1e-4, rtol=1e-3)


def test_float64_models_decode_with_a_cache(model):
    model, ids = model.double(), tokens(2, 40)
    model.set_experts_implementation("eager")  # the grouped product takes no float64
    options = {"max_new_tokens": 5, "do_sample": False}

    def outcomes():
        found = [model(input_ids=ids).logits]
        for begin in (33, 39):  # several tokens after a cache, and one
            cached = model(input_ids=ids[:, :begin], use_cache=True)
            rest = model(input_ids=ids[:, begin:], **continued(cached), use_cache=True)
            found.append(rest.logits)
        return found

    try:
        generated, expected = model.generate(ids, **options), outcomes()
    except RuntimeError as error:
        pytest.skip(f"{model.config.model_type} does not compute in float64: {error}")
    ht.accelerate(model)
    assert torch.equal(model.generate(ids, **options), generated)
    torch.testing.assert_close(outcomes(), expected, atol=2e-5, rtol=1e-5)  # transformers computes in float32


@pytest.mark.parametrize("state", [torch.float32, torch.float64, None])
@pytest.mark.parametrize("gates", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_operands_of_several_dtypes_are_computed_as_before(dtype, gates, state):
    module = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 9, 2, 4).to(dtype)
    options = {"g": -torch.rand(2, 9, 2, dtype=gates), "beta": torch.rand(2, 9, 2, dtype=dtype)}
    options |= {
        "output_final_state": True,
        "initial_state": None if state is None else torch.ones(2, 2, 4, 4, dtype=state),
    }
    before = fallback(module, "torch_chunk_gated_delta_rule")
    found, expected = (rule(q, k, v, **options) for rule in (ours(before), before))
    torch.testing.assert_close(found, expected, atol=1e-5 if dtype != torch.bfloat16 else 1e-2, rtol=1e-2)


ENDS = [0, 20, 21, 50]
OFFSETS = {
    "cu_seq_lens_q": torch.tensor(ENDS, dtype=torch.int32),
    "cu_seq_lens_k": torch.tensor(ENDS, dtype=torch.int32),
}
POSITIONS = {"position_ids": torch.cat([torch.arange(b - a) for a, b in pairwise(ENDS)])[None]}
NUMBERS = {"seq_idx": torch.repeat_interleave(torch.arange(3), torch.tensor(ENDS).diff())[None].int()}
PACKED = {
    "with all": OFFSETS | POSITIONS | NUMBERS | {"use_cache": False},
    "with offsets": OFFSETS | POSITIONS | {"use_cache": False},
    "with a cache": OFFSETS | POSITIONS,
    "without positions": OFFSETS | {"use_cache": False},
    "with a mask": OFFSETS | POSITIONS | {"use_cache": False, "attention_mask": torch.ones(1, 50, dtype=torch.long)},
    "with numbers": POSITIONS | NUMBERS | {"use_cache": False},
}


def outcome(model, **options):
    """Logits, or what the error says."""
    try:
        return model(**options).logits
    except (ValueError, RuntimeError, IndexError) as error:
        return str(error)


def assert_same_outcome(model, run):
    """What ``run(model)`` gives is the same before and after."""
    expected = run(model)
    ht.accelerate(model)
    found = run(model)
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.slow_combinations
@pytest.mark.parametrize("how", PACKED)
def test_packed_sequences_are_refused_where_the_model_refuses_them(model, how):
    """Only a model knows whether its attention keeps them apart: that needs positions, no mask and no cache."""
    assert_same_outcome(model, lambda use: outcome(use, input_ids=tokens(1, 50), **PACKED[how]))


@pytest.mark.slow_combinations
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("packing", [{"cu_seq_lens_q": [0, 1]}, {"seq_idx": [[0]]}, {}], ids=str)
def test_packed_sequences_after_a_cache_are_refused_where_the_model_refuses_them(model, packing, count):
    ids = tokens(1, 25)
    options = {name: torch.tensor(value, dtype=torch.int32) for name, value in packing.items()}

    def after_a_cache(use):
        cached = use(input_ids=ids[:, :20], use_cache=True)
        return outcome(use, input_ids=ids[:, 20 : 20 + count], **continued(cached), use_cache=True, **options)

    assert_same_outcome(model, after_a_cache)


MASKS = {
    "left": torch.ones(2, 40).index_fill(1, torch.arange(7), 0).long(),
    "right": torch.ones(2, 40).index_fill(1, torch.arange(33, 40), 0).long(),
    "of booleans": torch.ones(2, 40).index_fill(1, torch.arange(7), 0).bool(),
    "too short": torch.ones(2, 30, dtype=torch.long),
    "of four axes": torch.ones(2, 1, 40, 40).tril().bool(),
    "without rows": torch.ones(40, dtype=torch.long),
}


@pytest.mark.slow_combinations
@pytest.mark.parametrize("mask", MASKS)
def test_masks_do_what_they_did(model, mask):
    assert_same_outcome(model, lambda use: outcome(use, input_ids=tokens(2, 40), attention_mask=MASKS[mask]))


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_caches_of_another_batch_are_refused_where_the_model_refuses_them(model, before, after):
    def outcome_of(use):
        cached = use(input_ids=tokens(before, 20), use_cache=True)
        return outcome(use, input_ids=tokens(after, 1), **continued(cached), use_cache=True)

    assert_same_outcome(model, outcome_of)


def test_gradients_through_a_cache_are_refused_where_the_model_refuses_them(qwen):
    def gradient(use):
        ids = tokens(2, 30)
        cached = use(input_ids=ids[:, :20], use_cache=True)
        rest = use(input_ids=ids[:, 20:], **continued(cached), use_cache=True)
        try:
            return torch.autograd.grad(rest.logits.square().sum(), use.get_input_embeddings().weight)[0]
        except RuntimeError as error:
            return str(error)[:90]  # what has been modified is named after that

    assert_same_outcome(qwen, gradient)


def test_restored_models_are_as_before(model, caplog, calls):
    caplog.set_level(logging.INFO, logger="householder")
    other, ids, kinds = copy.deepcopy(model), tokens(1, 40), [type(layer) for layer in model.modules()]
    expected = model(input_ids=ids).logits
    count = len(ht.accelerate(model))
    layers = "1 layer" if count == 1 else f"{count} layers"
    assert count == 1 or "inkling" in model.config.model_type
    assert ht.accelerate(model) == {}
    first, second = (record.message for record in caplog.records if record.name == "householder")
    assert first.startswith(f"accelerated {layers} of ")
    assert second == f"already accelerated: {layers} of {type(model).__name__}"
    assert [type(layer).__name__ for layer in model.modules()] == [kind.__name__ for kind in kinds]
    other(input_ids=ids)
    assert not calls
    model(input_ids=ids)
    assert len(calls) >= count
    calls.clear()
    assert ht.restore(model) == count
    assert ht.restore(model) == 0
    assert [type(layer) for layer in model.modules()] == kinds
    assert torch.equal(model(input_ids=ids).logits, expected)
    assert not calls


@pytest.mark.parametrize("has_instructions", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_it_says_by_default_what_it_did_and_what_holds_it_back(model, dtype, has_instructions, caplog, monkeypatch):
    capabilities = {"avx512_bf16": has_instructions, "amx_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    ht.accelerate(model.to(dtype))
    hints = ["no instructions for bfloat16" in message for message in caplog.messages]
    assert caplog.messages[0].startswith("accelerated ")
    assert hints == ([False] if has_instructions or dtype is torch.float32 else [False, True])


def test_it_says_that_nothing_was_found(caplog):
    assert ht.accelerate(nn.Linear(2, 2)) == {}
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("householder", "WARNING")
    assert record.message.startswith("nothing to accelerate: Linear has neither")


@pytest.mark.slow_combinations
@copies.each_way
def test_copies_stay_accelerated(model, duplicate, calls):
    ids = tokens(1, 40)
    layers = ht.accelerate(model)
    expected = model(input_ids=ids).logits
    count = len(calls)
    assert count >= len(layers)
    twin = duplicate(model)
    assert torch.equal(twin(input_ids=ids).logits, expected)
    assert len(calls) == 2 * count
    assert ht.accelerate(twin) == {}
    assert ht.restore(twin) == len(layers)
    twin(input_ids=ids)
    assert len(calls) == 2 * count
    model(input_ids=ids)
    assert len(calls) == 3 * count


def test_another_process_gets_an_accelerated_model(qwen, tmp_path, run_script):
    ids = tokens(1, 40)
    ht.accelerate(qwen)
    torch.save((qwen, ids, qwen(input_ids=ids).logits), tmp_path / "model")
    script = f"""
        import torch
        model, ids, expected = torch.load({str(tmp_path / "model")!r}, weights_only=False)
        import householder.torch as ht
        from householder.torch.acceleration import pretrained
        calls, run = [], pretrained.run
        pretrained.run = lambda *operands, **options: calls.append(1) or run(*operands, **options)
        torch.testing.assert_close(model(input_ids=ids).logits, expected)
        print(len(calls), ht.accelerate(model), ht.restore(model))
    """
    assert run_script(script) == "1 {} 1\n"


@pytest.fixture
def hooks():
    return pytest.importorskip("accelerate.hooks", reason="accelerate is not installed")


def counting_hook(hooks):
    class Hook(hooks.ModelHook):
        calls = 0

        def pre_forward(self, _, *args, **options):
            self.calls += 1
            return args, options

    return Hook()


@pytest.mark.parametrize("hook_first", [True, False])
@pytest.mark.parametrize("restore_first", [True, False])
def test_hooks_come_and_go_on_their_own(qwen, hooks, calls, hook_first, restore_first):
    layer, hook, ids = delta_layer(qwen), counting_hook(hooks), tokens(1, 40)
    steps = [lambda: hooks.add_hook_to_module(layer, hook), lambda: ht.accelerate(qwen)]
    for step in steps if hook_first else steps[::-1]:
        step()
    qwen(input_ids=ids)
    assert (hook.calls, len(calls)) == (1, 1)
    if restore_first:
        assert ht.restore(qwen) == 1
        qwen(input_ids=ids)
        assert (hook.calls, len(calls)) == (2, 1)
        hooks.remove_hook_from_module(layer)
    else:
        hooks.remove_hook_from_module(layer)
        qwen(input_ids=ids)
        assert (hook.calls, len(calls)) == (1, 2)
        assert ht.restore(qwen) == 1
    before = hook.calls, len(calls)
    qwen(input_ids=ids)
    assert (hook.calls, len(calls)) == before


@pytest.mark.usefixtures("hooks")
def test_offloaded_models_are_accelerated(qwen, calls, tmp_path):
    ids = tokens(2, 40)
    expected = qwen(input_ids=ids).logits
    names = ("model.embed_tokens", "lm_head", "model.norm", "model.rotary_emb", "model.layers.0", "model.layers.1")
    qwen.save_pretrained(tmp_path / "model")
    for offloaded in names[-2:]:
        places = dict.fromkeys(names, "cpu") | {offloaded: "disk"}
        folders = {"offload_folder": tmp_path / offloaded, "device_map": places}
        loaded = type(qwen).from_pretrained(tmp_path / "model", dtype=torch.float32, **folders)
        calls.clear()
        assert len(ht.accelerate(loaded)) == 1
        for _ in range(2):  # accelerated and restored
            torch.testing.assert_close(loaded(input_ids=ids).logits, expected, atol=1e-4, rtol=1e-3)
            assert len(calls) == 1
            ht.restore(loaded)


def test_a_forward_that_hides_that_of_the_class_is_refused(qwen):
    layer = delta_layer(qwen)
    layer.forward = lambda *args, **options: type(layer).forward(layer, *args, **options)
    with pytest.raises(ValueError, match=r"linear_attn' has a forward that does not lead to its class's"):
        ht.accelerate(qwen)


def test_a_layer_that_has_become_another_since_is_not_restored(qwen):
    ht.accelerate(qwen)
    layer = delta_layer(qwen)
    nn.utils.parametrize.register_parametrization(layer, "dt_bias", nn.Identity())
    with pytest.raises(RuntimeError, match="became a ParametrizedQwen3_5GatedDeltaNet after it was accelerated"):
        ht.restore(qwen)
    nn.utils.parametrize.remove_parametrizations(layer, "dt_bias")
    assert ht.restore(qwen) == 1


def test_later_patches_of_the_module_are_seen(qwen, monkeypatch):
    module, ids = sys.modules[type(delta_layer(qwen)).__module__], tokens(1, 40)
    ht.accelerate(qwen)
    for name in ("apply_mask_to_padding_states", "torch_chunk_gated_delta_rule"):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, needs_a_gpu)
            with pytest.raises(RuntimeError, match="Triton finds no GPU"):
                qwen(input_ids=ids)
        qwen(input_ids=ids)


def test_threads_run_accelerated_and_other_models(qwen, calls):
    other, ids = copy.deepcopy(qwen), tokens(1, 40)
    ht.accelerate(qwen)
    threads = [threading.Thread(target=model, kwargs={"input_ids": ids}) for model in (qwen, other) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 4


@pytest.mark.parametrize("name", ["qwen3_5", "mamba2", "lfm2", "inkling", "minimax", "xlstm"])
def test_a_layer_compiles_in_one_graph(name):
    model = build(name)
    *_, path = ht.accelerate(model)
    ht.restore(model)
    layer, x = model.get_submodule(path.removesuffix(".mlstm_backend")), torch.randn(1, 9, model.config.hidden_size)
    operands = (x, None, None) if name == "minimax" else (x,)
    expected = layer(*operands)
    ht.accelerate(model)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(*operands), expected)


OF_TRITON = {
    "torch_chunk_gated_delta_rule": "chunk_gated_delta_rule",
    "torch_recurrent_gated_delta_rule": "fused_recurrent_gated_delta_rule",
    "chunk_kimi_delta_attention": "chunk_kda",
    "recurrent_kimi_delta_attention": "fused_recurrent_kda",
}
"""Fallback functions of transformers, and those of flash-linear-attention that it prefers."""


def needs_a_gpu(*_, **__):
    raise RuntimeError("Triton finds no GPU")


def test_functions_of_triton_are_replaced(model, monkeypatch):
    """Where their libraries are installed, transformers binds functions that need a GPU."""
    from transformers.integrations import hub_kernels

    options = {"max_new_tokens": 3, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    ids = tokens(2, 40)
    expected = model.generate(ids, **options).logits
    module = sys.modules[type(model).__module__]
    if not hasattr(module, "causal_conv1d_fn"):
        pytest.skip(f"{model.config.model_type} has no functions of these libraries")
    monkeypatch.setitem(sys.modules, "fla", SimpleNamespace(**dict.fromkeys(OF_TRITON.values(), needs_a_gpu)))
    for ours, theirs in OF_TRITON.items():
        if hasattr(module, ours):
            bound = hub_kernels.use_kernel_func_from_hub_with_fallback(theirs, "fla")(
                fallback(module, ours).__wrapped__
            )
            monkeypatch.setattr(module, ours, bound)
    for name in ("mamba2_chunk_scan", "mamba2_selective_state_update", "causal_conv1d_fn", "causal_conv1d_update"):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, needs_a_gpu)
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
        torch.testing.assert_close(o, ht.delta_rule(q, k, v, beta=beta, g=g)[0])
    twin = copy.deepcopy(layer)
    assert ht.accelerate(twin) == {}
    with pytest.raises(RuntimeError, match="Triton finds no GPU"):
        layer.chunk_gated_delta_rule(q, k, v, g, beta, cu_seqlens=torch.tensor([0, 5]))
    ht.restore(layer)
    with pytest.raises(RuntimeError, match="Triton finds no GPU"):
        layer(q, k, v, g, beta)


def test_other_devices_keep_the_kernels_that_models_may_have(monkeypatch):
    """Ours has fewer operations than the fallback, from three tokens on, but not than a kernel."""
    rule = pretrained.ReplacedFunction(lambda _: "theirs", lambda _: "ours", least_tokens=3)
    packages, (here, elsewhere) = ("fla", "kernels"), (torch.empty(1, 3, device=where) for where in ("cpu", "meta"))
    for package in packages:
        monkeypatch.delitem(sys.modules, package, raising=False)
    assert (rule(here), rule(elsewhere), rule(elsewhere[:, :2])) == ("ours", "ours", "theirs")
    for package in packages:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, SimpleNamespace())
            assert (rule(here), rule(elsewhere)) == ("ours", "theirs")


def kimi_functions():
    module = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    return [("chunk_kimi_delta_attention", module), ("recurrent_kimi_delta_attention", module)]


@pytest.mark.parametrize("which", [0, 1])
def test_kimi_delta_attention_agrees(which):
    name, module = kimi_functions()[which]
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 70, 2, 8)
    g, beta, state = -torch.rand(2, 70, 2, 8), torch.rand(2, 70, 2), torch.randn(2, 2, 8, 8)
    options = {"initial_state": state, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
    before = fallback(module, name).__wrapped__
    expected = before(q, k, v, g=g, beta=beta, **options)
    found = ours(before)(q, k, v, g=g, beta=beta, **options)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


def mamba_operands(dtype, tokens=70):
    """What a layer of Mamba-2 gives to its functions: x, dt, A, B and C, then D and the bias of dt, and a state."""
    generator = torch.Generator().manual_seed(0)
    shapes = (2, tokens, 8, 4), (2, tokens, 8), (8,), (2, tokens, 2, 6), (2, tokens, 2, 6), (8,), (8,), (2, 8, 4, 6)
    x, dt, a, *others, state = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return *(t.to(dtype) for t in (x, dt, -a.exp(), *others)), state.to(torch.float32)


def token_by_token(x, dt, a, b, c, d, bias, state, limits=(0.0, torch.inf)):
    """The recurrence of Mamba-2 in float64."""
    x, dt, a, b, c, d, bias, state = (t.double() for t in (x, dt, a, b, c, d, bias, state))
    dt = nn.functional.softplus(dt + bias).clamp(*limits)
    b, c = (t.repeat_interleave(4, 2) for t in (b, c))
    outputs = []
    for t in range(x.shape[1]):
        written = (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
        state = (dt[:, t] * a).exp()[..., None, None] * state + written
        outputs.append((state @ c[:, t, ..., None]).squeeze(-1) + d[:, None] * x[:, t])
    return torch.stack(outputs, 1), state


@pytest.mark.parametrize("limits", [(0.0, torch.inf), (0.2, 0.9)])
@pytest.mark.parametrize("tokens", [1, 5, 70])
def test_scans_of_mamba_are_token_by_token(tokens, limits):
    *tensors, d, bias, state = mamba_operands(torch.float64, tokens)
    leaves = [t.requires_grad_() for t in (*tensors, d, bias)]
    options = {"dt_softplus": True, "dt_limit": limits, "return_final_states": True, "chunk_size": 16, "z": None}
    found = mamba.chunk_scan(*tensors, D=d, dt_bias=bias, initial_states=state, **options)
    expected = token_by_token(*leaves, state, limits)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(found[1], expected[1].float())
    for ours, theirs in zip(*(torch.autograd.grad(o.cos().sum(), leaves) for o, _ in (found, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


@torch.no_grad()
def test_single_tokens_of_mamba_update_the_state_of_the_cache_in_place(monkeypatch):
    x, dt, a, b, c, d, bias, _ = mamba_operands(torch.float32, 6)
    options = {"D": d, "dt_bias": bias, "dt_softplus": True, "return_final_states": True, "chunk_size": 16}
    expected, last = mamba.chunk_scan(x, dt, a, b, c, **options)
    _, state = mamba.chunk_scan(*(t[:, :5] if t.dim() > 1 else t for t in (x, dt, a, b, c)), **options)
    address, run, in_place = state.data_ptr(), mamba._run, []

    def noted(*operands, **how):
        o, after = run(*operands, **how)
        in_place.append(after is operands[6])
        return o, after

    monkeypatch.setattr(mamba, "_run", noted)
    wide = dt[:, 5, :, None].expand(2, 8, 4), a[:, None, None].expand(8, 4, 6)
    of_heads = {"D": d[:, None].expand(8, 4), "dt_bias": bias[:, None].expand(8, 4)}
    found = mamba.state_update(state, x[:, 5], *wide, b[:, 5], c[:, 5], **of_heads, dt_softplus=True)
    assert in_place == [True]
    assert state.data_ptr() == address
    torch.testing.assert_close(found, expected[:, 5])
    torch.testing.assert_close(state, last)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_scans_of_mamba_lose_no_more_than_those_of_transformers(dtype):
    module = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    *tensors, d, bias, state = mamba_operands(dtype)
    expected = token_by_token(*tensors, d, bias, state)
    options = {"D": d, "dt_bias": bias, "initial_states": state, "dt_softplus": True, "return_final_states": True}
    before = fallback(module, "mamba2_chunk_scan")
    found, theirs = (scan(*tensors, chunk_size=16, **options) for scan in (mamba.chunk_scan, before))
    for ours, other, exact in zip(found, theirs, expected, strict=True):
        assert ours.dtype == other.dtype
        errors = [(result.double() - exact).norm() / exact.norm() for result in (ours, other)]
        assert errors[0] < max(2 * errors[1], 1e-7), dtype


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_steps_of_mamba_update_the_state_of_the_cache(dtype, is_transposed):
    """It lies like the state that a scan returns, or like a tensor of its shape."""
    module = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    x, dt, a, b, c, d, bias, state = mamba_operands(dtype, 1)
    exact = token_by_token(x, dt, a, b, c, d, bias, state)
    repeated = dt[:, 0, :, None].expand(2, 8, 4), a[:, None, None].expand(8, 4, 6), b[:, 0], c[:, 0]
    options = {"z": None, "dt_bias": bias[:, None].expand(8, 4), "dt_softplus": True}
    results = []
    for update in (mamba.state_update, fallback(module, "mamba2_selective_state_update")):
        cached = state.mT.contiguous().mT if is_transposed else state.clone()
        o = update(cached, x[:, 0], *repeated, d[:, None].expand(8, 4), **options)
        assert (o.dtype, cached.dtype) == (dtype, torch.float32)
        results.append([(o.double(), exact[0][:, 0]), (cached.double(), exact[1])])
    for (ours, expected), (theirs, _) in zip(*results, strict=True):
        errors = [(result - expected).norm() / expected.norm() for result in (ours, theirs)]
        assert errors[0] < max(2 * errors[1], 1e-7)


def test_caches_of_mamba_hold_states_as_our_steps_read_them():
    """A view of what our functions take, so that a step transposes nothing."""
    model, ids = build("mamba2"), tokens(2, 40)
    ht.accelerate(model)
    state = model(input_ids=ids, use_cache=True)["cache"].layers[0].recurrent_states[0]
    assert state.mT.is_contiguous()


def test_what_is_no_module_is_named():
    with pytest.raises(TypeError, match=r"model is an int, expected a torch.nn.Module"):
        ht.accelerate(3)
