"""Layers among the other things that people do with torch: copies, checkpoints, hooks, autocast, threads."""

import copy
import itertools
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import householder.torch as ht
from tests.cases import copies

LAYERS = {
    "Orthogonal": lambda: ht.Orthogonal(6, num_reflections=6),
    "Unitary": lambda: ht.Unitary(6, bias=False, num_reflections=3),
    "SVDLinear": lambda: ht.SVDLinear(6, num_reflections=3),
    "OrthogonalRNN": lambda: ht.OrthogonalRNN(6, 6, 2, num_reflections=6, bidirectional=True, learn_h0=True),
    "OrthogonalRNNCell": lambda: ht.OrthogonalRNNCell(6, 8, num_reflections=1, nonlinearity="modrelu"),
    "UnitaryRNN": lambda: ht.UnitaryRNN(6, 6, num_reflections=1),
    "OrthogonalAdapter": lambda: ht.OrthogonalAdapter(torch.nn.Linear(6, 6), num_reflections=2),
}


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    return LAYERS[request.param]()


def run(layer, x=None):
    """One tensor of the layer's output for some input that fits."""
    torch.manual_seed(1)
    x = torch.randn(4, 6) if x is None else x
    is_complex = any(isinstance(module, ht.Unitary) for module in layer.modules())
    output = layer(x.to(torch.complex64) if is_complex else x)
    return output[0] if isinstance(output, tuple) else output


def trained(layer):
    return [p for p in layer.parameters() if p.requires_grad]


def gradients(layer, x=None):
    return torch.autograd.grad(run(layer, x).abs().square().sum(), trained(layer))


