"""Every keyword of every constructor changes what it says, and nothing else.

For each class, one function lists the parameters that its options call for, and another computes its outputs from
them by explicit matrices and loops in double precision. Both read the options and never the module's attributes.
"""

import copy
import inspect
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

import householder.torch as ht
from householder import _core
from householder._base.spec import NONLINEARITIES, SEQUENCE_METHODS
from tests.oracles.torch import constrained, explicit_matrix, frame, phi
from tests.tester import oracle

F64, C128 = torch.float64, torch.complex128


def kinds(o):
    """The dtypes of complex or real parameters, and of those that are always real."""
    real = (torch.float32 if o.dtype is None else o.dtype).to_real()
    return (real.to_complex() if o.is_complex else real), real


def only(**parameters):
    return {name: found for name, found in parameters.items() if found is not None}


def weight(u, sizes, constraint="hard", phases=None):
    """The weight ``(out, in)`` of a layer."""
    return frame(constrained(u, constraint), phases, *reversed(sizes))


def reflections(o, k, most):
    return min(most, max(32, k // 8)) if o.num_reflections is None else o.num_reflections


def outs(o):
    return o.in_features if o.out_features is None else o.out_features


def linear_parameters(o):
    kind, real = kinds(o)
    n, k = max(o.in_features, outs(o)), min(o.in_features, outs(o))
    return only(
        reflections=((n, reflections(o, k, min(k, n - o.is_complex))), kind),
        phases=((n,), real) if o.is_complex else None,
        bias=((outs(o),), kind) if o.bias else None,
    )


def linear(o, p, x):
    w = weight(p["reflections"], (o.in_features, outs(o)), getattr(o, "constraint", "hard"), p.get("phases"))
    return x @ w.mT + p.get("bias", 0)


def svd_parameters(o):
    kind, _ = kinds(o)
    k = min(o.in_features, outs(o))
    m = reflections(o, k, k)
    sides = {"left.reflections": ((outs(o), m), kind), "right.reflections": ((o.in_features, m), kind)}
    return only(spectrum=((k,), kind), bias=((outs(o),), kind) if o.bias else None) | sides


def svd(o, p, x):
    k = min(o.in_features, outs(o))
    s = 1 + o.margin * torch.tanh(p["spectrum"] / 2)
    right, left = weight(p["right.reflections"], (o.in_features, k)), weight(p["left.reflections"], (k, outs(o)))
    return x @ (left @ torch.diag(s) @ right).mT + p.get("bias", 0)


def cell_parameters(o, m=None, width=None):
    kind, real = kinds(o)
    n = o.hidden_size
    phi = NONLINEARITIES[o.nonlinearity]
    return only(
        reflections=((n, reflections(o, n, n - o.is_complex) if m is None else m), kind),
        phases=((n,), real) if o.is_complex else None,
        weight_ih=((n, o.input_size if width is None else width), kind),
        bias=((n,), kind) if o.bias else None,
        h0=((n,), kind) if o.learn_h0 else None,
        nonlinearity_bias=((phi.moduli(n, o.is_complex),), real) if phi.has_bias else None,
    )


def cell(o, p, x, h=None):
    return oracle.cell(p, vars(o), x[None], h)[1]


def rnn_parameters(o):
    directions, found = 1 + o.bidirectional, {}
    for k in range(directions * o.num_layers):
        layer = k // directions
        m = o.num_reflections[layer] if isinstance(o.num_reflections, list) else None
        width = directions * o.hidden_size if layer else None
        found |= {f"cells.{k}.{name}": spec for name, spec in cell_parameters(o, m, width).items()}
    return found


def rnn(o, p, x):
    states, _ = oracle.recurrent_layer(p, vars(o), x.transpose(0, 1) if o.batch_first else x)
    return states.transpose(0, 1) if o.batch_first else states


def delta_sizes(o):
    width = o.hidden_size // o.num_heads
    return width, int(o.expand_v * width), o.num_heads, o.num_householder


def delta_parameters(o):
    (keys, values, heads, r), (kind, _) = delta_sizes(o), kinds(o)
    width = heads * (keys + r * (keys + values))
    gates = {None: 0, "head": heads, "channel": heads * keys}[o.gate]
    shapes = {
        "projection.weight": (width, o.hidden_size),
        "convolution.weight": (width, 1, o.conv_size),
        "beta.weight": (r * heads, o.hidden_size),
        "beta.bias": (r * heads,),
        "norm.weight": (values,),
        "out.weight": (o.hidden_size, heads * values),
    } | ({"decay.weight": (gates, o.hidden_size), "decay.bias": (gates,)} if gates else {})
    return {name: (shape, kind) for name, shape in shapes.items()}


def delta(o, p, x):
    return oracle.delta_net(p, vars(o), x)


def modrelu_parameters(o):
    return {"bias": ((o.num_moduli,), kinds(o)[1])}


def modrelu(_, p, x):
    return phi(x, "modrelu", bias=p["bias"])


def adapter_parameters(o):
    own = {f"linear.{name}": (tuple(p.shape), p.dtype) for name, p in o.linear.named_parameters()}
    return own | {"reflections": ((o.linear.in_features, o.num_reflections), o.linear.weight.dtype)}


def adapter(_, p, x):
    return x @ weight(p["reflections"], (x.shape[-1], x.shape[-1])).mT @ p["linear.weight"].mT + p["linear.bias"]


FRAMES = {"in_features": 6, "out_features": 5, "num_reflections": 3}
RNN = {"input_size": 3, "hidden_size": 6, "num_reflections": 4}
CELL = {name: RNN[name] for name in RNN}
ATTENTION = {"hidden_size": 8, "num_heads": 2}
LINEAR = nn.Linear(6, 4, dtype=F64)

ORACLES = {
    ht.Orthogonal: (FRAMES, linear_parameters, linear, lambda o: (3, o.in_features)),
    ht.Unitary: (FRAMES, linear_parameters, linear, lambda o: (3, o.in_features)),
    ht.SVDLinear: (FRAMES, svd_parameters, svd, lambda o: (3, o.in_features)),
    ht.OrthogonalRNNCell: (CELL, cell_parameters, cell, lambda o: (4, o.input_size)),
    ht.UnitaryRNNCell: (CELL, cell_parameters, cell, lambda o: (4, o.input_size)),
    ht.OrthogonalRNN: (RNN, rnn_parameters, rnn, lambda o: (4, 5, o.input_size)),
    ht.UnitaryRNN: (RNN, rnn_parameters, rnn, lambda o: (4, 5, o.input_size)),
    ht.DeltaNet: (ATTENTION, delta_parameters, delta, lambda o: (2, 7, o.hidden_size)),
    ht.ModReLU: ({"num_moduli": 4}, modrelu_parameters, modrelu, lambda o: (3, 2 * o.num_moduli)),
    ht.OrthogonalAdapter: (
        {"linear": LINEAR, "num_reflections": 4}, adapter_parameters, adapter, lambda o: (3, o.linear.in_features),
    ),
}  # fmt: skip


class Case:
    """A module with random parameters, and what its options call for."""

    def __init__(self, kind, options):
        is_complex = kind in (ht.Unitary, ht.UnitaryRNN, ht.UnitaryRNNCell)
        base, self.listed, self.oracle, shape = ORACLES[kind]
        given = base | ({"dtype": C128 if is_complex else F64} if "dtype" in names(kind) else {}) | options
        self.module = kind(**given)
        defaults = {name: p.default for name, p in inspect.signature(kind).parameters.items()}
        self.options = SimpleNamespace(**(defaults | given), is_complex=is_complex)
        generator = torch.Generator().manual_seed(0)
        for p in self.module.parameters():
            if not p.is_meta:
                p.data = torch.randn(p.shape, dtype=p.dtype, generator=generator)
            if not p.is_meta and not p.is_complex() and p.dim() == 2 and p.shape[0] == p.shape[1]:
                p.data[-1, -1] = -0.4  # perhaps u_1
        dtype = next(self.module.parameters()).dtype
        self.inputs = [torch.randn(shape(self.options), generator=generator, dtype=dtype)]
        if self.oracle is cell and not self.options.learn_h0:
            self.inputs += [torch.randn(4, self.options.hidden_size, generator=generator, dtype=dtype)]

    @property
    def found(self):
        return {name: (tuple(p.shape), p.dtype) for name, p in self.module.named_parameters()}

    def expected(self, like=None):
        module = self.module if like is None else like.module
        tensors = {name: doubled(p.detach()) for name, p in module.named_parameters()}
        return self.oracle(self.options, tensors, *map(doubled, self.inputs))

    def check(self):
        assert self.found == self.listed(self.options)
        result = self.module(*self.inputs)
        result = result[0] if isinstance(result, tuple) else result
        expected = self.expected()
        atol = 100 * torch.finfo(result.dtype).eps * expected.abs().max().item()
        torch.testing.assert_close(result, expected.to(result.dtype), rtol=0, atol=atol)


def doubled(tensor):
    return tensor.to(torch.promote_types(tensor.dtype, F64))


def names(constructor):
    parameters = inspect.signature(constructor).parameters.values()
    return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def changed(*values, **context):
    """Values of a keyword to compare with its default, or with the base's, other options being these."""
    return [(value, context) for value in values]


SIZES = changed(4, 9) + changed(1, num_reflections=1)
FULL = {"out_features": 6, "num_reflections": 6}
OF_CELLS = {
    "input_size": changed(1, 5),
    "hidden_size": changed(5, 8),
    "bias": changed(False),
    "nonlinearity": changed("identity", "tanh", "relu", "leaky_relu"),
    "num_reflections": changed(None, 1),
    "negative_slope": changed(0.0, 0.7, nonlinearity="leaky_relu"),
    "learn_h0": changed(True),
}
OF_REAL_CELLS = {
    "nonlinearity": changed(*(name for name in NONLINEARITIES if name != "leaky_relu")),
    "constraint": changed("soft", num_reflections=6),
}
OF_LAYERS = {
    "num_layers": changed(3),
    "batch_first": changed(True),
    "bidirectional": changed(True) + changed(True, num_layers=2),
    "num_reflections": changed(None, 1) + changed([2, 5], num_layers=2),
}
REAL = {"dtype": changed(torch.float32)}
COMPLEX = {"dtype": changed(torch.complex64, torch.float32)}
OF_FRAMES = {"in_features": SIZES, "out_features": changed(None, 4, 9), "num_reflections": changed(None, 1)}

TABLE = {
    ht.Orthogonal: OF_FRAMES | REAL | {"bias": changed(False), "constraint": changed("soft", **FULL)},
    ht.Unitary: OF_FRAMES | COMPLEX | {"bias": changed(False)},
    ht.SVDLinear: OF_FRAMES | REAL | {"bias": changed(False), "margin": changed(0.0, 0.5, 0.9)},
    ht.OrthogonalRNNCell: OF_CELLS | REAL | OF_REAL_CELLS,
    ht.UnitaryRNNCell: OF_CELLS | COMPLEX,
    ht.OrthogonalRNN: OF_CELLS | OF_LAYERS | REAL | OF_REAL_CELLS,
    ht.UnitaryRNN: OF_CELLS | OF_LAYERS | COMPLEX,
    ht.DeltaNet: REAL | {
        "hidden_size": changed(4, 12),
        "num_heads": changed(1, 4),
        "expand_v": changed(2, 1.5, 0.5),
        "gate": changed(None, "channel"),
        "num_householder": changed(2, 3),
        "conv_size": changed(1, 2, 5),
        "max_beta": changed(1.0, 0.3),
    },
    ht.ModReLU: REAL | {"num_moduli": changed(1, 6)},
    ht.OPLU: {},
    ht.OrthogonalAdapter: {"linear": changed(nn.Linear(9, 2, dtype=F64)), "num_reflections": changed(2)},
}  # fmt: skip

ROWS = [
    (kind, keyword, value, context)
    for kind, keywords in TABLE.items()
    for keyword, values in keywords.items()
    for value, context in values
]


def shown(value):
    return value.__name__ if isinstance(value, type) else str(value)


@pytest.mark.parametrize(("kind", "keyword", "value", "context"), ROWS, ids=shown)
def test_a_keyword_changes_what_it_says(kind, keyword, value, context):
    context = {name: v for name, v in context.items() if name in names(kind)}
    before = Case(kind, copy.deepcopy(context))
    after = Case(kind, copy.deepcopy(context) | {keyword: value})
    before.check()
    after.check()
    if before.found == after.found:  # it does not change the parameters, so it changes what is computed of them
        results = before.expected(), after.expected(like=before)
        assert results[0].shape != results[1].shape or not torch.allclose(*results, rtol=1e-3)


@pytest.fixture
def asked(monkeypatch):
    """The strings among the arguments of each call of the core."""
    calls = []

    def watched(native):
        return lambda *arguments: calls.append(strings(arguments)) or native(*arguments)

    for name in ("forward", "rnn_forward"):
        monkeypatch.setattr(_core, name, watched(getattr(_core, name)))
    return calls


def strings(arguments):
    found = set()
    for a in arguments:
        found |= strings(a) if isinstance(a, tuple) else {a} if isinstance(a, str) else set()
    return found


@pytest.mark.parametrize("method", SEQUENCE_METHODS)
@pytest.mark.parametrize("kind", [kind for kind in TABLE if "method" in names(kind)], ids=shown)
def test_the_core_is_asked_for_the_method_of_the_layer(kind, method, asked):
    context = {"num_reflections": 4} | ({"num_layers": 2} if "num_layers" in names(kind) else {})
    Case(kind, context | {"method": method}).check()
    assert asked
    assert all(found & set(SEQUENCE_METHODS) == {method} for found in asked)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("kind", [kind for kind in TABLE if "dropout" in names(kind)], ids=shown)
def test_dropout_zeroes_a_share_of_what_a_layer_passes_on_and_divides_the_rest(kind, share):
    torch.manual_seed(0)
    module, passed = kind(3, 100, 2, dropout=share), []
    module.cells[0].register_forward_hook(lambda _module, _inputs, result: passed.append(result[0]))
    module.cells[1].register_forward_pre_hook(lambda _module, inputs: passed.append(inputs[0]))
    x = torch.randn(20, 50, 3)
    module(x)
    module.eval()(x)
    before, after, *without = passed
    kept = after != 0
    spread = (share * (1 - share) / kept.numel()) ** 0.5
    assert 1 - kept.double().mean().item() == pytest.approx(share, abs=5 * spread)
    torch.testing.assert_close(after[kept], before[kept] / (1 - share))
    assert torch.equal(*without)


@pytest.mark.parametrize("kind", [kind for kind in TABLE if "device" in names(kind)], ids=shown)
def test_parameters_are_made_on_the_device(kind):
    assert all(p.is_meta for p in kind(**ORACLES[kind][0], device="meta").parameters())


WITH_TESTS_OF_THEIR_OWN = {"device", "method", "dropout", "proj_size"}
CONSTRUCTORS = [
    value for name in ht.__all__ if isinstance(value := getattr(ht, name), type) and issubclass(value, nn.Module)
]


@pytest.mark.parametrize("kind", CONSTRUCTORS, ids=shown)
def test_no_keyword_is_forgotten(kind):
    assert set(names(kind)) == set(TABLE[kind]) | (WITH_TESTS_OF_THEIR_OWN & set(names(kind)))


def recurrent_cell():
    torch.manual_seed(0)
    return nn.RNNCell(6, 6, dtype=F64)


def convolution():
    torch.manual_seed(0)
    return nn.Conv2d(3, 6, 3, dtype=F64)


def the_module():
    module = recurrent_cell()
    assert ht.orthogonal(module, "weight_hh") is module
    assert not is_parametrized(recurrent_cell())


def the_name():
    for name in ("weight_hh", "weight_ih"):
        assert set(ht.orthogonal(recurrent_cell(), name).parametrizations) == {name}


def the_number():
    for m, expected in ((None, 6), (2, 2)):
        module = ht.orthogonal(recurrent_cell(), "weight_hh", m)
        u = module.parametrizations.weight_hh.original
        assert u.shape == (6, expected)
        torch.testing.assert_close(module.weight_hh, explicit_matrix(constrained(u, "hard")))


def the_constraint():
    for constraint in ("hard", "soft"):
        module = ht.orthogonal(recurrent_cell(), "weight_hh", constraint=constraint)
        u = module.parametrizations.weight_hh.original
        u.data[-1, -1] = 0.4
        w = explicit_matrix(constrained(u.detach(), constraint))
        torch.testing.assert_close(module.weight_hh, w)
        assert torch.linalg.det(w).abs().item() == pytest.approx(1 if constraint == "hard" else 0.4)


def the_stack():
    for stack, shape in ((False, (27, 6)), (True, (6, 3, 3, 3))):
        module = ht.orthogonal(convolution(), stack=stack)
        assert module.parametrizations.weight.original.shape == shape
        rows = module.weight if stack else module.weight.flatten(1)
        torch.testing.assert_close(rows @ rows.mT, torch.eye(rows.shape[-2], dtype=F64).expand_as(rows @ rows.mT))


def nothing(**options):
    plain = ht.orthogonal(recurrent_cell(), "weight_hh").weight_hh
    torch.testing.assert_close(ht.orthogonal(recurrent_cell(), "weight_hh", **options).weight_hh, plain, rtol=0, atol=0)


OF_ORTHOGONAL = {
    "module": the_module,
    "name": the_name,
    "num_reflections": the_number,
    "constraint": the_constraint,
    "stack": the_stack,
    "orthogonal_map": lambda: nothing(orthogonal_map="householder"),
    "use_trivialization": lambda: nothing(use_trivialization=False),
}


@pytest.mark.parametrize("keyword", names(ht.orthogonal))
def test_a_keyword_of_orthogonal(keyword):
    OF_ORTHOGONAL[keyword]()
