"""Direct calls of ``torch.ops.householder``, as exported programs make them, have every gradient or raise."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from householder.torch._base import expressions
from householder.torch._ops import delta
from tests.cases.layers import LAYERS
from tests.torch.ops.test_native import calls, laid_out

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")

ops = torch.ops.householder
SEQUENCE = ("tanh", 0.1, False, False, "trapezoidal", "auto")
DELTA = (0.5, 1, False)


def random(*shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in shapes]


def rnn(u, x, h0, v, b, *, with_tape=False, nonlinearity="tanh"):
    return ops.rnn(u, x, h0, v, b, None, None, None, None, with_tape, nonlinearity, *SEQUENCE[1:])[:2]


def delta_rule(q, k, v, beta, g, state, *, keep=False):
    return ops.delta_rule(q, k / 3, v, beta, -g.square(), state, None, None, keep, *DELTA)[:2]


RNN = random((4, 2), (3, 2, 3), (2, 4), (4, 3), (4,))
OPERANDS = random((1, 5, 1, 2), (1, 5, 1, 2), (1, 5, 1, 3), (1, 5, 1), (1, 5, 1), (1, 1, 2, 3))
CASES = {
    "apply": (
        lambda u, h: ops.apply(u, h, None, False, True, "auto", "trapezoidal")[0],
        lambda u, h: expressions.apply(u, h, True),
        random((4, 2), (3, 4)),
    ),
    "apply, tau": (
        lambda u, h, tau: ops.apply(u, h, tau, True, False, "wy", "full")[0],
        lambda u, h, tau: expressions.apply(u, h, False, tau, "full"),
        random((3, 4), (2, 3), (4,)),
    ),
    "apply, complex": (
        lambda u, h: ops.apply(u, h, None, True, False, "auto", "trapezoidal")[0],
        lambda u, h: expressions.apply(u, h, False),
        random((4, 2), (3, 4), dtype=torch.complex128),
    ),
    "matrix": (lambda u: ops.matrix(u, False)[0], expressions.matrix, random((2, 4, 3))),
    "matrix with kept factors": (lambda u: ops.matrix(u, True)[0], expressions.matrix, random((2, 4, 3))),
    "rnn": (rnn, lambda *a: expressions.rnn(*a, None, None, None, None, *SEQUENCE[:-1]), RNN),
    "rnn with a tape": (
        lambda *a: rnn(*a, with_tape=True, nonlinearity="oplu"),
        lambda *a: expressions.rnn(*a, None, None, None, None, "oplu", *SEQUENCE[1:-1]),
        RNN,
    ),
    "delta_rule": (
        delta_rule,
        lambda q, k, v, beta, g, state: expressions.delta_rule(q, k / 3, v, beta, -g.square(), state, None, *DELTA),
        OPERANDS,
    ),
    "delta_rule with kept states": (
        lambda *a: delta_rule(*a, keep=True),
        lambda q, k, v, beta, g, state: expressions.delta_rule(q, k / 3, v, beta, -g.square(), state, None, *DELTA),
        OPERANDS,
    ),
    "delta_rule without beta": (
        lambda q, k, v, g, state: delta_rule(q, k, v, None, g, state, keep=True),
        lambda q, k, v, g, state: expressions.delta_rule(q, k / 3, v, None, -g.square(), state, None, *DELTA),
        [*OPERANDS[:3], *OPERANDS[4:]],
    ),
}
EACH = pytest.mark.parametrize(("call", "expression", "tensors"), CASES.values(), ids=CASES)


def total(results):
    results = results if isinstance(results, tuple) else (results,)
    return sum((r.abs().square() * torch.arange(1, r.numel() + 1).reshape(r.shape)).sum() for r in results)


@EACH
def test_direct_calls_have_the_gradients_of_the_expression(call, expression, tensors):
    found = torch.autograd.grad(total(call(*tensors)), tensors)
    torch.testing.assert_close(found, torch.autograd.grad(total(expression(*tensors)), tensors))


@pytest.mark.parametrize(("call", "tensors"), [(call, tensors) for call, _, tensors in CASES.values()], ids=CASES)
def test_direct_calls_can_be_differentiated_twice(call, tensors):
    assert gradcheck(call, tensors)
    assert gradgradcheck(call, tensors, gen_non_contig_grad_outputs=True)


@EACH
@pytest.mark.parametrize("transform", ["forward_ad", "jvp", "grad", "vmap of grad"])
def test_transforms_of_direct_calls_are_right_and_forward_mode_is_refused(call, expression, tensors, transform):
    tensors = [t.detach() for t in tensors]

    def change(function):
        of_first = lambda first: total(function(first, *tensors[1:]))  # noqa: E731
        first = tensors[0]
        if transform == "forward_ad":
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(first, torch.ones_like(first))
                return torch.autograd.forward_ad.unpack_dual(of_first(dual)).tangent
        if transform == "jvp":
            return torch.func.jvp(of_first, (first,), (torch.ones_like(first),))[1]
        if transform == "grad":
            return torch.func.grad(of_first)(first)
        return torch.func.vmap(torch.func.grad(of_first))(torch.stack([first, 2 * first]))

    try:
        found = change(call)
    except RuntimeError as error:
        assert str(error).partition(" ")[0] == "In" or "has no forward mode" in str(error)  # noqa: PT017
    else:
        torch.testing.assert_close(found, change(expression))


def test_gradient_operators_can_be_differentiated_themselves():
    u, h, g = random((4, 2), (3, 4), (3, 4))
    wanted, options = [True, True, False], (False, "auto", "trapezoidal")

    def gradients(u, h, g):
        return ops.apply_backward(u, h, None, None, g, wanted, *options)[:2]

    assert gradcheck(gradients, (u, h, g))

    def of_sequence(u, x, h0, v, b, grad_h, grad_last):
        tensors = (u, x, h0, v, b, None, None, None, None)
        h = ops.rnn(*tensors, False, *SEQUENCE)[0].detach()
        wanted = [True, False, True, True, True, False, False, False]
        found = ops.rnn_backward(*tensors, h, None, grad_h, grad_last, wanted, *SEQUENCE)
        return tuple(t for t in found if t is not None)

    assert gradcheck(of_sequence, (*RNN, *random((3, 2, 4), (2, 4))))

    def of_tokens(*given):
        *tensors, grad_o, grad_last = given
        found = ops.delta_rule_backward(*tensors, *[None] * 3, grad_o, grad_last, [True] * 6 + [False], *DELTA)
        return tuple(found[:6])

    q, k, v, beta, g, state = (t.detach() for t in OPERANDS)
    operands = [t.requires_grad_() for t in (q, k / 3, v, beta, -g.square(), state)]
    assert gradcheck(of_tokens, (*operands, *random((1, 5, 1, 3), (1, 1, 2, 3))))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch looks at a copy's
@pytest.mark.parametrize(("module", "tensors", "options", "grads", "wanted"), list(calls(torch.float64)))
def test_operators_are_registered_as_torch_asks(module, tensors, options, grads, wanted):
    operator = module.operator
    operation = module.operator.operation
    named = operation.inputs_type(*laid_out(tensors)), operation.options_type(*options)
    _, (*among_results, _, _) = operator.operation.cpu_forward(*named, module is delta)
    given = [t.requires_grad_() if t is not None and t.is_floating_point() else t for t in tensors]
    has_room = module is delta and tensors[-1] is not None  # kept states of packed sequences are not all written
    for keep in (False,) if has_room else (False, True):
        torch.library.opcheck(operator.forward_op, (*given, keep, *options))
    of_tensors = [None if t is None else t.detach() for t in given]
    for kept in (None, operator.forward_op(*of_tensors, True, *options)[-1]):
        arguments = (*of_tensors, *among_results, kept, *grads, list(map(bool, wanted)), *options)
        torch.library.opcheck(operator.backward_op, arguments)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("OPLU", "ModReLU")])
@pytest.mark.parametrize("strict", [True, False])
def test_exported_modules_train(name, strict):
    """First gradients are the layer's, and those of a gradient penalty as well."""
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer, x = make().double(), torch.randn(shape, dtype=torch.complex128 if "Unitary" in name else torch.float64)
    exported = torch.export.export(layer, (x,), strict=strict).module()

    def gradients(module):
        parameters = [p for _, p in sorted(module.named_parameters()) if p.requires_grad]
        given = x.clone().requires_grad_()
        y = module(given)
        loss = total(y if not isinstance(y, tuple) else y[0])
        first = torch.autograd.grad(loss, [given, *parameters], create_graph=True)
        penalty = first[0].abs().square().sum()
        return first, torch.autograd.grad(penalty, parameters, materialize_grads=True)

    torch.testing.assert_close(gradients(exported), gradients(layer))