def equal(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@copies.each_way
def test_copies_are_the_same_layer_and_independent(layer, duplicate):
    twin = duplicate(layer)
    assert torch.equal(run(twin), run(layer))
    for parameter in twin.parameters():
        parameter.data.mul_(-1).add_(1)
    assert not torch.equal(run(twin), run(layer))


def test_state_dicts_carry_over(layer, tmp_path):
    torch.save(layer.state_dict(), tmp_path / "state.pt")
    fresh = LAYERS[type(layer).__name__]()
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(run(fresh), run(layer))


STATES = {
    "Orthogonal": ({"reflections": (6, 6), "bias": (6,)}, 18.84105),
    "Unitary": ({"reflections": (6, 3), "phases": (6,)}, 11.84274),
    "SVDLinear": (
        {"spectrum": (6,), "bias": (6,), "left.reflections": (6, 3), "right.reflections": (6, 3)},
        19.46883,
    ),
    "OrthogonalRNN": (
        {
            f"cells.{k}.{name}": shape
            for k, width in enumerate((6, 6, 12, 12))
            for name, shape in {"reflections": (6, 6), "weight_ih": (6, width), "bias": (6,), "h0": (6,)}.items()
        },
        1076.390,
    ),
    "OrthogonalRNNCell": (
        {"reflections": (8, 1), "weight_ih": (8, 6), "bias": (8,), "nonlinearity_bias": (4,)},
        85.95808,
    ),
    "UnitaryRNN": (
        {
            "cells.0.reflections": (6, 1),
            "cells.0.phases": (6,),
            "cells.0.weight_ih": (6, 6),
            "cells.0.bias": (6,),
            "cells.0.nonlinearity_bias": (6,),
        },
        87.27081,
    ),
    "OrthogonalAdapter": ({"reflections": (6, 2), "linear.weight": (6, 6), "linear.bias": (6,)}, 42.40519),
}
"""Shapes of parameters by name, and what version 0.1 computes of certain numbers in them: the sum of moduli."""


def test_state_dicts_of_earlier_versions_mean_the_same(layer):
    shapes, expected = STATES[type(layer).__name__]
    state = {
        name: torch.linspace(-1, 1.5, math.prod(shape)).cos().reshape(shape).to(layer.state_dict()[name].dtype)
        for name, shape in shapes.items()
    }
    extra = {"_extra_state": {"merged": False}} if isinstance(layer, ht.OrthogonalAdapter) else {}
    layer.load_state_dict(state | extra)
    output = run(layer, torch.linspace(-1, 1, 24).reshape(4, 6))
    assert output.abs().sum().item() == pytest.approx(expected, rel=1e-5)


def test_results_repeat_bit_for_bit(layer):
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(run(layer), run(layer))
        assert equal(gradients(layer), gradients(layer))
    finally:
        torch.use_deterministic_algorithms(False)


def test_no_graph_without_gradients(layer):
    with torch.no_grad():
        assert run(layer).grad_fn is None
    with torch.inference_mode():
        output = run(layer)
        assert output.is_inference()
    torch.testing.assert_close(output, run(layer).detach())  # steps of cells without gradients sum in another order
    frozen = copy.deepcopy(layer).requires_grad_(False)
    assert run(frozen).grad_fn is None


def test_activation_checkpointing(layer):
    x = torch.randn(4, 6, requires_grad=True)
    for reentrant in (False, True):

        def loss(x):
            return run(layer, x).abs().square().sum()

        wanted = [x, *trained(layer)]
        expected = torch.autograd.grad(loss(x), wanted)
        for t in wanted:
            t.grad = None
        checkpoint(loss, x, use_reentrant=reentrant).backward()
        assert equal([t.grad for t in wanted], expected)


def test_gradients_within_activation_checkpoints(layer):
    x, wanted = torch.randn(4, 6, requires_grad=True), trained(layer)

    def penalty(x):
        loss = run(layer, x).abs().square().sum()
        return torch.autograd.grad(loss, x, create_graph=True)[0].square().sum()

    expected = torch.autograd.grad(penalty(x), wanted, allow_unused=True)
    found = torch.autograd.grad(checkpoint(penalty, x, use_reentrant=False), wanted, allow_unused=True)
    torch.testing.assert_close(found, expected)


def test_what_is_saved_may_be_copied_moved_or_go_to_files(layer, tmp_path):
    expected, paths = gradients(layer), map(tmp_path.joinpath, map(str, itertools.count()))

    def to_file(tensor):
        path = next(paths)
        torch.save(tensor, path)
        return path

    for hooks in (
        torch.autograd.graph.saved_tensors_hooks(torch.Tensor.clone, lambda tensor: tensor),
        torch.autograd.graph.save_on_cpu(),
        torch.autograd.graph.saved_tensors_hooks(to_file, torch.load),
    ):
        with hooks:
            assert equal(gradients(layer), expected)
    assert list(tmp_path.iterdir())


def test_activation_checkpoints_watched_in_the_forward_pass_alone(layer):
    if isinstance(layer, ht.OrthogonalAdapter):
        pytest.skip("reflections and linear layer are one function where nobody watches, two elsewhere")

    def loss(x):
        return run(layer, x).abs().square().sum() + run(layer, 2 * x).abs().square().sum()

    x, wanted = torch.randn(4, 6), trained(layer)
    expected = torch.autograd.grad(loss(x), wanted)
    with FlopCounterMode(display=False):
        value = checkpoint(loss, x, use_reentrant=False)
    assert equal(torch.autograd.grad(value, wanted), expected)


def test_hooks_and_retained_graphs(layer):
    calls = []
    layer.register_forward_hook(lambda *_: calls.append("forward"))
    output = run(layer)
    output.register_hook(lambda _: calls.append("gradient"))
    output.abs().sum().backward(retain_graph=True)
    output.abs().sum().backward()
    assert calls == ["forward", "gradient", "gradient"]
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        output.abs().sum().backward()


@pytest.mark.parametrize("steps", [1, 5])
def test_hooks_compute_the_parameters_of_a_cell(steps):
    module, x = ht.OrthogonalRNN(6, 8, num_layers=2), torch.randn(steps, 2, 6)
    expected = ht.OrthogonalRNN(6, 8, num_layers=2)
    expected.load_state_dict(module.state_dict())
    cell = module.cells[0]
    mask = prune.random_unstructured(cell, "weight_ih", 0.5).weight_ih_mask
    expected.cells[0].weight_ih.data *= mask
    torch.testing.assert_close(module(x), expected(x))
    module(x)[0].sum().backward()
    assert torch.equal(cell.weight_ih_orig.grad == 0, mask == 0)


def test_hooks_of_a_cell_see_whole_sequences():
    module, seen = ht.OrthogonalRNN(6, 8, bidirectional=True), []
    for cell in module.cells:
        cell.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0].shape, output[0].shape)))
    module(torch.randn(5, 2, 6))
    assert seen == [((5, 2, 6), (5, 2, 8))] * 2


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [False, True])
def test_states_have_the_type_of_the_inputs(half, autocast):
    rnn, x = ht.OrthogonalRNN(6, 8, num_layers=2, learn_h0=True), torch.randn(5, 2, 6).to(half)
    with torch.autocast("cpu", half, enabled=autocast):
        for hx in (None, torch.zeros(2, 2, 8)):
            assert [states.dtype for states in rnn(x, hx)] == [half, half]


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_every_layer_under_autocast(layer, half):
    x = torch.randn(4, 6)
    with torch.autocast("cpu", half):
        output = run(layer, x.to(half))
        expected = run(layer, x.to(half).float())
        torch.testing.assert_close(output, expected.to(output.dtype), atol=0.05, rtol=0.05)
        assert output.dtype == half or output.is_complex()
        assert all(g.dtype == p.dtype for g, p in zip(gradients(layer, x.to(half)), trained(layer), strict=True))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_layers_of_half_precision_take_float32_under_autocast(half):
    layer = ht.OrthogonalRNN(6, 8, num_layers=2, nonlinearity="modrelu", learn_h0=True).to(half)
    x = torch.randn(5, 2, 6, requires_grad=True)
    with pytest.raises(TypeError, match=r"input has dtype torch\.float32 but the layer has"):
        layer(x)
    with torch.autocast("cpu", half):
        output, _ = layer(x)
    output.sum().backward()
    assert all(p.grad.dtype is half for p in layer.parameters())
    torch.testing.assert_close(output, layer.float()(x)[0])


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("nonlinearity", ["leaky_relu", "modrelu"])
def test_layers_of_half_precision(half, nonlinearity):
    layer = ht.OrthogonalRNN(6, 8, nonlinearity=nonlinearity, learn_h0=True).to(half)
    output, h_n = layer(torch.randn(5, 2, 6, dtype=half))
    assert (output.dtype, h_n.dtype) == (half, half)
    output.float().square().sum().backward()
    assert all(p.grad.dtype == half for p in layer.parameters())
    dense = ht.Orthogonal(8, num_reflections=8).to(half)
    assert dense(output).dtype == half
    cell = ht.OrthogonalRNNCell(8, 8, nonlinearity=nonlinearity).to(half)
    assert cell(output[0]).dtype == half
    activation = ht.ModReLU(4, dtype=half)
    assert activation(output).dtype == half
    torch.testing.assert_close(activation(output), activation.float()(output.float()).to(half))


