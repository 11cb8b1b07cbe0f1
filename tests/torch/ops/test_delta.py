"""The delta rule and linear attention in torch: values, derivatives, types, compilation, packed sequences, mistakes."""

import shutil
from unittest import mock

import pytest
import torch

import householder.torch as ht
from benches.pages import operations
from householder import _core
from householder.torch import _ops
from householder.torch._base import expressions
from householder.torch._ops.operator import Operator
from householder.torch.acceleration import devices, pretrained
from householder.torch.functions.delta import run
from tests.cases.torch import results
from tests.oracles.torch import IGNORE_CONFIG_WARNING

GATES = pytest.mark.parametrize("gate", [None, "head", "channel"])
ERASES = pytest.mark.parametrize("erases", [True, False], ids=["delta rule", "linear attention"])
NAMES = ("q", "k", "v", "beta", "g", "initial_state")


def operands(
    gate="head", *, tokens=5, batch=2, heads=1, group=2, r=1, widths=(3, 4), count=None, dtype=torch.float64,
    erases=True,
):  # fmt: skip
    """In the order of ``NAMES``; beta is None unless keys erase."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    keys, values = widths
    shape = (batch, tokens, heads * group, keys)
    g = {None: None, "head": -normal(*shape[:3]).abs(), "channel": -normal(*shape).abs()}[gate]
    k = torch.nn.functional.normalize(normal(batch, tokens * r, heads, keys), dim=-1)
    tensors = [
        normal(batch, tokens, heads, keys),
        k,
        normal(batch, tokens * r, heads * group, values),
        2 * normal(batch, tokens * r, heads * group).sigmoid() if erases else None,
        g,
        normal(batch if count is None else count, heads * group, keys, values),
    ]
    return [None if t is None else t.requires_grad_() for t in tensors]


def call(*tensors, **options):
    q, k, v, beta, g, state = tensors
    options |= {"g": g, "initial_state": state, "output_final_state": True}
    return ht.linear_attention(q, k, v, **options) if beta is None else ht.delta_rule(q, k, v, beta=beta, **options)


@GATES
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("erases", "r"), [(True, 1), (True, 2), (False, 1)])
@pytest.mark.parametrize("tokens", [1, 40, 100])
def test_native_code_and_torch_operations_agree(gate, normalize, erases, r, tokens):
    tensors = operands(gate, tokens=tokens, r=r, erases=erases)
    found, expected = (
        results(lambda *given, rule=rule: rule(*given, None, r, normalize), tensors) for rule in (native, by_operations)
    )
    torch.testing.assert_close(found, expected)


@GATES
@pytest.mark.parametrize("tokens", [1, 3, 40, 100])
@pytest.mark.parametrize("has_beta", [True, False])
def test_with_values_in_the_outputs_nothing_is_erased(gate, tokens, has_beta):
    *tensors, state = operands(gate, tokens=tokens, erases=has_beta)
    tensors = *tensors, state, torch.tensor([0.5, -2.0], dtype=torch.float64, requires_grad=True)

    def native(*tensors):
        return _ops.delta.operator(
            _ops.delta.DeltaRuleInputs(*tensors, None), _ops.delta.DeltaRuleOptions(0.3, 1, True)
        )

    def expression(*tensors):
        *tensors, skip = tensors
        return expressions.delta_rule(*tensors, None, 0.3, 1, True, skip)

    def composed(q, k, v, beta, g, state, skip):
        written = v if beta is None else beta[..., None] * v
        o, last = call(q, k, written, None, g, state, scale=0.3, use_qk_l2norm_in_kernel=True)
        return o + skip[:, None] * v, last

    found = results(native, tensors)
    torch.testing.assert_close(found, results(expression, tensors))
    torch.testing.assert_close(found, results(composed, tensors))
    closed = results(lambda *tensors: in_closed_form(*tensors, function=native), tensors)
    torch.testing.assert_close(found, closed)


@pytest.mark.parametrize("mapped", [(0, None), (0, 0), (None, 0)], ids=["batch", "both", "skip"])
def test_values_in_the_outputs_are_mapped(mapped):
    of_values, of_skip = mapped
    q, k, v, beta, g, state = (t.detach() for t in operands("head", tokens=40))
    values = torch.stack([v, -2 * v]) if of_values == 0 else v
    skip = torch.tensor([[0.5, -2.0], [1.0, 3.0]], dtype=torch.float64)
    skip = skip if of_skip == 0 else skip[0]

    def loss(v, skip):
        inputs = _ops.delta.DeltaRuleInputs(q, k, v, beta, g, state, skip, None)
        o, last = _ops.delta.operator(inputs, _ops.delta.DeltaRuleOptions(0.3, 1, False))
        return o.square().sum() + last.sum()

    gradients = torch.func.grad(loss, (0, 1))
    found = torch.func.vmap(gradients, mapped)(values, skip)
    one_by_one = [gradients(values[i] if of_values == 0 else v, skip[i] if of_skip == 0 else skip) for i in range(2)]
    torch.testing.assert_close(found, tuple(map(torch.stack, zip(*one_by_one, strict=True))))


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings(IGNORE_CONFIG_WARNING)
@GATES
@ERASES
def test_inductor_compiles_calls(gate, erases):
    torch.compiler.reset()
    tensors = operands(gate, tokens=40, erases=erases)

    def function(*tensors):
        o, last = call(*tensors, use_qk_l2norm_in_kernel=True)
        return o.tanh(), last

    torch.testing.assert_close(results(torch.compile(function, fullgraph=True), tensors), results(function, tensors))


@ERASES
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_types_are_computed_in_float32(erases, half):
    tensors = operands("head", erases=erases)
    tensors = [None if t is None else t.detach().to(half).requires_grad_() for t in tensors]
    o, last = call(*tensors)
    assert (o.dtype, last.dtype) == (half, torch.float32)
    full = [None if t is None else t.detach().float() for t in tensors]
    torch.testing.assert_close(o, call(*full)[0].to(half))
    o.float().sum().backward()
    assert all(t.grad.dtype is half for t in tensors if t is not None)


def test_half_types_stand_beside_float32():
    q, k, v, beta, g, state = (t.detach().float() for t in operands("head"))
    with torch.autocast("cpu", torch.bfloat16):
        o, last = call(q.bfloat16(), k.bfloat16(), v, beta, g, state)
    assert (o.dtype, last.dtype) == (torch.bfloat16, torch.float32)


@GATES
@ERASES
def test_nothing_but_operands_and_a_state_in_several_chunks_is_kept(gate, erases):
    """Nothing of tokens by tokens of a chunk: states, which grow as tokens do and take no more than keys and values."""

    def kept(tokens):
        sizes = {"tokens": tokens, "batch": 1, "group": 1, "widths": (64, 64)}
        tensors = operands(gate, **sizes, dtype=torch.float32, erases=erases)
        own, shapes = {t.data_ptr() for t in tensors if t is not None}, []

        def pack(t):
            if t.data_ptr() not in own and t.numel() > 1:  # a number holds what the core keeps
                shapes.append(tuple(t.shape))
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            call(*tensors)
        return shapes

    chunk = _core.delta_interval(64, 64)
    assert kept(20 * chunk) == [(20, 1, 64, 64)]
    assert kept(40 * chunk) == [(40, 1, 64, 64)]
    assert chunk * (64 + 64) >= 64 * 64


PARTS = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])


def parts_of_a_projection(tokens, dtype, gate="head"):
    """Operands of which queries, keys and values are parts of one array, as a convolution leaves them."""
    q, k, v, *others = (t.detach() for t in operands(gate, tokens=tokens, widths=(16, 24), dtype=torch.float32))
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    mixed = torch.cat([q.flatten(2), k.flatten(2), v.flatten(2), v.flatten(2)], -1).to(dtype)
    parts = mixed.split([16, 16, 48, 48], -1)[:3]
    parts = [part.unflatten(-1, t.shape[2:]) for part, t in zip(parts, (q, k, v), strict=True)]
    return [*parts, *(t.to(wide) for t in others)]


@PARTS
@pytest.mark.parametrize("gate", ["head", "channel"])
@pytest.mark.parametrize("tokens", [1, 3, 33, 70])
def test_parts_of_a_projection_are_read_where_they_are(tokens, gate, dtype):
    parts = parts_of_a_projection(tokens, dtype, gate)
    alone = [t.contiguous() for t in parts]
    wide = [t.to(parts[3].dtype) for t in parts]
    found, expected, exact = (call(*given, use_qk_l2norm_in_kernel=True) for given in (parts, alone, wide))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.equal(found[0], exact[0].to(dtype))
    assert torch.equal(found[1], exact[1])


@PARTS
def test_gradients_of_parts_of_a_projection(dtype):
    parts = parts_of_a_projection(70, dtype)
    cotangent = torch.randn(2, 70, 2, 24, generator=torch.Generator().manual_seed(2)).to(dtype)

    def gradients(tensors, cotangent):
        leaves = [t.detach().requires_grad_() for t in tensors]
        assert all(leaf.stride() == t.stride() for leaf, t in zip(leaves, tensors, strict=True))
        return torch.autograd.grad(call(*leaves)[0], leaves, cotangent)

    found = gradients(parts, cotangent)
    exact = gradients([t.to(parts[3].dtype) for t in parts], cotangent.to(parts[3].dtype))
    assert all(torch.equal(a, b.to(a.dtype)) for a, b in zip(found, exact, strict=True))
    assert [t.dtype for t in found] == [t.dtype for t in parts]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_of_a_projection_are_not_copied(dtype, monkeypatch):
    monkeypatch.setattr(_ops.operator, "laid_out", None)
    leaves = [t.detach().requires_grad_() for t in parts_of_a_projection(70, dtype)]
    o, _ = call(*leaves)
    torch.autograd.grad(o, leaves, torch.ones_like(o))
    assert o.dtype is dtype


@pytest.mark.parametrize("tokens", [0, 1, 4, 40])
def test_a_step_updates_its_states_in_place(tokens):
    q, k, v, beta, g, state = (t.detach() for t in operands("head", tokens=tokens))
    options = {"beta": beta, "g": g, "use_qk_l2norm_in_kernel": True, "output_final_state": True}
    expected = ht.delta_rule(q, k, v, initial_state=state, **options)

    def step(state):
        inputs = _ops.delta.DeltaRuleInputs(q, k, v, beta, g, state, None, None)
        options = {"scale": None, "num_householder": 1, "normalize": True, "output_final_state": True}
        return run(inputs, **options, erases=True, in_place=True)

    cache = state.clone()
    with torch.no_grad():
        version = cache._version
        o, last = step(cache)
    assert last is cache
    assert cache._version > version
    torch.testing.assert_close((o, last), expected)
    for given in (state.mT.contiguous().mT, state.clone().requires_grad_()):  # they stay as they are
        o, last = step(given)
        assert last is not given
        torch.testing.assert_close((o, last, given), (*expected, state), check_stride=False)


@ERASES
def test_torch_operations_take_other_devices(erases):
    tensors = [None if t is None else t.detach().to("meta") for t in operands("channel", erases=erases)]
    o, last = call(*tensors)
    assert o.device.type == last.device.type == "meta"


@pytest.mark.parametrize("grouped", [False, True])
def test_the_recurrence_of_transformers_agrees(grouped):
    module = pytest.importorskip(
        "transformers.models.qwen3_next.modeling_qwen3_next", reason="transformers is not installed"
    )
    from tests.torch.compat.test_pretrained import fallback

    q, k, v, beta, g, state = (t.detach().float() for t in operands("head", tokens=70, group=2 if grouped else 1))
    expected = fallback(module, "torch_recurrent_gated_delta_rule").__wrapped__(
        q, k, v, g, beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    torch.testing.assert_close(call(q, k, v, beta, g, state, use_qk_l2norm_in_kernel=True), expected)


def test_operands_of_other_devices_and_of_integers_are_named():
    q, k, v, beta, g, _ = operands("head")
    with pytest.raises(TypeError, match="beta is on meta but q is on cpu"):
        ht.delta_rule(q, k, v, beta=beta.to("meta"), g=g)
    with pytest.raises(TypeError, match=r"q has dtype torch\.int32"):
        ht.delta_rule(q.int(), k, v, beta=beta, g=g)


def native(q, k, v, beta, g, state, ends, r, normalize):
    reflections = {} if beta is None else {"num_householder": r}
    return call(q, k, v, beta, g, state, use_qk_l2norm_in_kernel=normalize, cu_seqlens=ends, **reflections)


def by_operations(q, k, v, beta, g, state, ends, r, normalize):
    return expressions.delta_rule(q, k, v, beta, g, state, ends, q.shape[-1] ** -0.5, r, normalize)


def in_closed_form(*arguments, function=native):
    """As on a device without kernels: torch operations, and gradients in closed form."""
    with (
        mock.patch.object(_ops.operator, "lacks_kernel", return_value=True),
        mock.patch.object(Operator, "attempt", return_value=None),
    ):
        return function(*arguments)


def outputs_and_gradients(function, tensors, grad_o, *options):
    """Outputs and the gradients of the operands of tokens, by name."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in tensors]
    o, last = function(*leaves, *options)
    given = [(name, t) for name, t in zip(NAMES[:5], leaves, strict=False) if t is not None]
    found = torch.autograd.grad((o, last), [t for _, t in given], (grad_o, torch.ones_like(last)))
    return {"o": o.detach()} | {name: grad for (name, _), grad in zip(given, found, strict=True)}


