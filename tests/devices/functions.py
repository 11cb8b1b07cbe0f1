"""What every public function gives on a device without kernels: run by ``test_devices.py`` in a process of its own."""

import math
import sys
import warnings
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch

import householder.torch as ht
from householder._base import notices
from householder.torch import acceleration
from householder.torch._base import expressions, precision
from householder.torch.acceleration import mlstm
from tests.cases.torch import CASES, results
from tests.conftest import of_arrays
from tests.cuda import cuda_standin
from tests.cuda.test_launch_torch import on_cuda as on_cuda
from tests.devices import private_device
from tests.tester import oracle

pytestmark = pytest.mark.filterwarnings(
    "ignore:householder has no native kernel",
    "ignore:Warning only once for all operators",  # of torch 2.10, where a test replaces a kernel
)

F64 = torch.float64


@pytest.fixture(scope="module")
def device():
    return private_device.NAME


@pytest.fixture
def said(monkeypatch):
    """No notice has been given yet."""
    monkeypatch.setattr(notices, "_said", {})


def on(device, inputs):
    return [t.detach().to(device).requires_grad_() for t in inputs]


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_the_cpu(device, name):
    function, inputs = CASES[name]
    for found, expected in zip(results(function, on(device, inputs)), results(function, inputs), strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-12, atol=1e-12)


SMALL = ("apply", "apply, m == n", "matrix", "rnn", "rnn packed", "rnn, oplu", "rnn, complex modrelu")


@pytest.mark.parametrize("name", SMALL)
def test_second_derivatives_are_those_of_the_cpu(device, name):
    function, inputs = CASES[name]

    def gradients(*inputs):
        value = function(*inputs)
        found = torch.autograd.grad(value.abs().square().sum(), inputs, create_graph=True)
        return torch.cat([torch.view_as_real(t).flatten() if t.is_complex() else t.flatten() for t in found])

    for found, expected in zip(results(gradients, on(device, inputs)), results(gradients, inputs), strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-10, atol=1e-10)


TRANSFORMS = {
    "vmap over vectors": lambda u, h: torch.func.vmap(ht.apply, (None, 0))(u, h),
    "vmap over matrices": lambda u, h: torch.func.vmap(ht.matrix)(torch.stack([u, 2 * u.flip(0)])) @ h.mT,
    "vmap over sequences": lambda u, h: torch.func.vmap(lambda x: ht.rnn(u, x)[0])(torch.stack([h, -h])),
    "an ensemble": lambda u, h: torch.func.vmap(lambda u, x: ht.rnn(u, x)[0])(
        torch.stack([u, -u]), torch.stack([h, h])
    ),
    "gradient": lambda u, h: torch.func.grad(lambda u: ht.apply(u, h).square().sum() + ht.rnn(u, h)[0].sum())(u),
    "jacobian by rows": lambda u, h: torch.func.jacrev(lambda u: ht.rnn(u, h, nonlinearity="tanh")[1])(u),
    "forward mode": lambda u, h: torch.func.jvp(lambda u: ht.rnn(u, h, nonlinearity="tanh")[0], (u,), (u,))[1],
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_function_transforms(device, name):
    u, h = CASES["apply"][1]
    found, expected = (TRANSFORMS[name](*(t.detach().to(where) for t in (u, h))) for where in (device, "cpu"))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["apply", "matrix", "rnn"])
def test_compiled_code_calls_the_operators(device, name):
    torch.compiler.reset()
    function, inputs = CASES[name]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for found, expected in zip(results(compiled, on(device, inputs)), results(function, inputs), strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-12, atol=1e-12)


