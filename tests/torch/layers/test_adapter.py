"""``ht.OrthogonalAdapter``: fine-tuning a frozen layer by reflections of its inputs."""

import copy
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import householder.torch as ht
from householder._base.spec import METHODS
from householder.torch.layers import adapter as adapter_module
from tests.oracles.torch import explicit_matrix

F64 = torch.float64


def adapter(m=4, n=16, out=5, dtype=F64, trained=True):
    torch.manual_seed(0)
    module = ht.OrthogonalAdapter(nn.Linear(n, out, dtype=dtype), num_reflections=m)
    if trained:
        module.reflections.data.add_(0.3 * torch.randn_like(module.reflections))
    return module, torch.randn(3, n, dtype=dtype)


@pytest.mark.parametrize("m", [2, 4, 14])
def test_it_starts_at_the_identity_with_a_gradient(m):
    module, x = adapter(m, trained=False)
    assert torch.equal(module.reflections, module.reflections.tril())
    torch.testing.assert_close(module(x), module.linear(x))
    module(x).square().sum().backward()
    assert module.reflections.grad.abs().amax(0).min() > 1e-3
    assert module.linear.weight.grad is None


@pytest.mark.parametrize("m", [2, 6])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_each_option_changes_what_it_says(m, method, kind, monkeypatch):
    torch.manual_seed(0)
    linear = nn.Linear(16, 5, dtype=F64) if kind == "linear" else nn.Conv2d(16, 5, 1, dtype=F64)
    module = ht.OrthogonalAdapter(linear, num_reflections=m, method=method)
    assert module.linear is linear
    assert module.reflections.shape == (16, m)
    module.reflections.data.add_(0.3 * torch.randn_like(module.reflections))
    w, x = explicit_matrix(module.reflections.detach()), torch.randn(3, 16, dtype=F64)
    asked = []

    def noting(function):
        def noted(*tensors, **options):
            asked.append(options.get("method", tensors[-1]))
            return function(*tensors, **options)

        return noted

    for place, name in ((adapter_module, "apply"), (adapter_module, "adapted_linear")):
        monkeypatch.setattr(place, name, noting(getattr(place, name)))
    found = module(x) if kind == "linear" else module(x[..., None, None])[..., 0, 0]
    expected = nn.functional.linear(x @ w.T, linear.weight.flatten(1), linear.bias)
    torch.testing.assert_close(found, expected)
    assert asked == [method]


def by_parts(module, x):
    """The same by two functions of torch's: first the reflections, then the layer."""
    return nn.functional.linear(ht.apply(module.reflections, x, method=module.method), *module.linear.parameters())


@pytest.mark.parametrize("shape", [(16,), (3, 16), (70, 16), (2, 3, 16), (0, 16), (1100, 16)])
@pytest.mark.parametrize("m", [2, 14])
@pytest.mark.parametrize("method", [method for method in METHODS if method != "reflections"])
def test_one_function_has_the_gradients_of_its_parts(shape, m, method):
    module, _ = adapter(m)
    module.method = method
    x = torch.randn(shape, dtype=F64, requires_grad=True)
    inputs = (module.reflections, x)
    found, expected = module(x), by_parts(module, x)
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, grad), torch.autograd.grad(expected, inputs, grad), rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("trained", [(True, True), (True, False), (False, True), (False, False)])
def test_only_wanted_gradients(trained):
    module, x = adapter()
    inputs = (module.reflections, x)
    for tensor, requires_grad in zip(inputs, trained, strict=True):
        tensor.requires_grad_(requires_grad)
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    if not wanted:
        assert not module(x).requires_grad
        return
    found, expected = (torch.autograd.grad(y.sin().sum(), wanted) for y in (module(x), by_parts(module, x)))
    torch.testing.assert_close(found, expected)


def test_its_derivatives_of_every_order():
    module, x = adapter(n=6)
    inputs = (module.reflections, x[:, :6].clone().requires_grad_())

    def run(u, x):
        return torch.func.functional_call(module, {"reflections": u}, (x,))

    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)
    expected = torch.autograd.functional.hessian(lambda x: by_parts(module, x).sin().sum(), inputs[1].detach())
    torch.testing.assert_close(torch.func.hessian(lambda x: module(x).sin().sum())(inputs[1].detach()), expected)


