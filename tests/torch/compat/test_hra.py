"""HRA layers of ``peft`` compute the same after ``ht.accelerate``, and whatever is done with them still works."""

import copy
import importlib.util
import itertools
import re

import pytest
import torch
from torch import nn

import householder.torch as ht
from tests.cases import copies

peft = pytest.importorskip("peft", reason="peft is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
GRAM_SCHMIDT = pytest.mark.parametrize("gram_schmidt", [False, True])
F64 = torch.float64


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.first = nn.Linear(32, 12)
        self.second = nn.Linear(12, 5, bias=False)

    def forward(self, x):
        return self.second(self.first(self.convolution(x).tanh().flatten(1)).tanh())


def config(rank=4, gram_schmidt=False, layers=("convolution", "first", "second"), trained=True):
    return peft.HRAConfig(r=rank, apply_GS=gram_schmidt, target_modules=list(layers), init_weights=not trained)


def network(dtype=F64, **options):
    torch.manual_seed(0)
    return peft.get_peft_model(Network().to(dtype), config(**options)).to(dtype), torch.randn(6, 3, 4, 4, dtype=dtype)


def accelerated(model):
    twin = copy.deepcopy(model)
    assert ht.accelerate(twin)
    return twin


def results(model, x):
    """The output, its gradients with respect to the input and to all that is trained."""
    x = x.clone().requires_grad_()
    y = model(x)
    trained = [p for p in model.parameters() if p.requires_grad]
    return [y, *torch.autograd.grad(y.sin().sum(), [x, *trained], allow_unused=True)]


def assert_same(found, expected, tolerance=1e-11):
    for a, b in zip(found, expected, strict=True):
        if b is not None:
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@GRAM_SCHMIDT
@pytest.mark.parametrize("rank", [1, 4, 5])
@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-11), (torch.float32, 1e-5)])
def test_results_and_gradients_agree(gram_schmidt, rank, dtype, tolerance):
    model, x = network(dtype, rank=rank, gram_schmidt=gram_schmidt)
    assert_same(results(accelerated(model), x), results(model, x), tolerance)


def test_more_vectors_than_coordinates():
    model, x = network(rank=20, layers=["first", "second"])
    assert_same(results(accelerated(model), x), results(model, x))


def test_pairs_of_equal_vectors_are_the_identity():
    model, x = network(trained=False)
    twin = accelerated(model)
    torch.testing.assert_close(twin(x), model.base_model.model.eval()(x))
    assert_same(results(twin, x), results(model, x))


@GRAM_SCHMIDT
def test_several_adapters_agree(gram_schmidt):
    model, x = network(gram_schmidt=gram_schmidt)
    twin = accelerated(model)
    for each in (model, twin):
        torch.manual_seed(1)
        each.add_adapter("other", config(rank=3, gram_schmidt=not gram_schmidt, layers=["first"]))
        each.double()
    for active in ("default", "other", ["default", "other"], ["other", "default"]):
        for each in (model, twin):
            each.base_model.set_adapter(active)
        assert_same(results(twin, x), results(model, x))


@GRAM_SCHMIDT
def test_merging_and_unmerging(gram_schmidt):
    model, x = network(gram_schmidt=gram_schmidt)
    twin = accelerated(model)
    expected = model(x)
    twin.merge_adapter()
    torch.testing.assert_close(twin(x), expected)
    twin.unmerge_adapter()
    torch.testing.assert_close(twin(x), expected)
    plain = twin.merge_and_unload()
    assert isinstance(plain.first, nn.Linear)
    torch.testing.assert_close(plain(x), expected)


def test_disabled_adapters_leave_the_base_layers():
    model, x = network()
    twin = accelerated(model)
    for merged in (False, True):
        if merged:
            twin.merge_adapter()
        with twin.disable_adapter(), model.disable_adapter():
            torch.testing.assert_close(twin(x), model(x))
        torch.testing.assert_close(twin(x), model(x))


