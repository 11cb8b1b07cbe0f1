"""The adapters of whole models, also of those of transformers: wrapped by name, saved alone, merged."""

import copy

import pytest
import torch
from torch import nn

import householder.torch as ht
from tests.cases import copies
from tests.oracles.torch import explicit_matrix

F64 = torch.float64


def trained(model):
    for name, p in model.named_parameters():
        if name.endswith("reflections"):
            p.data.add_(0.3 * torch.randn_like(p))
    return model


@pytest.fixture(scope="module")
def gpt2():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 32, "n_positions": 16}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()


TOKENS = torch.arange(8)[None]


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def test_layers_are_wrapped_by_the_pattern_of_their_names_and_the_rest_is_frozen(gpt2):
    model = copy.deepcopy(gpt2)
    names = ht.adapt(model, ["*.c_attn", "transformer.h.0.mlp.*"], num_reflections=4)
    assert names == [
        "transformer.h.0.attn.c_attn",
        "transformer.h.1.attn.c_attn",
        "transformer.h.0.mlp.c_fc",
        "transformer.h.0.mlp.c_proj",
    ]
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {f"{n}.reflections" for n in names}
    torch.testing.assert_close(logits(model), logits(gpt2))
    model(TOKENS, labels=TOKENS).loss.backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {f"{n}.reflections" for n in names}
    ht.adapt(model, "*.c_proj", num_reflections=2)
    assert sum(p.requires_grad for p in model.parameters()) == 7  # h.0.mlp.c_proj is adapted already
    with pytest.raises(ValueError, match=r"'\*\.q_proj' matches no name of a linear layer"):
        ht.adapt(model, "*.q_proj")


def test_reflections_are_saved_alone_and_several_sets_are_kept_by_name(gpt2, tmp_path):
    one, other = (copy.deepcopy(gpt2) for _ in range(2))
    for model in (one, other):
        ht.adapt(model, "*.c_attn", num_reflections=4)
    sets = {name: ht.adapter_state(copy.deepcopy(trained(one))) for name in ("first", "second")}
    torch.save(sets, tmp_path / "adapters.pt")
    loaded = torch.load(tmp_path / "adapters.pt")
    results = []
    for name in ("first", "second"):
        ht.load_adapter_state(one, sets[name])
        ht.load_adapter_state(other, loaded[name])
        results.append(logits(other))
        torch.testing.assert_close(results[-1], logits(one), rtol=0, atol=0)
    assert not torch.allclose(*results)


def test_a_merged_model_is_saved_and_loaded_by_transformers(gpt2, tmp_path):
    model = copy.deepcopy(gpt2)
    ht.adapt(model, "*.c_*", num_reflections=2)
    expected = logits(trained(model))
    assert ht.merge_adapters(model) is model
    assert model.state_dict().keys() == gpt2.state_dict().keys()
    torch.testing.assert_close(logits(model), expected)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(logits(type(model).from_pretrained(tmp_path).eval()), expected)


def test_tied_embeddings_are_tied_again_and_keep_their_weight_when_merged(gpt2):
    model = copy.deepcopy(gpt2)
    ht.adapt(model, "lm_head", num_reflections=2)
    model.tie_weights()
    embedding = model.get_input_embeddings().weight
    assert model.lm_head.linear.weight is embedding
    expected, before = logits(trained(model)), embedding.detach().clone()
    ht.merge_adapters(model)
    torch.testing.assert_close(logits(model), expected)
    assert torch.equal(model.get_input_embeddings().weight, before)


@pytest.mark.parametrize("duplicate", [lambda m: m, *copies.WAYS])
def test_saving_a_model_warns_that_its_adapters_are_not_loaded(gpt2, duplicate, tmp_path):
    model = copy.deepcopy(gpt2)
    ht.adapt(model, "*.c_attn", num_reflections=2)
    model = duplicate(trained(model))
    for part in (model, model.transformer):
        with pytest.warns(
            UserWarning, match=rf"does not load the adapters of this {type(part).__name__}.*adapter_state"
        ):
            part.save_pretrained(tmp_path / "adapted")
    saved = pytest.importorskip("safetensors.torch").load_file(tmp_path / "adapted" / "model.safetensors")
    assert any(name.endswith("reflections") for name in saved)
    ht.merge_adapters(model)
    model.save_pretrained(tmp_path / "merged")  # without a warning
    assert not any("save_pretrained" in vars(part) for part in model.modules())


@pytest.mark.parametrize("bias", [True, False])
def test_a_convolution_of_one_by_one_turns_its_channels(bias):
    layer = nn.Conv2d(8, 5, 1, bias=bias, stride=2, dtype=F64)
    adapter = trained(ht.OrthogonalAdapter(copy.deepcopy(layer), 2))
    x = torch.randn(2, 8, 4, 6, dtype=F64)
    turned = (x.movedim(1, -1) @ ht.matrix(adapter.reflections).mT).movedim(-1, 1)
    expected = layer(turned)
    torch.testing.assert_close(adapter(x), expected)
    torch.testing.assert_close(adapter(x[0]), expected[0])
    torch.testing.assert_close(adapter.merge()(x), expected)
    adapter.unmerge()
    torch.testing.assert_close(adapter.linear.weight, layer.weight)
    assert (adapter.in_features, adapter.out_features) == (8, 5)