def test_compiled_sequences_are_not_unrolled(device):
    """Not even where no device but the CPU has a kernel for the columns."""
    torch.compiler.reset()
    graphs = []

    def look(graph, _):
        graphs.append(graph)
        return graph.forward

    u, x, tau = (numbers(*shape).to(device) for shape in ((6, 3), (50, 2, 6), (3,)))
    compiled = torch.compile(lambda *a: of_arrays(ht.rnn)(*a[:2], tau=a[2])[0], fullgraph=True, backend=look)
    with torch.no_grad():
        found = compiled(u, x, tau)
    torch.testing.assert_close(found.cpu(), ht.rnn(ht.Reflections(u.cpu(), tau.cpu()), x.cpu())[0])
    assert sum(len(graph.graph.nodes) for graph in graphs) < 50


def numbers(*shape, dtype=F64):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(len(shape)))


def made(make, like):
    """A module whose parameters do not depend on the device, beside a tensor."""
    torch.manual_seed(0)
    return make().double().to(like.device)


def adapted(like):
    """A model with an adapted layer, beside a tensor."""
    model = made(lambda: torch.nn.Sequential(torch.nn.Linear(6, 4)), like)
    ht.adapt(model, "0", 4)
    ht.load_adapter_state(model, {"0": numbers(6, 4)})
    return model


U = numbers(6, 3)
FUNCTIONS = {
    "Reflections": lambda x: ht.Reflections(U.to(x.device)).H @ x.mT,
    "adapt": lambda x: adapted(x)(x),
    "adapter_state": lambda x: x + ht.adapter_state(adapted(x))["0"].to(x.device)[:, 0],
    "apply": lambda x: ht.apply(U.to(x.device), x),
    "commit": lambda x: ht.commit(
        x.new_ones(1, x.shape[1], 6, 6), x[None], x[None], beta=x[None, ..., 0], accepted=[2]
    ),
    "delta_rule": lambda x: ht.delta_rule(x[None], x[None], x[None], beta=x[None, ..., 0])[0],
    "factor": lambda x: ht.factor(ht.matrix(x.mT), 3),
    "frame": lambda x: ht.frame(x.mT),
    "haar": lambda x: ht.haar(6, 3, rng=0, device=x.device, dtype=F64),
    "householder_product": lambda x: ht.householder_product(x.mT, x[..., 0]),
    "last_state": lambda x: ht.last_state(made(lambda: ht.OrthogonalRNN(6, 8), x), x, every=2),
    "linear_attention": lambda x: ht.linear_attention(x[None], x[None], x[None], g=-x[None, ..., 0].square())[0],
    "load_adapter_state": lambda x: adapted(x)(x),
    "matrix": lambda x: ht.matrix(x.mT),
    "merge_adapters": lambda x: ht.merge_adapters(adapted(x))(x),
    "nearest": lambda x: ht.nearest(x),
    "ormqr": lambda x: ht.ormqr(x[0].mT, x[0, :, 0], x[1].mT),
    "renormalize_": lambda x: ht.renormalize_(x.mT.detach().clone()),
    "rnn": lambda x: ht.rnn(U.to(x.device), x)[0],
    "snap_": lambda x: ht.snap_(x[0, :, :2].detach().clone()),
}
LAYERS = {
    "DeltaNet": lambda: ht.DeltaNet(6, 2),
    "ModReLU": lambda: ht.ModReLU(3),
    "OPLU": ht.OPLU,
    "Orthogonal": lambda: ht.Orthogonal(6, 4),
    "OrthogonalAdapter": lambda: ht.OrthogonalAdapter(torch.nn.Linear(6, 4), 4),
    "OrthogonalRNN": lambda: ht.OrthogonalRNN(6, 8, 2, bidirectional=True, learn_h0=True),
    "OrthogonalRNNCell": lambda: ht.OrthogonalRNNCell(6, 8),
    "SVDLinear": lambda: ht.SVDLinear(6, 4),
    "Unitary": lambda: ht.Unitary(6, 4),
    "UnitaryRNN": lambda: ht.UnitaryRNN(6, 4),
    "UnitaryRNNCell": lambda: ht.UnitaryRNNCell(6, 4),
    "orthogonal": lambda: ht.orthogonal(torch.nn.Linear(6, 4)),
}
ELSEWHERE = {
    "accelerate": "changes models of transformers and peft; torch/compat/test_pretrained.py",
    "decompositions": "names torch expressions for exporters, takes no tensor; torch/ops/test_export.py",
    "restore": "undoes accelerate",
}