def test_biases_that_are_trained_have_their_gradients():
    torch.manual_seed(0)
    options = peft.HRAConfig(r=4, target_modules=["convolution", "first"], bias="hra_only", init_weights=False)
    model, x = peft.get_peft_model(Network(), options).double(), torch.randn(6, 3, 4, 4, dtype=F64)
    assert any("bias" in name and p.requires_grad for name, p in model.named_parameters())
    assert_same(results(accelerated(model), x), results(model, x))


@GRAM_SCHMIDT
def test_bfloat16_weights_beside_float32_vectors(gram_schmidt):
    torch.manual_seed(0)
    model = peft.get_peft_model(Network().bfloat16(), config(gram_schmidt=gram_schmidt))
    x = torch.randn(6, 3, 4, 4, dtype=torch.bfloat16)
    assert model.base_model.model.first.hra_u["default"].dtype == torch.float32
    found, expected = results(accelerated(model), x), results(model, x)
    assert_same(found, expected, 1e-2)  # the last place of a result in bfloat16
    layer, twin = model.base_model.model.first, accelerated(model).base_model.model.first
    wide = torch.randn(6, 32)
    assert_same(results(twin, wide), results(layer, wide), 1e-5)


def test_bfloat16_throughout_is_no_farther_from_the_truth():
    torch.manual_seed(0)
    half = peft.get_peft_model(Network().bfloat16(), config(), autocast_adapter_dtype=False)
    assert half.base_model.model.first.hra_u["default"].dtype == torch.bfloat16
    x = torch.randn(6, 3, 4, 4, dtype=torch.bfloat16)
    truth = copy.deepcopy(half).double()(x.double())
    found, before = accelerated(half)(x), half(x)
    assert found.dtype == torch.bfloat16
    assert (found - truth).norm() <= 1.1 * (before - truth).norm()


def test_inputs_need_not_be_cast():
    from peft.helpers import disable_input_dtype_casting

    model, x = network()
    twin = accelerated(model)
    with disable_input_dtype_casting(model), disable_input_dtype_casting(twin):
        torch.testing.assert_close(twin(x.float()), model(x.float()))


