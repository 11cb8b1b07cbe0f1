"""The operators under ``torch.func``, ``torch.compile``, ``torch.export`` and their own registration checks."""

import copy
from itertools import product

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, vmap
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import TorchDispatchMode

import householder.torch as ht
from householder._base.spec import NONLINEARITIES
from householder.torch import _ops
from tests.cases.torch import CASES
from tests.oracles.torch import (
    IGNORE_CONFIG_WARNING,
    explicit_matrix,
    problem,
)

cases = pytest.mark.parametrize(("function", "inputs"), CASES.values(), ids=CASES)


class Watched(TorchDispatchMode):
    """Names of the operators whose kernels are called, below all transforms."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        namespace, name = operator.name().split("::")
        if namespace == "householder":
            self.calls.append(name)
        return operator(*arguments, **options or {})


@pytest.fixture
def native_calls():
    """Names of the operators as their kernels are called."""
    with Watched() as watched:
        yield watched.calls


def detached(inputs):
    return [t.detach() for t in inputs]


REAL_CASES = {name: case for name, case in CASES.items() if not case[1][0].is_complex()}


@pytest.mark.parametrize(("function", "inputs"), REAL_CASES.values(), ids=REAL_CASES)
def test_jacobians_agree(function, inputs):
    inputs = detached(inputs)
    argnums = tuple(range(len(inputs)))
    expected = torch.autograd.functional.jacobian(function, tuple(inputs))
    torch.testing.assert_close(jacrev(function, argnums)(*inputs), expected)
    torch.testing.assert_close(jacfwd(function, argnums)(*inputs), expected)
    torch.testing.assert_close(torch.autograd.functional.jacobian(function, tuple(inputs), vectorize=True), expected)


@pytest.mark.parametrize("case", ["apply", "matrix, m == n", "rnn", "rnn packed"])
def test_hessians_agree(case):
    function, inputs = CASES[case]
    inputs = detached(inputs)

    def loss(u):
        return function(u, *inputs[1:]).sin().sum()

    expected = torch.autograd.functional.hessian(loss, inputs[0])
    torch.testing.assert_close(hessian(loss)(inputs[0]), expected)
    torch.testing.assert_close(jacrev(grad(loss))(inputs[0]), expected)


@cases
@pytest.mark.parametrize("which", ["first", "second", "all"])
def test_vmap_agrees_with_a_loop(function, inputs, which):
    inputs = detached(inputs)
    mapped = {"first": [0], "second": [min(1, len(inputs) - 1)], "all": range(len(inputs))}[which]
    in_dims = tuple(t.dim() - 1 if i in mapped else None for i, t in enumerate(inputs))
    stacked = [
        torch.stack([t, t + 0.5, 2 * t - 1], d) if d is not None else t for t, d in zip(inputs, in_dims, strict=True)
    ]
    each = [[t if d is None else t.select(d, i) for t, d in zip(stacked, in_dims, strict=True)] for i in range(3)]
    torch.testing.assert_close(vmap(function, in_dims)(*stacked), torch.stack([function(*a) for a in each]))

    def gradient(*inputs):
        return grad(lambda *a: function(*a).abs().square().sum(), tuple(range(len(inputs))))(*inputs)

    expected = [torch.stack(g) for g in zip(*(gradient(*a) for a in each), strict=True)]
    torch.testing.assert_close(vmap(gradient, in_dims)(*stacked), tuple(expected))


@pytest.mark.parametrize("shape", [(7, 2), (4, 3)])
def test_vmap_of_the_first_columns(shape):
    us = torch.randn(3, *shape)
    torch.testing.assert_close(vmap(ht.frame)(us), torch.stack([ht.frame(u) for u in us]))


def test_vmap_makes_one_native_call(native_calls):
    u, h = problem(4, 2, 5, 3)
    us = torch.stack([u] * 5)
    vmap(ht.apply, (None, 0))(u, h)
    vmap(ht.apply)(us, h)
    vmap(ht.apply, (0, None))(us, h)
    vmap(ht.matrix)(us)
    vmap(lambda x: ht.rnn(u, x), 1)(h)
    assert native_calls == ["apply"] * 3 + ["matrix", "rnn"]
    native_calls.clear()
    vmap(grad(lambda u, h: ht.apply(u, h).sum()), (None, 0))(u, h)
    vmap(grad(lambda u: ht.matrix(u).sum()))(us)
    vmap(grad(lambda x: ht.rnn(u, x)[1].sum()))(torch.stack([h, h]))
    assert native_calls == ["apply", "apply_backward", "matrix", "matrix_backward", "rnn", "rnn_backward"]


SEQUENCES = [
    "rnn",
    "rnn packed",
    *(f"rnn, {phi.name}" for phi in NONLINEARITIES.values() if phi.has_bias),
    "rnn, oplu",
    "rnn, dense",
    "rnn, complex modrelu",
]


def stacked(inputs, mapped, size=3):
    """Inputs of which the chosen ones have a dimension to be mapped, the dimensions, and the inputs of each index."""
    in_dims = tuple(0 if i in mapped else None for i in range(len(inputs)))
    many = [
        torch.stack([t + i / 2 for i in range(size)]) if d == 0 else t for t, d in zip(inputs, in_dims, strict=True)
    ]
    each = [[t if d is None else t[i] for t, d in zip(many, in_dims, strict=True)] for i in range(size)]
    return many, in_dims, each


@pytest.mark.parametrize("case", SEQUENCES)
def test_any_combination_of_mapped_tensors_is_one_native_call(case, native_calls):
    function, inputs = CASES[case]
    inputs = detached(inputs)
    everything = tuple(range(len(inputs)))

    def gradient(*inputs):
        return grad(lambda *a: function(*a).abs().square().sum(), everything)(*inputs)

    for mapped in product([False, True], repeat=len(inputs)):
        if not any(mapped):
            continue
        many, in_dims, each = stacked(inputs, [i for i, m in enumerate(mapped) if m])
        expected = torch.stack([function(*a) for a in each])
        expected_gradients = tuple(torch.stack(g) for g in zip(*(gradient(*a) for a in each), strict=True))
        native_calls.clear()
        torch.testing.assert_close(vmap(function, in_dims)(*many), expected)
        assert native_calls == ["rnn"]
        native_calls.clear()
        torch.testing.assert_close(vmap(gradient, in_dims)(*many), expected_gradients)
        assert native_calls == ["rnn", "rnn_backward"]


@pytest.mark.parametrize("case", SEQUENCES)
def test_a_device_whose_kernels_take_one_matrix_has_a_call_for_each(case, native_calls, monkeypatch):
    function, inputs = CASES[case]
    many, in_dims, _ = stacked(detached(inputs), range(len(inputs)))

    def gradient(*inputs):
        return grad(lambda *a: function(*a).abs().square().sum(), tuple(range(len(inputs))))(*inputs)

    expected = vmap(gradient, in_dims)(*many)
    native_calls.clear()
    monkeypatch.setattr(_ops.rnn, "takes_one_matrix", lambda _: True)
    torch.testing.assert_close(vmap(gradient, in_dims)(*many), expected)
    assert native_calls.count("rnn_backward") == len(many[0])


@pytest.mark.parametrize("case", SEQUENCES)
def test_gradients_of_vmap_are_those_of_a_loop(case):
    function, inputs = CASES[case]
    many, in_dims, _ = stacked(detached(inputs), range(0, len(inputs), 2))

    def mapped(*many):
        return vmap(function, in_dims)(*many).abs().square().sum()

    def loop(*many):
        each = ([t if d is None else t[i] for t, d in zip(many, in_dims, strict=True)] for i in range(3))
        return sum(function(*a).abs().square().sum() for a in each)

    everything = tuple(range(len(many)))
    torch.testing.assert_close(grad(mapped, everything)(*many), grad(loop, everything)(*many))
    if not many[0].is_complex():
        torch.testing.assert_close(jacrev(mapped, everything)(*many), jacrev(loop, everything)(*many))


def test_jacobians_of_every_model_of_an_ensemble():
    function, inputs = CASES["rnn"]
    many, _, each = stacked(detached(inputs), range(len(inputs)))
    expected = [torch.stack(j) for j in zip(*(jacrev(function, (0, 3))(*a) for a in each), strict=True)]
    torch.testing.assert_close(vmap(jacrev(function, (0, 3)))(*many), tuple(expected))


def test_maps_of_maps_are_one_native_call(native_calls):
    u, x = problem(4, 2, 5, 2)
    us = torch.stack([torch.stack([u + i + j / 2 for j in range(2)]) for i in range(3)])
    expected = torch.stack([torch.stack([ht.rnn(u, x)[0] for u in row]) for row in us])
    native_calls.clear()
    torch.testing.assert_close(vmap(vmap(lambda u: ht.rnn(u, x)[0]))(us), expected)
    assert native_calls == ["rnn"]
    xs = torch.stack([x, 2 * x])  # the outer map is over matrices, the inner one over sequences
    found = vmap(lambda u: vmap(lambda x: ht.rnn(u, x)[0])(xs))(us[:, 0])
    torch.testing.assert_close(found[:, 0], expected[:, 0])


@cases
@pytest.mark.parametrize("which", ["first", "second", "all"])
def test_nothing_to_map_over(function, inputs, which):
    inputs = detached(inputs)
    mapped = {"first": [0], "second": [min(1, len(inputs) - 1)], "all": range(len(inputs))}[which]
    in_dims = tuple(t.dim() - 1 if i in mapped else None for i, t in enumerate(inputs))
    none = [t if d is None else t.unsqueeze(d).narrow(d, 0, 0) for t, d in zip(inputs, in_dims, strict=True)]
    everything = tuple(range(len(inputs)))

    def loss(*inputs):
        return function(*inputs).abs().square().sum()

    assert vmap(function, in_dims)(*none).shape == (0, *function(*inputs).shape)
    gradients = vmap(grad(loss, everything), in_dims)(*none)
    assert [g.shape for g in gradients] == [(0, *t.shape) for t in inputs]
    of_all = grad(lambda *inputs: vmap(loss, in_dims)(*inputs).sum(), everything)(*none)
    assert [g.shape for g in of_all] == [t.shape for t in none]
    assert not any(g.any() for g in of_all)


def test_nothing_to_map_over_inside_a_map():
    u, xs = problem(4, 2, 0, 5, 2)
    found = vmap(lambda u: vmap(lambda x: ht.rnn(u, x)[0])(xs))(torch.stack([u, -u]))
    assert found.shape == (2, 0, 5, 2, 4)


def test_an_ensemble_does_not_depend_on_the_number_of_threads():
    generator = torch.Generator().manual_seed(0)
    us, x = torch.randn(5, 64, 8, generator=generator), torch.randn(100, 24, 64, generator=generator)

    def gradients():
        return vmap(grad(lambda u, x: ht.rnn(u, x, nonlinearity="tanh")[0].square().sum(), (0, 1)), (0, None))(us, x)

    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            results.append(gradients())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("kind", [ht.OrthogonalRNN, ht.UnitaryRNN])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
def test_an_ensemble_of_layers(kind, options, native_calls):
    unitary = kind is ht.UnitaryRNN
    dtype = torch.complex128 if unitary else torch.float64
    layers = [kind(2, 6, num_reflections=3, learn_h0=True, dtype=dtype, **options) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(layers)
    base = copy.deepcopy(layers[0]).to("meta")
    x = torch.randn(5, 4, 2, dtype=dtype)
    outputs, _ = vmap(lambda p, b: functional_call(base, (p, b), (x,)))(parameters, buffers)
    assert native_calls == ["rnn"] * len(layers[0].cells)
    expected = torch.stack([layer(x)[0] for layer in layers])
    torch.testing.assert_close(outputs, expected)
    outputs.abs().square().sum().backward()
    expected.abs().square().sum().backward()
    for name, stack in parameters.items():
        torch.testing.assert_close(stack.grad, torch.stack([layer.get_parameter(name).grad for layer in layers]))


@cases
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own, at a graph break
def test_compiled_code_agrees(function, inputs):
    torch.compiler.reset()
    graph_breaks = function is CASES["rnn packed"][0]  # batch sizes are read, as with torch.nn.RNN

    def loss(*inputs):
        return function(*inputs).abs().square().sum()

    # Torch traces a sequence a second time where the slope, a float, may change: one case shows that.
    with torch._dynamo.config.patch(specialize_float=function is not CASES["rnn"][0]):
        compiled = torch.compile(loss, fullgraph=not graph_breaks, dynamic=True, backend="aot_eager")
        result, expected = compiled(*inputs), loss(*inputs)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(torch.autograd.grad(result, inputs), torch.autograd.grad(expected, inputs))


def test_dynamic_shapes_compile_once():
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    u, _ = problem(4, 2)

    @torch.compile(fullgraph=True, dynamic=True, backend=counter)
    def run(u, x):
        return ht.apply(u, ht.rnn(u, x)[0])

    first = 0
    for steps, batch in [(6, 5), (8, 7), (3, 9)]:
        x = torch.randn(steps, batch, 4, dtype=torch.float64)
        torch.testing.assert_close(run(u, x), ht.rnn(u, x)[0] @ explicit_matrix(u).T)
        first = first or counter.frame_count
    assert counter.frame_count == first


compiles_gradients = pytest.mark.skipif(
    torch.__version__ < TorchVersion("2.15"), reason="torch before 2.15 does not compile gradients of torch.func"
)

NAMES_OF_COMPILED = [
    "apply, tau",
    "matrix",
    "rnn, oplu",
    "rnn, complex",
    "delta rule, gated",
    "linear attention, a gate a channel",
]


def squares(results):
    """Return the sum of the squares of all results."""
    return sum(y.abs().square().sum() for y in (results if isinstance(results, tuple) else (results,)))


def gradients_of(loss):
    return lambda *inputs: grad(loss, tuple(range(len(inputs))))(*inputs)


TRANSFORMS = {
    "grad": gradients_of,
    "vmap of grad": lambda loss: vmap(gradients_of(loss)),
    "grad of grad": lambda loss: gradients_of(lambda *inputs: squares(gradients_of(loss)(*inputs))),
}


@compiles_gradients
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented the batching rule")
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", ["apply, tau", "rnn, complex", "delta rule, gated"])
def test_compiled_transforms(name, transform):
    torch.compiler.reset()
    function, inputs = CASES[name]
    inputs = [torch.stack([t, 2 * t]) if transform == "vmap of grad" else t for t in detached(inputs)]
    transformed = TRANSFORMS[transform](lambda *inputs: squares(function(*inputs)))
    compiled = torch.compile(transformed, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), transformed(*inputs))


@compiles_gradients
@pytest.mark.parametrize(
    "name", [*NAMES_OF_COMPILED[:1], *[pytest.param(name, marks=pytest.mark.long) for name in NAMES_OF_COMPILED[1:]]]
)
def test_compiled_gradients_have_gradients(name):
    torch.compiler.reset()
    function, inputs = CASES[name]
    inputs = [t.detach().requires_grad_() for t in inputs]
    transformed = gradients_of(lambda *inputs: squares(function(*inputs)))
    compiled = torch.compile(transformed, fullgraph=True, backend="aot_eager")
    of_compiled, expected = (torch.autograd.grad(squares(f(*inputs)), inputs) for f in (compiled, transformed))
    torch.testing.assert_close(of_compiled, expected)


@pytest.mark.parametrize("name", NAMES_OF_COMPILED)
def test_compiled_ensembles_train(name):
    torch.compiler.reset()
    function, inputs = CASES[name]
    many = [torch.stack([t.detach(), 2 * t.detach()]).requires_grad_() for t in inputs]

    def run(*many):
        return vmap(function)(*many)

    found, expected = torch.compile(run, fullgraph=True, backend="aot_eager")(*many), run(*many)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(y.abs().square().sum(), many) for y in (found, expected)))


@pytest.mark.filterwarnings(IGNORE_CONFIG_WARNING)
@pytest.mark.parametrize("layer", ["Orthogonal", "OrthogonalRNN"])
def test_inductor_compiles_layers(layer):
    torch.compiler.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), getattr(ht, layer)(8, 8, num_reflections=8))
    x = torch.randn(4, 2, 3)

    def loss(x):
        output = model(x)
        return (output if layer == "Orthogonal" else output[0]).tanh().sum()

    expected = loss(x)
    expected.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    result = torch.compile(loss, fullgraph=True)(x)
    result.backward()
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close([p.grad for p in model.parameters()], gradients)


@pytest.mark.parametrize("strict", [True, False])
def test_export(strict):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = ht.OrthogonalRNN(3, 8, num_layers=2, bidirectional=True)
            self.head = ht.Orthogonal(16, 4)

        def forward(self, x):
            return self.head(self.rnn(x)[0])

    model, x = Model().eval(), torch.randn(5, 2, 3)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (x,), dynamic_shapes=({1: batch},), strict=strict)
    torch.testing.assert_close(program.module()(x), model(x))
    more = torch.randn(5, 7, 3)
    torch.testing.assert_close(program.module()(more), model(more))
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    targets = {str(node.target) for graph in graphs for node in graph.nodes}
    assert {"householder.rnn.default", "householder.apply.default"} <= targets