def test_every_public_name_has_a_case():
    named = [*FUNCTIONS, *LAYERS, *ELSEWHERE]
    assert sorted(named) == sorted(ht.__all__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_give_what_they_do_on_the_cpu(device, name):
    """The result and, where there is one, the gradient."""
    function, x = FUNCTIONS[name], numbers(2, 3, 6)

    def both(where):
        leaf = x.to(where).requires_grad_()
        value = function(leaf)
        assert value.device.type == where
        return results(function, [leaf]) if value.requires_grad else [value]

    for found, expected in zip(both(device), both("cpu"), strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_give_and_learn_what_they_do_on_the_cpu(device, name):
    """The result, and the gradients of the input and of all parameters."""
    x = numbers(2, 3, 6, dtype=torch.complex128 if "Unitary" in name else F64)
    x = x[0] if name.endswith("Cell") else x

    def all_of(where):
        leaf = x.to(where).requires_grad_()
        layer = made(LAYERS[name], leaf)

        def run(leaf, *_):
            output = layer(leaf)
            return output[0] if isinstance(output, tuple) else output

        return results(run, [leaf, *(p for p in layer.parameters() if p.requires_grad)])

    for found, expected in zip(all_of(device), all_of("cpu"), strict=True):
        assert found.device.type == device
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-11, atol=1e-11)


def test_packed_sequences_in_both_directions(device):
    layer = ht.OrthogonalRNN(3, 8, bidirectional=True, dtype=F64)
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(6, 4, 3, dtype=F64), [6, 5, 2, 1])
    expected = layer(packed)[0].data
    there = torch.nn.utils.rnn.PackedSequence(packed.data.to(device), packed.batch_sizes)
    torch.testing.assert_close(layer.to(device)(there)[0].data.cpu(), expected)


def test_tensors_without_memory_have_shapes_and_cause_no_notice(said):  # noqa: ARG001
    u, x = torch.empty(8, 3, device="meta"), torch.empty(5, 2, 8, device="meta")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [ht.apply(u, x), ht.matrix(u), *ht.rnn(u, x)]
    assert [tuple(t.shape) for t in found] == [(5, 2, 8), (8, 8), (5, 2, 8), (2, 8)]
    assert all(t.is_meta for t in found)


def delta_operands(where):
    return on(where, CASES["delta rule"][1])


def delta_rule(q, k, v, beta, **options):
    return ht.delta_rule(q, k, v, beta=beta, **options)


def linear_attention(q, k, v, _beta):
    return ht.linear_attention(q, k, v)


def gated_operands(where, dtype=F64):
    """Numbers of float32 in any type: two value heads for each head, and no multiple of a chunk."""
    q, k, v = (numbers(1, 70, heads, width) for heads, width in ((1, 4), (1, 4), (2, 3)))
    beta, g = numbers(1, 70, 2).sigmoid(), -numbers(1, 70, 2).square()
    return on(where, [t.float().to(dtype) for t in (q, k, v, beta, g, numbers(1, 2, 4, 3))])


def gated(q, k, v, beta, g, state, states_at=None):
    return of_rule(ht.delta_rule, q, k, v, beta=beta, g=g, initial_state=state, states_at=states_at)


def decaying(q, k, v, g, state, states_at=None):
    return of_rule(ht.linear_attention, q, k, v, g=g, initial_state=state, states_at=states_at)


def of_rule(rule, *operands, **options):
    """All results of a rule in one tensor."""
    results = rule(*operands, use_qk_l2norm_in_kernel=True, output_final_state=True, **options)
    return torch.cat([t.flatten() for t in results])