def test_autocast_is_the_last_product_s():
    model, x = network(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = accelerated(model)(x)
    torch.testing.assert_close(y.float(), model(x), atol=0.05, rtol=0.05)


@GRAM_SCHMIDT
def test_saved_adapters_are_loaded(gram_schmidt, tmp_path):
    model, x = network(torch.float32, gram_schmidt=gram_schmidt)
    twin = accelerated(model)
    twin.save_pretrained(tmp_path)
    torch.manual_seed(0)
    fresh = peft.PeftModel.from_pretrained(Network(), tmp_path)
    torch.testing.assert_close(fresh(x), model(x))
    ht.accelerate(fresh)
    torch.testing.assert_close(fresh(x), model(x))
    assert twin.state_dict().keys() == model.state_dict().keys()


def test_it_says_what_it_replaced_and_restores_it(caplog):
    caplog.set_level("INFO", logger="householder")
    model, x = network()
    kinds = [type(layer) for layer in model.modules()]
    expected = model(x)
    replaced = ht.accelerate(model)
    assert replaced == {
        "base_model.model.convolution": ["HRAConv2d"],
        "base_model.model.first": ["HRALinear"],
        "base_model.model.second": ["HRALinear"],
    }
    assert ht.accelerate(model) == {}
    assert caplog.messages == [
        "accelerated 3 layers of PeftModel: HRAConv2d, HRALinear",
        "already accelerated: 3 layers of PeftModel",
    ]
    assert ht.restore(model) == 3
    assert [type(layer) for layer in model.modules()] == kinds
    assert torch.equal(model(x), expected)


def test_rotations_of_other_adapters_are_left_as_they_are():
    model = peft.get_peft_model(Network(), peft.OFTConfig(oft_block_size=4, target_modules=["first"]))
    assert ht.accelerate(model) == {}


@copies.each_way
def test_copies_are_independent_and_accelerated(duplicate, monkeypatch):
    model, x = network()
    ht.accelerate(model)
    twin, expected = duplicate(model), model(x)
    assert torch.equal(twin(x), expected)
    with monkeypatch.context() as patched:
        for kind in (peft.tuners.hra.layer.HRALinear, peft.tuners.hra.layer.HRAConv2d):
            patched.setattr(kind, "get_delta_weight", None)  # forms the matrix
        twin(x)
    with torch.no_grad():
        for p in twin.parameters():
            p.mul_(-1).add_(0.1)
    assert torch.equal(model(x), expected)
    assert not torch.allclose(twin(x), expected)
    assert ht.restore(twin) == 3


def test_another_process_gets_accelerated_layers(tmp_path, run_script):
    torch.manual_seed(0)
    model, x = peft.get_peft_model(nn.Sequential(nn.Linear(6, 5)), config(layers=["0"])), torch.randn(3, 6)
    ht.accelerate(model)
    torch.save((model, x, model(x)), tmp_path / "model")
    script = f"""
        import torch
        model, x, expected = torch.load({str(tmp_path / "model")!r}, weights_only=False)
        torch.testing.assert_close(model(x), expected)
        import householder.torch as ht
        print(ht.accelerate(model), ht.restore(model))
    """
    assert run_script(script) == "{} 1\n"


@pytest.mark.parametrize("hook_first", [True, False])
def test_hooks_come_and_go_on_their_own(hook_first, monkeypatch):
    hooks = pytest.importorskip("accelerate.hooks", reason="accelerate is not installed")
    model, x = network()
    layer, expected, seen = model.base_model.model.first, model(x), []

    class Hook(hooks.ModelHook):
        def post_forward(self, module, output):
            seen.append(module)
            return output

    steps = [lambda: hooks.add_hook_to_module(layer, Hook()), lambda: ht.accelerate(model)]
    for step in steps if hook_first else steps[::-1]:
        step()
    with monkeypatch.context() as patched:
        patched.setattr(type(layer), "get_delta_weight", None)  # forms the matrix
        torch.testing.assert_close(model(x), expected)
    ht.restore(model)
    assert torch.equal(model(x), expected)
    assert seen == [layer, layer]
    hooks.remove_hook_from_module(layer)
    assert torch.equal(model(x), expected)
    assert seen == [layer, layer]


def test_a_forward_that_hides_that_of_the_class_is_refused():
    model, _ = network()
    layer = model.base_model.model.first
    layer.forward = lambda x: type(layer).forward(layer, x)
    with pytest.raises(ValueError, match=r"'base_model\.model\.first' has a forward that does not lead to its class's"):
        ht.accelerate(model)


@pytest.mark.slow_combinations
@pytest.mark.parametrize("kind", ["vectors", "float32", "autocast"])
@pytest.mark.parametrize("n", [4, 8])
def test_gram_schmidt_of_equal_vectors_is_computed_as_in_peft(n, kind):
    """What remains of the second vector of a pair is a rounding error, so only the same operations give the same."""
    for seed in range(60):
        torch.manual_seed(seed)
        base = nn.Sequential(nn.Linear(n, 3))
        model = peft.get_peft_model(base, config(rank=2, gram_schmidt=True, trained=False, layers=["0"]))
        x = torch.randn(5, n)
        if kind == "vectors":
            model, x = model.bfloat16(), x.bfloat16()
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            found, expected = accelerated(model)(x), model(x)
        tolerance = 1e-5 if kind == "float32" else 0.1
        torch.testing.assert_close(found, expected, equal_nan=True, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_dtypes_that_peft_refuses_are_refused(half):
    from peft.helpers import disable_input_dtype_casting

    torch.manual_seed(0)
    model, x = peft.get_peft_model(Network().to(half), config()), torch.randn(6, 3, 4, 4, dtype=half)
    for each in (model, accelerated(model)):
        each(x)
        with disable_input_dtype_casting(each), pytest.raises(RuntimeError, match="same dtype"):
            each(x)


def rounded(y, dtype):
    return y.to(dtype).to(y.dtype)


@pytest.mark.slow_combinations
@GRAM_SCHMIDT
@pytest.mark.parametrize("dtypes", list(itertools.permutations([F64, torch.float32, torch.bfloat16], 2)), ids=str)
@pytest.mark.parametrize("active", [["default"], ["other"], ["default", "other"], ["other", "default"]], ids=str)
def test_several_adapters_compute_in_the_dtype_of_the_last(dtypes, active, gram_schmidt):
    model, x = network(torch.float32, gram_schmidt=gram_schmidt)
    model.add_adapter("other", config(rank=3, gram_schmidt=not gram_schmidt))
    of = dict(zip(("default", "other"), dtypes, strict=True))
    for name, p in model.named_parameters():
        if "hra_u" in name:
            p.data = p.data.to(of[name.rpartition(".")[2]])
    model.base_model.set_adapter(active)
    last = of[active[-1]]
    for place, vectors in (("convolution", x.double()), ("first", torch.randn(6, 32, dtype=F64))):
        results = []
        for each in (model, accelerated(model)):
            y = each.base_model.model.get_submodule(place)(vectors)
            assert y.dtype == F64
            results.append(y)
            for dtype in dtypes:
                is_finer = torch.finfo(last).eps < torch.finfo(dtype).eps
                assert torch.equal(rounded(y, dtype), y) is not is_finer
        torch.testing.assert_close(*results, atol=0.2 if torch.bfloat16 in dtypes else 1e-5, rtol=0)


@pytest.mark.parametrize("shape", [(2, 31), (33,), (), (2, 0)])
def test_an_input_of_another_width_is_named(shape):
    model, _ = network(torch.float32)
    ht.accelerate(model)
    layer = model.base_model.model.first
    for error in (ValueError, RuntimeError):  # as torch raises
        with pytest.raises(error, match=f"^x has shape {re.escape(str(shape))}, expected a last axis of 32$"):
            layer(torch.ones(shape))
    with pytest.raises(RuntimeError, match="3 channels"):
        model.base_model.model.convolution(torch.ones(2, 4, 5, 5))


@pytest.fixture
def llama():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "pad_token_id": 0}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))
    return peft.get_peft_model(model, config(layers=["q_proj", "v_proj", "down_proj"]))