@pytest.mark.parametrize("options", [{"kernel_size": 3}, {"kernel_size": 1, "groups": 2}], ids=str)
def test_other_convolutions_are_refused(options):
    with pytest.raises(ValueError, match="expected a 1 x 1 convolution without groups"):
        ht.OrthogonalAdapter(nn.Conv2d(8, 8, **options), 2)


class Quantized(torch.Tensor):
    """A weight that can be read and not written."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), kwargs=None):
        if function is torch.Tensor.copy_:
            raise NotImplementedError(function)
        return super().__torch_function__(function, types, arguments, kwargs)


def test_a_weight_that_cannot_be_written_is_not_merged_into():
    adapter = ht.OrthogonalAdapter(nn.Linear(8, 5), 2)
    adapter.linear.weight = nn.Parameter(adapter.linear.weight.data.as_subclass(Quantized), requires_grad=False)
    with pytest.raises(RuntimeError, match=r"of the kind Quantized .* merge before it is quantized"):
        adapter.merge()
    assert not adapter.merged


def linear_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4), nn.Linear(4, 2)).double()


@pytest.mark.parametrize(
    ("options", "wrapped", "m", "method"),
    [
        ({"names": "0"}, ["0"], 2, "auto"),
        ({"names": "2"}, ["2"], 2, "auto"),
        ({"names": ["2", "0"]}, ["2", "0"], 2, "auto"),
        ({"names": "0", "num_reflections": 4}, ["0"], 4, "auto"),
        ({"names": "0", "method": "wy"}, ["0"], 2, "wy"),
        ({"names": "0", "method": "reflections"}, ["0"], 2, "reflections"),
    ],
    ids=str,
)
def test_each_option_of_adapt_changes_what_it_says(options, wrapped, m, method):
    model, plain, x = linear_layers(), linear_layers(), torch.randn(3, 8, dtype=F64)
    assert ht.adapt(model, **{"num_reflections": 2} | options) == wrapped
    adapters = {name: module for name, module in model.named_modules() if isinstance(module, ht.OrthogonalAdapter)}
    assert sorted(adapters) == sorted(wrapped)
    assert {(adapter.reflections.shape[1], adapter.method) for adapter in adapters.values()} == {(m, method)}
    found = trained(model)(x)
    for name in wrapped:
        layer = plain.get_submodule(name)
        layer.weight.data = layer.weight.data @ explicit_matrix(adapters[name].reflections.detach())
    torch.testing.assert_close(found, plain(x))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("names", "wrapped"),
    [
        ("c_attn", ["h.0.attn.c_attn", "h.1.attn.c_attn"]),
        (["c_fc", "lm_head"], ["h.0.mlp.c_fc", "h.1.mlp.c_fc", "lm_head"]),
        ("attn.c_proj", ["h.0.attn.c_proj", "h.1.attn.c_proj"]),
        ("1.mlp.c_*", ["h.1.mlp.c_fc", "h.1.mlp.c_proj"]),
    ],
    ids=str,
)
def test_layers_are_named_as_in_peft(gpt2, names, wrapped):
    model = copy.deepcopy(gpt2)
    found = ht.adapt(model, names, num_reflections=2)
    assert [name.removeprefix("transformer.") for name in found] == wrapped
    peft = pytest.importorskip("peft")
    targets = [names] if isinstance(names, str) else names
    if not any("*" in name for name in targets):
        theirs = peft.get_peft_model(copy.deepcopy(gpt2), peft.LoraConfig(target_modules=targets, fan_in_fan_out=True))
        assert set(theirs.targeted_module_names) == set(found)


def test_part_of_a_name_is_no_name(gpt2):
    for wrong in ("attn", "_attn", "proj", "q_proj"):
        message = f"'{wrong}' matches no name of a linear layer in the model, which has c_attn, c_proj, c_fc, lm_head$"
        with pytest.raises(ValueError, match=message):
            ht.adapt(copy.deepcopy(gpt2), wrong)
    many = nn.ModuleDict({f"layer{k}": nn.Linear(4, 4) for k in range(20)})
    with pytest.raises(ValueError, match=r"which has layer0, .*, layer11, \.\.$"):
        ht.adapt(many, "q_proj")
    with pytest.raises(ValueError, match=r"which has none inside$"):
        ht.adapt(nn.Sequential(nn.ReLU()), "q_proj")


@pytest.mark.parametrize("training", [True, False])
def test_adapters_keep_the_mode(gpt2, training):
    model = copy.deepcopy(gpt2).train(training)
    ht.adapt(model, "c_attn", num_reflections=2)
    for changed in (model, ht.merge_adapters(model)):
        assert all(part.training is training for part in changed.modules())


def test_a_model_says_why_it_is_not_adapted():
    model = linear_layers()
    for patterns, m, message in (
        ([], 2, "names is empty, expected at least one pattern"),
        ("1", 2, "'1' matches no name of a linear layer"),
        (["0", "3"], 4, "3 cannot be adapted: num_reflections is 4, expected an even number from 2 to less than .* 4"),
    ):
        with pytest.raises(ValueError, match=message):
            ht.adapt(model, patterns, num_reflections=m)
        assert all(p.requires_grad for p in model.parameters())
        assert not any(isinstance(module, ht.OrthogonalAdapter) for module in model.modules())
    model[3] = nn.Linear(4, 2, dtype=torch.complex64)
    with pytest.raises(TypeError, match=r"3 cannot be adapted: linear has dtype torch\.complex64"):
        ht.adapt(model, "*", num_reflections=2)
    assert all(p.requires_grad for p in model.parameters())


def test_lazy_layers_have_to_be_called_before():
    model = nn.Sequential(nn.Linear(8, 8), nn.LazyLinear(4))
    for names in ("0", "1"):
        with pytest.raises(TypeError, match=r"^1\.weight is lazy and has no size yet: call the model once before$"):
            ht.adapt(model, names, num_reflections=2)
    assert all(p.requires_grad for p in model.parameters())
    model(torch.ones(3, 8))
    assert ht.adapt(model, "1", num_reflections=2) == ["1"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (3, "names is an int, expected a str or an iterable of str"),
        (None, "names is None, expected a str or an iterable of str"),
        (["0", 2], "names contains an int, expected a str"),
        (b"0", "names contains an int, expected a str"),
    ],
    ids=str,
)
def test_names_of_other_types_are_refused(names, message):
    model = linear_layers()
    with pytest.raises(TypeError, match=f"^{message}$"):
        ht.adapt(model, names, num_reflections=2)
    assert all(p.requires_grad for p in model.parameters())


def test_adapting_twice_is_said():
    model = linear_layers()
    ht.adapt(model, "0", num_reflections=2)
    with pytest.raises(ValueError, match="'0' matches only layers that have adapters already: 0"):
        ht.adapt(model, "0", num_reflections=2)
    assert ht.adapt(model, "*", num_reflections=2) == ["2", "3"]
    with pytest.raises(ValueError, match="already: 0, 2, 3"):
        ht.adapt(model, "*", num_reflections=2)


def test_complex_values_do_not_become_real():
    model = nn.Sequential(ht.OrthogonalAdapter(nn.Linear(8, 5), 2))
    before, numbers = copy.deepcopy(model.state_dict()), torch.ones(8, 2, dtype=torch.complex64)
    with pytest.raises(TypeError, match=r"reflections of 0 have dtype torch\.complex64, expected real numbers"):
        ht.load_adapter_state(model, {"0": numbers})
    with pytest.raises(
        RuntimeError, match=r"0\. is real, but 0\.reflections in the state dict has dtype torch\.complex64"
    ):
        model.load_state_dict(before | {"0.reflections": numbers})
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_what_does_not_fit_the_adapters_is_refused():
    model = nn.Sequential(ht.OrthogonalAdapter(nn.Linear(8, 5), 2))
    with pytest.raises(ValueError, match=r"lacks \['0'\] and also has \['1'\]"):
        ht.load_adapter_state(model, {"1": torch.ones(8, 2)})
    with pytest.raises(ValueError, match=r"lacks \['0'\] and also has \[1, 'a'\]"):
        ht.load_adapter_state(model, {1: torch.ones(8, 2), "a": torch.ones(8, 2)})
    with pytest.raises(ValueError, match=r"of 0 have shape \(8, 4\), expected \(8, 2\)"):
        ht.load_adapter_state(model, {"0": torch.ones(8, 4)})
    with pytest.raises(TypeError, match=r"^state\['0'\] is a numpy\.ndarray, expected a torch\.Tensor$"):
        ht.load_adapter_state(model, {"0": torch.ones(8, 2).numpy()})
    with pytest.raises(TypeError, match=r"^state is a list, expected a mapping from names of layers to tensors$"):
        ht.load_adapter_state(model, [torch.ones(8, 2)])
    model[0].merge()
    with pytest.raises(RuntimeError, match="unmerge it first"):
        ht.load_adapter_state(model, {"0": torch.ones(8, 2)})
    for function in (ht.adapter_state, ht.merge_adapters):
        with pytest.raises(ValueError, match="Linear has no adapters"):
            function(nn.Linear(3, 3))
    assert type(ht.merge_adapters(ht.OrthogonalAdapter(nn.Linear(8, 5), 2))) is nn.Linear
