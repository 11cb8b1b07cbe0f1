"""What compiled training keeps between the passes: the same gradients as without, and no longer than it is used."""

import sys

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

import householder.torch as ht
from householder._base import torch_library

pytestmark = pytest.mark.skipif(not torch_library.can_save(), reason="this torch or this system cannot keep factors")
ops = torch.ops.householder
APPLY = False, "wy", "trapezoidal"
RNN = "oplu", 0.0, False, False, "trapezoidal", "wy"


def passes(name, seed=0, n=12, m=7):
    """The forward pass of an operation, which returns results and what is kept, and its backward pass."""
    random = torch.Generator().manual_seed(seed)
    u, h, x = (torch.randn(shape, generator=random) for shape in ((n, m), (9, n), (5, 3, n)))
    if name == "apply":
        return lambda: ops.apply(u, h, None, True, *APPLY), lambda _, kept: ops.apply_backward(
            u, h, None, kept, h, [True, True, False], *APPLY
        )
    if name == "matrix":
        return lambda: ops.matrix(u, True), lambda w, kept: (ops.matrix_backward(u, kept, w, [True]),)
    tensors, wanted = (u, x, *[None] * 7), [True, True, *[False] * 6]
    return (
        lambda: ops.rnn(*tensors, True, *RNN)[::2],
        lambda h, kept: ops.rnn_backward(*tensors, h, kept, h, None, wanted, *RNN),
    )


def same(found, expected):
    return all(a is b is None or torch.equal(a, b) for a, b in zip(found, expected, strict=True))


NAMES = pytest.mark.parametrize("name", ["apply", "matrix", "rnn"])


@NAMES
def test_gradients_have_the_same_bits_with_and_without_what_is_kept(name):
    forward, backward = passes(name)
    result, kept = forward()
    assert kept.dtype is torch.int64
    assert kept.shape == (1,)
    expected = backward(result, None)
    assert same(backward(result, kept), expected)
    assert same(backward(result, kept.view(1)), expected)


@NAMES
def test_a_tensor_that_stands_for_nothing_is_no_other_problems(name):
    forward, backward = passes(name)
    result, kept = forward()
    expected, copy = backward(result, None), kept.clone()
    del kept  # and with it what is kept
    other = [passes(kind, seed=1, m=m)[0]() for kind in ("apply", "matrix", "rnn") for m in (5, 6)]
    foreign = [kept for _, kept in other]
    for tensor in (copy, torch.empty(0, dtype=torch.int64), torch.zeros(3), *foreign):
        assert same(backward(result, tensor), expected)


@NAMES
def test_what_is_kept_is_used(name):
    """The gradients change with what is kept of another problem of the same shapes, which no caller may pass."""
    forward, backward = passes(name, n=80, m=70)
    result, _ = forward()
    _, foreign = passes(name, seed=1, n=80, m=70)[0]()
    assert not same(backward(result, foreign), backward(result, None))