def tokens(rows=8):
    return torch.randint(1, 32, (rows, 12), generator=torch.Generator().manual_seed(0))


def loss_and_gradients(model):
    model.zero_grad()
    ids = tokens()
    output = model(input_ids=ids, labels=ids)
    output.loss.backward()
    return [output.logits, *(p.grad for p in model.parameters() if p.requires_grad)]


def test_a_language_model_with_gradient_checkpoints(llama):
    expected = loss_and_gradients(llama)
    assert len(ht.accelerate(llama)) == 6
    assert_same(loss_and_gradients(llama), expected, 1e-5)
    llama.enable_input_require_grads()
    llama.gradient_checkpointing_enable({"use_reentrant": False})
    llama.train()
    assert_same(loss_and_gradients(llama), expected, 1e-5)


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="the Trainer needs accelerate")
def test_the_trainer_of_transformers_takes_the_same_steps(llama, tmp_path):
    import transformers

    data = [{"input_ids": row, "labels": row} for row in tokens(16)]
    options = {"max_steps": 3, "per_device_train_batch_size": 4, "learning_rate": 0.01, "report_to": [], "seed": 0}
    trained = []
    for name, model in (("before", llama), ("after", accelerated(llama))):
        arguments = transformers.TrainingArguments(str(tmp_path / name), use_cpu=True, disable_tqdm=True, **options)
        trainer = transformers.Trainer(model, arguments, train_dataset=data)
        trainer.train()
        trainer.save_model()
        trained.append(trainer.model)
    before, after = ([p for p in model.parameters() if p.requires_grad] for model in trained)
    assert_same(after, before, 1e-4)  # Adam divides small gradients by their size
    fresh = peft.PeftModel.from_pretrained(copy.deepcopy(llama).unload(), tmp_path / "after")
    torch.testing.assert_close(fresh(tokens()).logits, trained[1].eval()(tokens()).logits)


def test_it_compiles_in_one_graph(llama):
    layer = llama.base_model.model.model.layers[0].self_attn.q_proj
    x = torch.randn(3, 16)
    expected = layer(x)
    ht.accelerate(layer)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), expected)