def test_the_gradient_that_comes_in_is_left_alone():
    module, x = adapter()
    x.requires_grad_()
    y = module(x)
    grad = torch.randn_like(y)
    before = grad.clone()
    first = torch.autograd.grad(y, (module.reflections, x), grad, retain_graph=True)
    second = torch.autograd.grad(y, (module.reflections, x), grad)
    assert torch.equal(grad, before)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    torch.testing.assert_close(
        torch.autograd.grad(module(x).sum(), x), torch.autograd.grad(by_parts(module, x).sum(), x)
    )


def test_a_layer_that_is_more_than_the_function_is_called():
    module, x = adapter()
    seen = []
    handle = module.linear.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    y = module(x)
    torch.testing.assert_close(seen[0][0], ht.apply(module.reflections, x))
    handle.remove()
    module.linear.requires_grad_(True)
    module(x).sum().backward()
    assert module.linear.weight.grad is not None
    torch.testing.assert_close(module(x), y)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Ones(nn.Module):
    def forward(self, weight):
        return torch.ones_like(weight)


def doubling(linear):
    linear.forward = lambda x: 2 * nn.Linear.forward(linear, x)


def of_another_class(linear):
    linear.__class__ = Doubled


CHANGES = {
    "a forward of its own": doubling,
    "a subclass": of_another_class,
    "a hook before": lambda linear: linear.register_forward_pre_hook(lambda _, inputs: (2 * inputs[0],)),
    "a hook before with keywords": lambda linear: linear.register_forward_pre_hook(
        lambda _, inputs, options: ((2 * inputs[0],), options), with_kwargs=True
    ),
    "a hook after": lambda linear: linear.register_forward_hook(lambda *passed: 2 * passed[-1]),
    "a hook of the gradient": lambda linear: linear.register_full_backward_hook(lambda *passed: (2 * passed[1][0],)),
    "a hook of the outer gradient": lambda linear: linear.register_full_backward_pre_hook(
        lambda _, gradients: (2 * gradients[0],)
    ),
    "a parametrization": lambda linear: parametrize.register_parametrization(linear, "weight", Ones()),
    "a pruned weight": lambda linear: prune.l1_unstructured(linear, "weight", amount=5),
    "a weight that learns": lambda linear: linear.requires_grad_(True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_layer_computes_what_it_computes_by_itself(change, when):
    module, x = adapter()
    change(module.linear)
    if when == "before":
        module.linear.requires_grad_(False)  # as when the layer is wrapped
    x.requires_grad_()
    inputs = [module.reflections, x, *(p for p in module.linear.parameters() if p.requires_grad)]
    results = module(x), module.linear(ht.apply(module.reflections, x))
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(y.sin().sum(), inputs) for y in results))


@pytest.mark.parametrize("trained", [True, False])
def test_an_assigned_weight_keeps_whether_it_learns(trained):
    """It may be that of an embedding, which this must not freeze."""
    module, x = adapter()
    weight = nn.Parameter(torch.randn(5, 16, dtype=F64), requires_grad=trained)
    module.weight = weight
    assert module.linear.weight is weight
    assert weight.requires_grad is trained
    module(x).sum().backward()
    assert (weight.grad is not None) is trained


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident memory from /proc")
def test_training_takes_little_more_memory_than_the_frozen_layer(run_script):
    # The turned tokens and their gradient, one after the other in the place of the gradient of the tokens. Blocks of
    # 40 MiB, because the system's allocator keeps smaller ones and may not use them again for the next.
    script = """
        import sys, torch
        sys.path.insert(0, "benches")
        import householder.torch as ht
        from measure import peak_increment
        torch.set_num_threads(1)
        module = ht.OrthogonalAdapter(torch.nn.Linear(1024, 1024), num_reflections=8)
        x, grad = (torch.randn(10_240, 1024, requires_grad=i == 0) for i in range(2))

        def step(run, *wanted):
            output = run(x)
            return output, torch.autograd.grad(output, (x, *wanted), grad)

        step(module.linear), step(module, module.reflections)
        layer = peak_increment(lambda: step(module.linear))
        print(peak_increment(lambda: step(module, module.reflections)) / layer)
    """
    assert float(run_script(script)) < 1.2