def operands_of(rule, where, dtype=F64):
    q, k, v, beta, g, state = gated_operands(where, dtype)
    return [q, k, v, beta, g, state] if rule is gated else [q, k, v, g, state]


def second_derivatives(rule, operands):
    first = torch.autograd.grad(rule(*operands).square().sum(), operands, create_graph=True)
    return torch.autograd.grad(sum(t.sin().sum() for t in first), operands)


def two_of(operands):
    return [torch.stack([t, t.flip(1)]) for t in operands]


def gradients_for_each(rule, operands):
    gradients = torch.func.grad(lambda *one: rule(*one).square().sum(), tuple(range(len(operands))))
    return torch.func.vmap(gradients)(*two_of(operands))


RULES = {"delta_rule": gated, "linear_attention": decaying}
OF_RULES = {
    "gradients": results,
    "states after tokens": lambda rule, operands: results(partial(rule, states_at=[1, 3]), operands),
    "second derivatives": second_derivatives,
    "vmap": lambda rule, operands: torch.func.vmap(rule)(*two_of(operands)),
    "gradients for each": gradients_for_each,
    "forward mode": lambda rule, operands: torch.func.jvp(rule, tuple(operands), tuple(t.cos() for t in operands)),
    "compiled": lambda rule, operands: results(torch.compile(rule, fullgraph=True, backend="aot_eager"), operands),
}


@pytest.fixture(params=RULES)
def rule(request):
    return RULES[request.param]