def test_double_and_back():
    layer = ht.OrthogonalRNN(6, 8, learn_h0=True, bidirectional=True)
    x = torch.randn(5, 2, 6)
    single = layer(x)
    torch.testing.assert_close(layer.double()(x.double())[0].float(), single[0])
    assert torch.equal(layer.float()(x)[0], single[0])


def test_concurrent_calls_do_not_disturb_each_other():
    layers = [ht.OrthogonalRNN(6, 16, num_reflections=k + 1) for k in range(6)]
    x = torch.randn(40, 7, 6)
    expected = [gradients(layer, x) for layer in layers]
    shared = layers[0]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(5):
            assert all(map(equal, pool.map(lambda layer: gradients(layer, x), layers), expected))
            assert all(equal(g, expected[0]) for g in pool.map(lambda _: gradients(shared, x), range(6)))


def test_the_core_follows_torchs_number_of_threads():
    from householder import _core

    before = torch.get_num_threads()
    x, layer = torch.randn(30, 8, 6), ht.OrthogonalRNN(6, 32)
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(gradients(layer, x))
            assert _core.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert equal(results[0], results[1])
    assert equal(results[0], results[2])


def test_fake_tensors_have_shapes_only(layer):
    expected = run(layer)
    with FakeTensorMode(allow_non_fake_inputs=True):
        output = run(layer)
    assert (output.shape, output.dtype) == (expected.shape, expected.dtype)