def test_merging_changes_the_weight_and_not_the_result():
    module, x = adapter()
    before, weight = module(x), module.linear.weight.clone()
    assert module.merge() is module.linear
    torch.testing.assert_close(module.linear(x), before)
    torch.testing.assert_close(module(x), before)
    with pytest.raises(RuntimeError, match="merged"):
        module.merge()
    module.unmerge()
    torch.testing.assert_close(module.linear.weight, weight)
    torch.testing.assert_close(module(x), before)
    with pytest.raises(RuntimeError, match="not merged"):
        module.unmerge()


def test_a_state_dict_knows_whether_it_is_merged():
    module, x = adapter()
    fresh, _ = adapter(trained=False)
    module.merge()
    fresh.load_state_dict(module.state_dict())
    torch.testing.assert_close(fresh(x), module(x))
    fresh.unmerge()
    torch.testing.assert_close(fresh(x), module(x))


@pytest.mark.parametrize("merged_here", [True, False])
def test_reflections_alone_do_not_go_with_a_merged_weight(merged_here):
    (module, _), (other, _) = adapter(), adapter()
    (module if merged_here else other).merge()
    before = copy.deepcopy(module.state_dict())
    alone = {name: value for name, value in other.state_dict().items() if not name.startswith("linear")}
    with pytest.raises(RuntimeError, match="unmerge before"):
        module.load_state_dict(alone, strict=False)
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)


def test_a_weight_of_unknown_kind_does_not_replace_a_merged_one():
    module, _ = adapter()
    parameters = {name: p.detach().clone() for name, p in module.named_parameters()}
    module.merge()
    with pytest.raises(RuntimeError, match="does not tell whether its weight is"):
        module.load_state_dict(parameters, strict=False)
    module.unmerge()
    module.load_state_dict(parameters, strict=False)


def test_an_older_state_dict_holds_a_dictionary():
    module, x = adapter()
    fresh, _ = adapter(trained=False)
    module.merge()
    fresh.load_state_dict({**module.state_dict(), "_extra_state": {"merged": True}})
    assert fresh.merged
    torch.testing.assert_close(fresh(x), module(x))


def test_reflections_are_loaded_alone():
    module, x = adapter()
    fresh, _ = adapter(trained=False)
    fresh.load_state_dict({"reflections": module.reflections}, strict=False)
    assert not fresh.merged
    torch.testing.assert_close(fresh(x), module(x))


@pytest.mark.parametrize("merged", [False, True])
def test_safetensors_store_it(merged, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    module, x = adapter()
    if merged:
        module.merge()
    safetensors.save_file(module.state_dict(), tmp_path / "state")
    safetensors.save_model(module, str(tmp_path / "model"))
    first, second = (adapter(trained=False)[0] for _ in range(2))
    first.load_state_dict(safetensors.load_file(tmp_path / "state"))
    safetensors.load_model(second, tmp_path / "model")
    for fresh in (first, second):
        assert fresh.merged == merged
        assert torch.equal(fresh(x), module(x))


@pytest.mark.parametrize(
    "compute_weight",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        ht.orthogonal,
        lambda linear: prune.l1_unstructured(linear, "weight", 3),
    ],
)
def test_a_computed_weight_is_not_merged_into(compute_weight):
    module = ht.OrthogonalAdapter(compute_weight(nn.Linear(16, 5)), num_reflections=4)
    x, before = torch.randn(3, 16), copy.deepcopy(module.state_dict())
    with pytest.raises(RuntimeError, match="remove its parametrizations first"):
        module.merge()
    assert not module.merged
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)
    if parametrize.is_parametrized(module.linear):
        parametrize.remove_parametrizations(module.linear, "weight")
        y = module(x)
        torch.testing.assert_close(module.merge()(x), y)