@pytest.mark.parametrize("name", OF_RULES)
def test_derivatives_and_transforms_of_both_rules(device, rule, name):
    torch.compiler.reset()
    found, expected = (OF_RULES[name](rule, operands_of(rule, where)) for where in (device, "cpu"))
    for a, b in zip(found, expected, strict=True):
        assert a.device.type == device
        torch.testing.assert_close(a.cpu(), b, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", OF_RULES)
def test_both_rules_need_no_double_precision(device, rule, name):
    """Errors relative to double precision are those of native code."""
    torch.compiler.reset()
    exact, native = (OF_RULES[name](rule, operands_of(rule, "cpu", dtype)) for dtype in (F64, torch.float32))
    with without_doubles():
        found = [t.cpu() for t in OF_RULES[name](rule, operands_of(rule, device, torch.float32))]
    for a, b, e in zip(found, native, exact, strict=True):
        assert relative(a, e) < 5e-7 + relative(b, e)
        assert relative(b, e) < 5e-6


def relative(found, exact):
    return float((found.detach() - exact.detach()).norm() / exact.detach().norm())


def test_the_delta_rule_saves_its_operands_alone(device):
    saved = []
    operands = gated_operands(device)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        gated(*operands)
    of_operands = {t.data_ptr() for t in operands}
    large = [t for t in saved if t.device.type == device and t.numel() > 1]
    assert {t.data_ptr() for t in large} <= of_operands


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("operand", range(5))
def test_what_a_later_token_holds_reaches_no_earlier_output_or_gradient_of_a_query(device, operand, bad):
    found = []
    for value in (0.5, bad):
        operands = gated_operands(device)
        with torch.no_grad():
            operands[operand][0, 60].flatten()[0] = -abs(value)  # minus infinity is a gate
        *rule, state = operands
        o, _ = ht.delta_rule(*rule[:3], beta=rule[3], g=rule[4], initial_state=state)
        found.append((o[:, :60].detach(), torch.autograd.grad(o.sum(), operands[0])[0][:, :60]))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def logits_and_gradients(model, count, where):
    """Logits of a prompt and of a few tokens and one after it, and the gradients of all parameters without a cache."""
    from tests.torch.compat.test_pretrained import continued

    ids = torch.randint(1, 64, (1, count + 21), generator=torch.Generator().manual_seed(0)).to(where)
    logits, before = [], {}
    with torch.no_grad():
        for part in ids.split([count, 20, 1], 1):
            cached = model(part, use_cache=True, **before)
            logits.append(cached.logits)
            before = continued(cached)
    model.zero_grad()
    model(ids[:, :count], use_cache=False).logits.square().mean().backward()
    return [t.cpu() for t in (*logits, *(p.grad for p in model.parameters() if p.grad is not None))]


def assert_same_after_acceleration(name, count, device, *, is_ours):
    from tests.torch.compat.test_pretrained import build

    model = build(name)
    model.set_experts_implementation("eager")  # torch has no histogram of integers for the device
    expected = logits_and_gradients(model, count, "cpu")
    assert ht.accelerate(model.to(device))
    with expressions_of_the_delta_rule() as calls:
        found = logits_and_gradients(model, count, device)
    assert bool(calls) == is_ours
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


OF_TRANSFORMERS = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@OF_TRANSFORMERS
@pytest.mark.parametrize(("count", "is_ours"), [(1088, False), (1089, True)])
def test_accelerated_models_take_the_expression_where_it_has_fewer_operations(device, count, is_ours):
    pytest.importorskip("transformers", minversion="5", reason="transformers is not installed")
    assert_same_after_acceleration("qwen3_5", count, device, is_ours=is_ours)


@OF_TRANSFORMERS
@pytest.mark.parametrize(
    ("name", "is_ours"),
    [
        ("qwen3_next", True),
        ("olmo_hybrid", True),
        ("kimi_linear", True),
        ("bailing_hybrid", True),
        ("minimax", True),
        ("xlstm", True),
        ("mamba2", False),
    ],
)
def test_accelerated_models_compute_the_same_by_the_expression(device, name, is_ours, monkeypatch):
    """Short prompts, which are ours here if any are."""
    pytest.importorskip("transformers", minversion="5", reason="transformers is not installed")
    monkeypatch.setattr(acceleration.devices, "is_ours", lambda _, least=math.inf, **__: least < math.inf)
    assert_same_after_acceleration(name, 40, device, is_ours=is_ours)


@OF_TRANSFORMERS
@pytest.mark.parametrize("name", ["minimax", "xlstm"])
def test_accelerated_models_need_no_double_precision(device, name, monkeypatch):
    pytest.importorskip("transformers", minversion="5", reason="transformers is not installed")
    monkeypatch.setattr(acceleration.devices, "is_ours", lambda _, least=math.inf, **__: least < math.inf)
    with without_doubles():
        assert_same_after_acceleration(name, 40, device, is_ours=True)


@OF_TRANSFORMERS
def test_long_sums_of_gates_lose_nothing_without_double_precision(device):
    """Sums go to -60,000, where float32 rounds to multiples of 0.004, but weights do not have this error."""
    pytest.importorskip("transformers", minversion="5", reason="transformers is not installed")
    from tests.torch.compat.test_recurrences_of_others import operands

    given, state = operands(4096, torch.float32, batch=1)
    given[4] = given[4] - 18
    exact = oracle.mlstm(*(t.double() for t in given + state), epsilon=1e-6)[0]
    with without_doubles(), torch.no_grad():
        found, _ = mlstm._sequence(*on(device, given), on(device, state), 1e-6)
        found = found.cpu()
    assert relative(found, exact) < 2e-5


@contextmanager
def without_doubles():
    """Let the device refuse double precision, and forget whether it has it."""
    precision._try.cache_clear()
    try:
        with private_device.without_doubles():
            yield
    finally:
        precision._try.cache_clear()


@contextmanager
def expressions_of_the_delta_rule():
    """A list that grows with each expression that is computed."""
    calls, function = [], expressions.delta_rule

    def noted(*arguments, **options):
        calls.append(arguments)
        return function(*arguments, **options)

    with mock.patch.object(expressions, "delta_rule", noted):
        yield calls


def test_the_operators_themselves(device):
    """As compiled and exported programs call them, without a function around them."""
    u, x = (t.detach() for t in (*CASES["apply"][1][:1], CASES["rnn, bare"][1][1]))
    g = torch.randn(x.shape, dtype=F64)
    options = "tanh", 0.1, False, False, "trapezoidal", "auto"
    wanted = [True, True, *[False] * 6]

    def calls(where):
        a, b, c = (t.to(where) for t in (u, x, g))
        h, last, _ = torch.ops.householder.rnn(a, b, *[None] * 7, False, *options)
        rest = torch.ops.householder.rnn_backward(a, b, *[None] * 7, h, None, c, None, wanted, *options)
        both = torch.ops.householder.apply_backward(
            a, b, None, None, c, [True, True, False], False, "auto", "trapezoidal"
        )
        operands = [t.detach() for t in delta_operands(where)]
        o, state, _ = torch.ops.householder.delta_rule(*operands, *[None] * 4, False, 1.0, 1, False)
        of_delta = torch.ops.householder.delta_rule_backward(
            *operands, *[None] * 5, o, None, [True] * 4 + [False] * 3, 1.0, 1, False
        )
        return [h, last, *rest[:2], *both[:2], o, state, *of_delta[:4]]

    for found, expected in zip(calls(device), calls("cpu"), strict=True):
        assert found.device.type == device
        torch.testing.assert_close(found.cpu(), expected)


def test_where_there_is_no_double_precision(device):
    u, x = torch.randn(12, 5), torch.randn(9, 3, 12)
    exact = ht.rnn(u.double(), x.double(), nonlinearity="tanh")[0]
    with without_doubles():
        leaves = on(device, (u, x))
        h, _ = ht.rnn(*leaves, nonlinearity="tanh")
        grads = torch.autograd.grad(h.square().sum(), leaves)
        w = ht.matrix(leaves[0]).detach().cpu()
        found = h.detach().cpu()
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-4)
    torch.testing.assert_close(w.mT @ w, torch.eye(12), rtol=0, atol=1e-5)
    assert all(grad.cpu().isfinite().all() for grad in grads)


