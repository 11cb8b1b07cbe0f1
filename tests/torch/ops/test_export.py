"""Exported programs in ATen's terms run where this package is not installed; ONNX's runtime runs them as well."""

import shutil
import subprocess
import sys
import textwrap
from functools import cache

import pytest
import torch
from torch import nn

import householder.torch as ht
from tests.conftest import of_arrays

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Model(nn.Module):
    """Every layer of real numbers, one after the other."""

    def __init__(self):
        super().__init__()
        self.recurrent = ht.OrthogonalRNN(6, 8, 2, bidirectional=True, num_reflections=3, learn_h0=True)
        self.other = nn.ModuleList(
            [
                ht.Orthogonal(16, 9),
                ht.SVDLinear(9),
                ht.OrthogonalAdapter(nn.Linear(9, 4), 2),
                ht.orthogonal(nn.Linear(4, 4)),
            ]
        )
        self.last = ht.OrthogonalRNN(4, 4, nonlinearity="modrelu", num_reflections=4)

    def forward(self, x):
        x = self.recurrent(x)[0]
        for layer in self.other:
            x = layer(x)
        return self.last(x)[0]


MODELS = [
    (Model(), torch.randn(3, 2, 6)),
    (ht.Unitary(6, dtype=torch.complex128), torch.randn(2, 6, dtype=torch.complex128)),
    (ht.UnitaryRNN(3, 8, dtype=torch.complex128), torch.randn(4, 2, 3, dtype=torch.complex128)),
    (ht.OrthogonalRNN(3, 8, nonlinearity="oplu", bias=False), torch.randn(4, 2, 3)),
]


DELTA = [
    (ht.DeltaNet(12, 2, gate=None), torch.randn(2, 70, 12)),
    (ht.DeltaNet(12, 2, expand_v=1.5), torch.randn(2, 70, 12)),
    (ht.DeltaNet(12, 2, gate="channel"), torch.randn(2, 20, 12)),
    (ht.DeltaNet(12, 2, num_householder=2), torch.randn(2, 40, 12)),
]
"""Sequences of two chunks."""
ALONE = [MODELS[0], DELTA[1]]
"""One of each kind, for a process without this package and for other runtimes."""


@cache
def exported(model, x):
    return torch.export.export(model.eval(), (x,))


@cache
def decomposed(model, x):
    return exported(model, x).run_decompositions(ht.decompositions())


def operators(program):
    return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize(("model", "x"), MODELS + DELTA, ids=lambda value: type(value).__name__)
def test_a_decomposed_program_has_operators_of_aten_alone_and_computes_the_same(model, x):
    assert any("householder" in name for name in operators(exported(model, x)))
    plain = decomposed(model, x)
    assert not any("householder" in name for name in operators(plain))
    torch.testing.assert_close(plain.module()(x), model(x))


@pytest.mark.parametrize(("n", "m"), [(1, 1), (8, 8), (7, 3), (100, 65), (64, 64)])
@pytest.mark.parametrize("transpose", [False, True])
def test_the_decompositions_are_the_functions(n, m, transpose):
    table = ht.decompositions()
    u, h = torch.randn(2, n, m, dtype=torch.float64), torch.randn(2, 3, n, dtype=torch.float64)
    u[0, :, 0] = 0  # the identity
    found, _ = table[torch.ops.householder.apply.default](u, h, None, False, transpose, "auto", "trapezoidal")
    torch.testing.assert_close(found, of_arrays(ht.apply)(u[:, None], h, transpose=transpose))
    torch.testing.assert_close(table[torch.ops.householder.matrix.default](u, False)[0], ht.matrix(u))


def test_compilation_keeps_the_native_operators():
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    seen = []

    def look(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    with torch.no_grad():
        torch.compile(ht.OrthogonalRNN(3, 8), backend=aot_autograd(fw_compiler=look))(torch.randn(4, 2, 3))
    assert "householder.rnn.default" in seen


@pytest.mark.parametrize("gate", [None, "head", "channel"])
@pytest.mark.parametrize("erases", [True, False])
def test_chunks_of_a_delta_rule_and_of_linear_attention_are_the_function(gate, erases):
    q, k = torch.nn.functional.normalize(torch.randn(2, 1, 70, 2, 8, dtype=torch.float64), dim=-1)
    v, beta = torch.randn(1, 70, 4, 5, dtype=torch.float64), 2 * torch.rand(1, 70, 4, dtype=torch.float64)
    shape = {None: None, "head": (1, 70, 4), "channel": (1, 70, 4, 8)}[gate]
    g = None if shape is None else -torch.rand(shape, dtype=torch.float64)
    state = torch.randn(1, 4, 8, 5, dtype=torch.float64)
    decomposed = ht.decompositions()[torch.ops.householder.delta_rule.default]
    options = {"g": g, "scale": 0.3, "initial_state": state, "output_final_state": True}
    expected = ht.delta_rule(q, k, v, beta=beta, **options) if erases else ht.linear_attention(q, k, v, **options)
    found = decomposed(q, k, v, beta if erases else None, g, state, None, None, False, 0.3, 1, False)[:2]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("gate", [None, "head", "channel"])
def test_exported_layers_of_the_delta_rule_take_any_number_of_tokens(gate, strict):
    layer, x = ht.DeltaNet(12, 2, gate=gate).eval(), torch.randn(2, 20, 12)
    tokens = torch.export.Dim("tokens", max=4096)

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            y, state = self.layer.step(x)
            return y, *state

    for model in (layer, Step()):
        program = torch.export.export(model, (x,), dynamic_shapes=({1: tokens},), strict=strict).module()
        for count in (1, 2, 5, 70):
            y = torch.randn(2, count, 12)
            torch.testing.assert_close(program(y), model(y))


def run_without_this_package(folder, load, save):
    """Save each program, and load it by the expression of a ``path`` where ``householder`` cannot be imported."""
    for i, (model, x) in enumerate(ALONE):
        save(model, x, str(folder / f"{i}.pt2"))
        torch.save((x, model(x).detach()), folder / f"{i}.pt")
    script = f"""
        import sys
        sys.modules["householder"] = None  # cannot be imported
        import torch, torch._inductor.codecache  # which torch 2.10 needs, and forgets, to load a package
        for i in range({len(ALONE)}):
            path = f"{{i}}.pt2"
            x, expected = torch.load(f"{{i}}.pt")
            torch.testing.assert_close({load}(x), expected)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, cwd=folder)


def test_decomposed_programs_run_where_this_package_is_not(tmp_path):
    def save(model, x, path):
        torch.export.save(decomposed(model, x), path)

    run_without_this_package(tmp_path, "torch.export.load(path).module()", save)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler")
def test_compiled_packages_run_where_this_package_is_not(tmp_path):
    @torch.no_grad()
    def save(model, x, path):
        program = torch.export.export(model.eval(), (x,)).run_decompositions(ht.decompositions())
        torch._inductor.aoti_compile_and_package(program, package_path=path)

    run_without_this_package(tmp_path, "torch._inductor.aoti_load_package(path)", save)


@pytest.mark.parametrize(("model", "x"), ALONE, ids=lambda value: type(value).__name__)
def test_onnx_runs_a_model(model, x, tmp_path):
    pytest.importorskip("onnxscript", reason="onnxscript writes what ONNX's runtime reads")
    runtime = pytest.importorskip("onnxruntime")
    path = str(tmp_path / "model.onnx")
    torch.onnx.export(decomposed(model, x), dynamo=True, verbose=False).save(path)
    (found,) = runtime.InferenceSession(path).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(x).detach(), rtol=1e-4, atol=1e-5)