def test_calls_that_keep_can_be_mapped():
    u, h = torch.randn(4, 12, 7), torch.randn(4, 9, 12)
    mapped = torch.vmap(lambda u, h: (ops.apply(u, h, None, True, *APPLY)[0], ops.matrix(u, True)[0]))(u, h)
    torch.testing.assert_close(mapped, (ht.apply(u[:, None], h), ht.matrix(u)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@NAMES
def test_what_is_kept_ends_with_its_tensor(name, run_script):
    out = run_script(
        f"""
        import resource, torch, householder.torch
        ops = torch.ops.householder
        u, h = torch.randn(400, 390), torch.randn(2, 1, 400)
        keep = {{
            "apply": lambda: ops.apply(u, h, None, True, *{APPLY}),
            "matrix": lambda: ops.matrix(u, True),
            "rnn": lambda: ops.rnn(u, h, *[None] * 7, True, *{RNN}),
        }}["{name}"]

        def megabytes():
            with open("/proc/self/statm") as pages:
                return int(pages.read().split()[1]) * resource.getpagesize() / 1e6

        for _ in range(20):
            keep()
        before = megabytes()
        for _ in range(200):
            keep()
        freed = megabytes() - before
        kept = [keep() for _ in range(200)]
        print(freed < 40 < 80 < megabytes() - before)
        """
    )
    assert out.strip() == "True"


def keeps(node):
    """Whether a node of a graph calls an operator with ``keep``."""
    names = [argument.name for argument in node.target._schema.arguments]
    return "save" in names and node.args[names.index("save")]


def kept_nodes(model, x):
    """Compile a training step and return the operators that keep something, and the gradients."""
    found = []

    def look(graph, _):
        nodes = [node for node in graph.graph.nodes if str(node.target).startswith("householder.")]
        found.extend(str(node.target) for node in nodes if keeps(node))
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    y = torch.compile(
        model, backend=aot_autograd(fw_compiler=look, bw_compiler=lambda g, _: make_boxed_func(g.forward))
    )(x)
    y = y[0] if isinstance(y, tuple) else y
    if y.requires_grad:
        y.square().sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    return found, gradients


class Formed(torch.nn.Module):
    """A layer that multiplies by ``W`` itself."""

    def __init__(self):
        super().__init__()
        self.u = torch.nn.Parameter(torch.randn(12, 7))

    def forward(self, x):
        return x @ ht.matrix(self.u)


MODELS = {
    "apply": (lambda: ht.Orthogonal(12, num_reflections=7), (9, 12)),
    "matrix": (Formed, (9, 12)),
    "rnn": (lambda: ht.OrthogonalRNN(4, 12, num_reflections=7, nonlinearity="oplu"), (5, 3, 4)),
}


def is_taken_for_export():
    """Whether this torch says of every compilation that it exports, as 2.11 does: nothing is kept then."""
    return torch.compile(lambda: torch.compiler.is_exporting(), backend="eager")()


@NAMES
def test_compiled_training_keeps_and_has_the_gradients_of_eager_training(name):
    make, shape = MODELS[name]
    model, x = make().double(), torch.randn(shape, dtype=torch.float64)
    y = model(x)
    (y[0] if isinstance(y, tuple) else y).square().sum().backward()
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    found, gradients = kept_nodes(model, x)
    assert is_taken_for_export() or f"householder.{name}.default" in found
    torch.testing.assert_close(gradients, expected)
    with torch.no_grad():
        assert kept_nodes(model, x)[0] == []


def test_what_the_adjoint_alone_needs_is_not_kept():
    layer, x = ht.Orthogonal(12, num_reflections=7).requires_grad_(False), torch.randn(9, 12, requires_grad=True)
    assert kept_nodes(layer, x)[0] == []
    assert x.grad is not None


def test_exported_graphs_have_the_operator_alone():
    program = torch.export.export(ht.Orthogonal(12, num_reflections=7), (torch.randn(9, 12),))
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert [name for name in called if "slice" in name or "unbind" in name] == []


@NAMES
def test_exported_programs_keep_nothing(name):
    make, shape = MODELS[name]
    program = torch.export.export(make(), (torch.randn(shape),))
    nodes = [node for node in program.graph.nodes if str(node.target).startswith("householder.")]
    assert nodes
    assert not any(keeps(node) for node in nodes)


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_forked_child_computes_again_what_its_parent_keeps(run_script):
    out = run_script(
        """
        import os, threading, torch, householder.torch
        ops, options = torch.ops.householder, (False, "wy", "trapezoidal")
        torch.set_num_threads(1)
        u, h = torch.randn(12, 7), torch.randn(9, 12)
        c, kept = ops.apply(u, h, None, True, *options)
        gradients = lambda: ops.apply_backward(u, h, None, kept, c, [True, True, False], *options)[:2]
        expected, running = gradients(), True

        def churn():
            while running:
                ops.apply(u, h, None, True, *options)

        threads = [threading.Thread(target=churn) for _ in range(3)]
        [thread.start() for thread in threads]
        right = 0
        for _ in range(200):
            child = os.fork()
            if child == 0:
                same = all(torch.equal(a, b) for a, b in zip(gradients(), expected))
                kept = ops.apply(u, h, None, True, *options)[1]
                same = same and all(torch.equal(a, b) for a, b in zip(gradients(), expected))
                os._exit(0 if same else 1)
            right += os.waitpid(child, 0)[1] == 0
        running = False
        [thread.join() for thread in threads]
        print(right)
        """
    )
    assert out.strip() == "200"
