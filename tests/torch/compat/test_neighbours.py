"""What other tools make of our layers: profiles, summaries, per-sample gradients, quantised weights."""

import warnings

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.torch_version import TorchVersion

import householder.torch as ht

pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")  # older torches say so of each

LAYERS = {
    "Orthogonal": (lambda: ht.Orthogonal(8), (5, 8)),
    "SVDLinear": (lambda: ht.SVDLinear(8), (5, 8)),
    "OrthogonalAdapter": (lambda: ht.OrthogonalAdapter(nn.Linear(8, 8), 2), (5, 8)),
    "orthogonal": (lambda: ht.orthogonal(nn.Linear(8, 8)), (5, 8)),
    "OrthogonalRNNCell": (lambda: ht.OrthogonalRNNCell(3, 8), (5, 3)),
    "OrthogonalRNN": (lambda: ht.OrthogonalRNN(3, 8, batch_first=True), (5, 7, 3)),
    "DeltaNet": (lambda: ht.DeltaNet(16, 2), (5, 7, 16)),
}


def made(name):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    return make(), torch.randn(shape)


def run(layer, x):
    y = layer(x)
    return y[0] if isinstance(y, tuple) else y


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("Orthogonal", {"apply"}),
        ("OrthogonalRNN", {"rnn"}),
        ("DeltaNet", {"delta_rule"}),
        ("orthogonal", {"apply"}),
        ("OrthogonalAdapter", {"adapted_linear"}),
    ],
)
def test_profiles_name_the_operators(name, operators):
    layer, x = made(name)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run(layer, x).sum().backward()
    names = {event.key for event in seen.key_averages()}
    assert {f"householder::{operator}" for operator in operators} <= names
    assert {f"householder::{operator}Backward" for operator in operators} <= names
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as seen:
        run(layer, x)
    names = {event.key for event in seen.key_averages()}
    assert {f"householder::{operator.replace('adapted_linear', 'apply')}" for operator in operators} <= names


def test_the_graph_names_the_operators():
    u, h = torch.randn(8, 3, requires_grad=True), torch.randn(5, 8)
    assert ht.apply(u, h).grad_fn.name() == "householder::applyBackward"
    assert ht.matrix(u).grad_fn.name() == "householder::matrixBackward"


def test_a_profile_changes_no_result():
    u, h = torch.randn(8, 3, requires_grad=True), torch.randn(5, 8)
    expected = torch.autograd.grad(ht.apply(u, h).sum(), u)[0]
    with profile(activities=[ProfilerActivity.CPU]):
        found = torch.autograd.grad(ht.apply(u, h).sum(), u)[0]
        assert torch.equal(ht.apply(u.detach(), h), ht.apply(u, h))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", LAYERS)
def test_torchinfo_counts_the_parameters(name):
    torchinfo = pytest.importorskip("torchinfo", reason="torchinfo is not installed")
    layer, x = made(name)
    counts = torchinfo.summary(layer, x.shape, verbose=0)
    assert counts.total_params == sum(p.numel() for p in layer.parameters())
    assert counts.trainable_params == sum(p.numel() for p in layer.parameters() if p.requires_grad)


@pytest.fixture
def per_sample():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opacus = pytest.importorskip("opacus.grad_sample", reason="opacus is not installed")
    return opacus.GradSampleModule


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "OrthogonalRNN"])
def test_hooks_of_opacus_give_the_gradients_of_each_sample(name, per_sample):
    layer, x = made(name)
    trained = [p for p in layer.parameters() if p.requires_grad]
    expected = [torch.autograd.grad(run(layer, row).square().sum(), trained) for row in x.split(1)]
    hooked = per_sample(layer, loss_reduction="sum")
    hooked(x).square().sum().backward()
    for p, rows in zip(trained, zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(p.grad_sample, torch.stack(rows), atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("before", [True, False])
def test_adapters_on_weights_of_torchao_train_and_refuse_to_merge(before):
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    layer = nn.Linear(16, 8)
    if before:
        quantization.quantize_(layer, quantization.Int8WeightOnlyConfig())
    adapter = ht.OrthogonalAdapter(layer, 2)
    if not before:
        quantization.quantize_(adapter, quantization.Int8WeightOnlyConfig())
    adapter(torch.randn(3, 16)).square().sum().backward()
    assert adapter.reflections.grad.norm() > 0
    with pytest.raises(RuntimeError, match=r"of the kind Int8Tensor .* merge before it is quantized"):
        adapter.merge()
    assert not adapter.merged


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("constrained", [nn.utils.parametrizations.orthogonal, ht.orthogonal], ids=["torch", "ours"])
def test_quantize_dynamic_needs_a_layer_without_parametrization(constrained):
    quantization = pytest.importorskip("torch.ao.quantization", reason="this torch has none")
    model = nn.Sequential(constrained(nn.Linear(8, 8)))
    says_what = torch.__version__ >= TorchVersion("2.11")
    with pytest.raises(AssertionError, match="ParametrizedLinear" if says_what else "only works for one of"):
        quantization.quantize_dynamic(model, {nn.Linear})
    nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    quantised = quantization.quantize_dynamic(model, {nn.Linear})
    x = torch.randn(5, 8)
    torch.testing.assert_close(quantised(x), model(x), atol=0.1, rtol=0)