def test_merging_turns_a_tied_weight_unless_the_layer_has_its_own():
    for own in (False, True):
        module, x = adapter()
        embedding = nn.Embedding(5, 16, dtype=F64)
        embedding.weight = module.linear.weight
        before, y = embedding.weight.clone(), module(x)
        if own:
            module.linear.weight = nn.Parameter(module.linear.weight.detach().clone())
        torch.testing.assert_close(module.merge()(x), y)
        assert torch.equal(embedding.weight, before) == own


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_a_layer_of_half_precision(half):
    module, x = adapter(dtype=half)
    assert module.reflections.dtype == torch.float32
    y = module(x)
    assert y.dtype == half
    y.float().sum().backward()
    assert module.reflections.grad.dtype == torch.float32
    module.merge()
    torch.testing.assert_close(module(x), y, atol=0.1, rtol=0.1)


def transposed_layer():
    """``Conv1D`` of transformers."""
    return pytest.importorskip("transformers.pytorch_utils").Conv1D(5, 16)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("make", "shape"),
    [(lambda: nn.Linear(16, 5), (3, 16)), (lambda: nn.Conv2d(16, 5, 1), (16, 2, 2)), (transposed_layer, (3, 16))],
    ids=["linear", "convolution", "transposed"],
)
def test_a_half_layer_takes_inputs_of_its_type_alone_except_under_autocast(make, shape, wide, half):
    module = ht.OrthogonalAdapter(make().to(half), num_reflections=4)
    with pytest.raises(TypeError, match=rf"^input has dtype {wide} but the layer has dtype {half}$"):
        module(torch.ones(shape, dtype=wide))
    if wide is torch.float32:
        with torch.autocast("cpu", dtype=half):
            assert module(torch.ones(shape)).dtype is half


def test_a_layer_that_converts_its_inputs_is_asked_with_any_type():
    module = ht.OrthogonalAdapter(nn.Linear(16, 5), num_reflections=4)
    module.linear.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
    assert module(torch.ones(3, 16, dtype=torch.bfloat16)).dtype is torch.float32


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_an_adapter_converted_to_half_precision(half):
    module, x = adapter()
    expected = module(x)
    module.to(half)
    x = x.to(half).requires_grad_()
    y = module(x)
    assert y.dtype == half
    torch.testing.assert_close(y.double(), expected, atol=0.1, rtol=0.1)
    gradients = torch.autograd.grad(y.float().square().sum(), (module.reflections, x))
    double = copy.deepcopy(module).double()
    x = x.detach().double().requires_grad_()
    wanted = torch.autograd.grad(double(x).square().sum(), (double.reflections, x))
    torch.testing.assert_close(gradients, wanted, atol=0.1, rtol=0.1, check_dtype=False)
    module.merge()
    torch.testing.assert_close(module(x.to(half)).double(), expected, atol=0.1, rtol=0.1)


def test_nothing_as_large_as_the_weight_is_allocated():
    n, seen = 512, []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), kwargs=None):
            result = function(*arguments, **(kwargs or {}))
            if "detach" not in str(function) and "aten::t" not in function.name():
                seen.extend(t.numel() for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor))
            return result

    module, x = adapter(8, n=n, out=n, dtype=torch.float32)
    x.requires_grad_()
    with Watch():
        module(x).sum().backward()
    assert max(seen) <= 8 * n


def test_hooks_of_all_modules_see_the_layer():
    seen = []
    adapter = ht.OrthogonalAdapter(nn.Linear(16, 5), 2)
    with nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(type(module))):
        adapter(torch.ones(3, 16))
    assert seen == [nn.Linear, ht.OrthogonalAdapter]


@pytest.mark.parametrize("merged", [False, True])
def test_modules_read_the_weight_of_their_layers(merged):
    module, x = adapter()
    if merged:
        module.merge()
    torch.testing.assert_close(nn.functional.linear(x, module.weight, module.bias), module(x))
    assert (module.in_features, module.out_features) == (16, 5)
    block = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, dtype=F64)
    for part, name in ((block, "linear1"), (block.self_attn, "out_proj")):
        layer = ht.OrthogonalAdapter(getattr(part, name), num_reflections=2)
        layer.reflections.data.add_(0.3 * torch.randn_like(layer.reflections))
        if merged:
            layer.merge()
        setattr(part, name, layer)
    x = torch.randn(2, 5, 16, dtype=F64)
    trained = block(x)
    with torch.no_grad():
        torch.testing.assert_close(block.eval()(x), trained)
    if not merged:
        trained.sum().backward()
        assert block.self_attn.out_proj.reflections.grad.norm() > 0