@pytest.mark.filterwarnings("default:householder has no native kernel")
def test_a_device_is_reported_once(device, said):  # noqa: ARG001
    u, h = (t.detach().to(device) for t in CASES["apply"][1])
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        ht.apply(u, h)
        ht.matrix(u)
    assert len(given) == 1
    assert "on private:0 (there are kernels for the CPU and for CUDA only)" in str(given[0].message)


def test_kernels_can_be_required(device, monkeypatch):
    u, h = (t.detach().to(device) for t in CASES["apply"][1])
    monkeypatch.setenv("HOUSEHOLDER_KERNELS", "require")
    with pytest.raises(
        RuntimeError, match="'require', but on private:0 there are kernels for the CPU and for CUDA only"
    ):
        ht.apply(u, h)
    ht.apply(u.cpu(), h.cpu())
    monkeypatch.setenv("HOUSEHOLDER_KERNELS", "never")
    with pytest.raises(ValueError, match="HOUSEHOLDER_KERNELS is 'never', expected 'require' or 'off'"):
        ht.apply(u, h)


def test_off_says_nothing(device, said, monkeypatch):  # noqa: ARG001
    monkeypatch.setenv("HOUSEHOLDER_KERNELS", "off")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ht.apply(*(t.detach().to(device) for t in CASES["apply"][1]))
        delta_rule(*delta_operands(device))


def the_operator(*operands):
    return torch.ops.householder.delta_rule(*operands, *[None] * 4, False, 1.0, 1, False)


OF_DELTA = {
    "function": delta_rule,
    "compiled": torch.compile(delta_rule, fullgraph=True, backend="aot_eager"),
    "gradient": torch.func.grad(lambda *operands: delta_rule(*operands)[0].sum()),
    "operator": the_operator,
    "linear_attention": linear_attention,
}