DEPENDS_ON_NO_LATER = {
    "q": ("o", "q"), "k": ("o", "q"), "v": ("o", "q", "k", "beta", "g"), "beta": ("o", "q"), "g": ("o", "q"),
}  # fmt: skip
"""What does not depend on an operand of a later token."""
DEPENDS_ON_NO_EARLIER = {"q": ("o", "q", "k", "v", "beta", "g"), "k": ("v",), "v": ("v",), "beta": ("v",), "g": ("v",)}
"""What does not depend on an operand of an earlier token."""


@pytest.mark.slow_combinations
@GATES
@pytest.mark.parametrize("function", [native, by_operations, in_closed_form])
@pytest.mark.parametrize(
    ("erases", "r", "normalize", "ends"),
    [
        (True, 1, False, None),
        (True, 2, True, None),
        (True, 1, True, [0, 30, 70]),
        (False, 1, False, None),
        (False, 1, True, [0, 30, 70]),
    ],
)
def test_what_is_not_finite_changes_only_what_depends_on_it(gate, function, erases, r, normalize, ends):
    count, begin = (1, 0) if ends is None else (2, 30)
    sizes = {"tokens": 70, "batch": 1, "r": r, "widths": (8, 5), "count": count}
    tensors = operands(gate, **sizes, dtype=torch.float32, erases=erases)
    tensors = [None if t is None else t.detach() for t in tensors]
    options = (None if ends is None else torch.tensor(ends), r, normalize)
    grad_o = torch.randn(1, 70, 2, 5, generator=torch.Generator().manual_seed(1))
    good = outputs_and_gradients(function, tensors, grad_o, *options)

    def check(found, names, tokens, what):
        for name in names:
            if name in found:
                a, b = (x.unflatten(1, (70, -1))[:, tokens] for x in (found[name], good[name]))
                assert torch.equal(a, b), f"{what}: {name}"

    for t in (begin, begin + 3, begin + 33, 69):
        for i, operand in enumerate(NAMES[:5]):
            for bad in (float("nan"),) if operand == "g" else (float("nan"), float("inf"), 1e38):
                if tensors[i] is None:
                    continue
                changed = [None if x is None else x.clone() for x in tensors]
                changed[i][0, (t + 1) * (changed[i].shape[1] // 70) - 1].flatten()[0] = bad
                found = outputs_and_gradients(function, changed, grad_o, *options)
                what = f"{operand} of token {t} is {bad}"
                check(found, DEPENDS_ON_NO_LATER[operand], slice(0, t), what)
                check(found, DEPENDS_ON_NO_EARLIER[operand], slice(t + 1, 70), what)
                check(found, ("o", "q", "k", "v", "beta", "g"), slice(0, begin), what)
        wild = grad_o.clone()
        wild[0, t, 1, 2] = float("nan")
        found = outputs_and_gradients(function, tensors, wild, *options)
        check(found, ("q", "k", "v", "beta", "g"), slice(t + 1, 70), f"gradient of token {t}")
        check(found, ("q",), slice(0, t), f"gradient of token {t}")


@pytest.mark.parametrize("function", [native, by_operations])
@GATES
@ERASES
def test_a_single_token_that_is_not_finite_leaves_other_sequences_alone(function, gate, erases):
    tensors = [None if t is None else t.detach() for t in operands(gate, tokens=1, erases=erases)]
    expected = function(*tensors, None, 1, False)
    for operand in (i for i, t in enumerate(tensors) if t is not None):
        changed = [None if t is None else t.clone() for t in tensors]
        changed[operand][0] = float("nan")
        found = function(*changed, None, 1, False)
        assert all(torch.equal(a[1], b[1]) for a, b in zip(expected, found, strict=True)), NAMES[operand]


@GATES
@ERASES
def test_torch_operations_are_as_accurate_as_native_code(gate, erases):
    exact = operands(gate, tokens=200, widths=(16, 16), erases=erases)
    exact = [None if t is None else t.detach() for t in exact]
    if gate:
        exact[4][:, ::4] = -100.0
    expected = call(*exact)[0]
    tensors = [None if t is None else t.float() for t in exact]
    for function in (native, by_operations):
        o = function(*tensors, None, 1, False)[0]
        assert (o - expected).norm() / expected.norm() < 1e-6


def test_the_expression_takes_no_sequences():
    q, beta = torch.randn(1, 0, 2, 8), torch.rand(1, 0, 2)
    o, states = expressions.delta_rule(q, q, q, beta, None, None, torch.tensor([0]), 0.3, 1, True, None)
    assert (o.shape, states.shape) == ((1, 0, 2, 8), (0, 2, 8, 8))


@pytest.mark.parametrize(("needs_grad", "most"), [(False, 200), (True, 700)])
def test_the_expression_takes_few_operations_and_solves_nothing(needs_grad, most):
    """On a device without kernels each operation is a launch, and a triangular solve takes long whatever its size."""
    q, k, v = (torch.randn(1, 2048, 2, 8, requires_grad=needs_grad) for _ in range(3))
    beta, g = torch.rand(2, 1, 2048, 2).unbind()
    with operations.Operations([]) as counted:
        o, last = expressions.delta_rule(q, k, v, beta, -g, None, None, 0.3, 1, True, None)
        if needs_grad:
            (o.sum() + last.sum()).backward()
    assert operations.solves(counted) == 0
    assert counted.count <= most


@pytest.mark.parametrize("work", operations.FUNCTIONS)
def test_accelerated_layers_take_fewer_operations_on_every_device(work):
    """From the number of tokens on from which ours takes the place of the function of transformers."""
    pytest.importorskip("transformers", minversion="5", reason="transformers is not installed")
    gate, model, name = operations.FUNCTIONS[work]
    functions = operations.of_transformers(model, name), pretrained._delta_rule
    both = [operations.delta_rule(function) for function in functions]
    operands = operations.delta_operands(pretrained.least_tokens_of(name), gate)
    theirs, ours = (operations.forward(function, operands).count for function in both)
    assert ours < theirs
    (theirs, _), (ours, _) = (operations.training(function, operands) for function in both)
    assert ours.count < theirs.count


@pytest.mark.parametrize("work", operations.STEPS)
def test_steps_of_decoding_are_left_to_transformers_on_other_devices(work):
    """Theirs take fewer operations."""
    pytest.importorskip("transformers", minversion="5", reason="transformers is not installed")
    gate, model, name = operations.STEPS[work]
    functions = operations.of_transformers(model, name), pretrained._delta_rule
    operands, state = operations.delta_operands(1, gate), torch.empty(1, 16, 128, 128, device="meta")
    both = (operations.forward(operations.delta_rule(function, state=state), operands) for function in functions)
    theirs, ours = (each.count for each in both)
    assert theirs < ours
    assert pretrained.least_tokens_of(name) == devices.NEVER