def test_layers_compile_into_one_graph(layer):
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for size in (4, 5, 7):
        x = torch.randn(size, 6)
        torch.testing.assert_close(run(compiled, x), run(layer, x))
        torch.testing.assert_close(gradients(compiled, x), gradients(layer, x))


def test_layers_are_exported(layer):
    x = torch.randn(4, 6, dtype=torch.complex64 if isinstance(layer, ht.Unitary) else None)
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: torch.export.Dim("size", min=2)},), strict=False)
    for size in (4, 7):
        x = torch.randn(size, 6, dtype=x.dtype)
        torch.testing.assert_close(program.module()(x), layer(x))


def test_meta_layers_are_materialised_later():
    layer = ht.OrthogonalRNN(3, 8, device="meta")
    assert layer(torch.ones(5, 2, 3, device="meta"))[0].shape == (5, 2, 8)
    layer.to_empty(device="cpu").reset_parameters()
    w = layer.cells[0].matrix()
    torch.testing.assert_close(w.T @ w, torch.eye(8), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", [ht.Orthogonal, ht.Unitary, ht.SVDLinear, ht.OrthogonalRNN, ht.UnitaryRNN])
def test_layers_are_made_without_numbers(kind):
    layer = torch.nn.utils.skip_init(kind, 6, 6)
    layer.reset_parameters()
    assert all(p.isfinite().all() for p in layer.parameters())


def test_layers_give_shapes_without_numbers(layer):
    assert run(layer.to("meta"), torch.ones(4, 6, device="meta")).is_meta


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.parametrize("name", ["SVDLinear", "OrthogonalAdapter", "OrthogonalRNN"])
def test_real_layers_stay_real(name):
    layer = LAYERS[name]().to(torch.complex128)
    assert {p.dtype for p in layer.parameters()} == {torch.float64}


def test_the_default_device_is_for_factory_functions_alone(layer):
    expected = gradients(layer)
    with torch.device("meta"):
        output = run(layer, torch.linspace(-1, 1, 24, device="cpu").reshape(4, 6))
    assert output.device.type == "cpu"
    assert equal(gradients(layer), expected)


def test_an_import_by_an_evaluation_function_spoils_no_training(run_script):
    code = """
        import torch
        with torch.inference_mode():
            import householder.torch as ht
        for layer in (ht.Orthogonal(64, 64), ht.OrthogonalRNN(64, 64)):
            output = layer(torch.ones(50, 64))
            (output[0] if isinstance(output, tuple) else output).sum().backward()
            assert all(p.grad is not None for p in layer.parameters())
    """
    run_script(code)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("create_graph", [False, True])
def test_checkpoints_around_a_matrix(dtype, create_graph):
    u = torch.randn(6, 3, dtype=dtype, requires_grad=True)

    def loss(u):
        return ht.matrix(u).abs().pow(3).sum()

    (expected,) = torch.autograd.grad(loss(u), u)
    (again,) = torch.autograd.grad(checkpoint(loss, u, use_reentrant=False), u, create_graph=create_graph)
    assert torch.allclose(again, expected)


@pytest.mark.parametrize("kind", [lambda: ht.Orthogonal(6, num_reflections=3), lambda: ht.OrthogonalRNN(6, 6)])
def test_a_layer_converted_before_the_backward_pass_is_an_error(kind):
    layer = kind().double()
    output = run(layer, torch.ones(4, 6, dtype=torch.float64))
    layer.float()
    with pytest.raises(RuntimeError, match=r"convert modules|in the forward pass|between forward and backward"):
        output.sum().backward()