@pytest.mark.filterwarnings("default:householder has no native kernel")
@pytest.mark.parametrize("name", OF_DELTA)
def test_the_delta_rule_is_reported_once_and_kernels_for_it_can_be_required(device, name, said, monkeypatch):  # noqa: ARG001
    torch.compiler.reset()
    operands = [t.detach() for t in delta_operands(device)]
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for _ in range(2):
            OF_DELTA[name](*operands)
    (said_once,) = (str(one.message) for one in given if "householder" in str(one.message))
    rule = "linear_attention" if name == "linear_attention" else "delta_rule"
    assert f"on private:0 ({rule} has kernels for the CPU only)" in said_once
    monkeypatch.setenv("HOUSEHOLDER_KERNELS", "require")
    torch.compiler.reset()
    with pytest.raises(Exception, match=f"'require', but on private:0 {rule} has kernels for the CPU only"):
        OF_DELTA[name](*operands)
    OF_DELTA[name](*(t.cpu() for t in operands))


PAGE = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()
OF_PAGE = {
    "apply": lambda u, x: ht.apply(u, x),
    "matrix": lambda u, x: ht.matrix(u) @ x.mT,
    "rnn": lambda u, x: ht.rnn(u, x)[0],
    "delta_rule": lambda u, x: delta_rule(*delta_operands(u.device))[0],  # noqa: ARG005
    "linear_attention": lambda u, x: linear_attention(*delta_operands(u.device))[0],  # noqa: ARG005
}


def table():
    """Rows of the page's first table: the device, then what each function runs there."""
    lines = PAGE[PAGE.index("| device |") :].partition("\n\n")[0].splitlines()
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    names = [name.strip("`") for name in header[1:]]
    return [(device, name, way) for device, *ways in rows for name, way in zip(names, ways, strict=True)]


@pytest.fixture
def ways(monkeypatch):
    """What ran: kernels that were launched, and expressions."""
    ran = set()

    def noted(function, way):
        def call(*arguments, **options):
            ran.add(way)
            return function(*arguments, **options)

        return call

    for name in ("apply", "matrix", "rnn", "delta_rule"):
        monkeypatch.setattr(expressions, name, noted(getattr(expressions, name), "torch operations"))
    monkeypatch.setattr(cuda_standin.Function, "__call__", noted(cuda_standin.Function.__call__, "kernels"))
    return ran


@pytest.mark.skipif(not cuda_standin.HAS_COMPILER, reason="the emulator needs a C++ compiler")
@pytest.mark.parametrize(("where", "name", "way"), table())
def test_the_table_of_the_page(where, name, way, device, ways, monkeypatch, request):
    """CUDA tensors are tensors of the CPU here that take the way of CUDA's."""
    u, x = (t.detach() for t in (CASES["apply"][1][0], CASES["rnn, bare"][1][1]))
    if where.startswith("any other device"):
        OF_PAGE[name](u.to(device), x.to(device))
    elif where == "CPU" or name not in ("delta_rule", "linear_attention"):
        if where != "CPU":
            request.getfixturevalue("on_cuda")
        if where == "NVIDIA GPU without CuPy":
            monkeypatch.setitem(sys.modules, "cupy", None)
        if where.startswith("AMD"):
            monkeypatch.setattr(torch.version, "hip", "7.1")
        OF_PAGE[name](u, x)
    else:  # the dispatcher finds the same for CUDA as for any other device
        assert not torch._C._dispatch_has_kernel_for_dispatch_key("householder::delta_rule", "CUDA")
        OF_PAGE[name](u.to(device), x.to(device))
    assert ways == ({way} if way != "native code" else set())


def test_the_table_has_every_function_and_device():
    rows = table()
    assert {name for _, name, _ in rows} == OF_PAGE.keys()
    assert {way for _, _, way in rows} == {"native code", "kernels", "torch operations"}
    assert len(rows) == 5 * len(OF_PAGE)
