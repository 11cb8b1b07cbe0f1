"""``torch.fx`` sees a layer as one node; ``torch.jit`` refuses unsupported uses in one line."""

import pytest
import torch
from torch import nn

import householder.torch as ht

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*", "ignore::torch.jit.TracerWarning")

LAYERS = {
    "orthogonal": (lambda: ht.Orthogonal(8), (2, 8)),
    "recurrent": (lambda: ht.OrthogonalRNN(8, 8), (4, 2, 8)),
    "unitary": (lambda: ht.UnitaryRNN(8, 8), (4, 2, 8)),
    "cell": (lambda: ht.OrthogonalRNNCell(8, 8), (2, 8)),
    "svd": (lambda: ht.SVDLinear(8), (2, 8)),
    "adapter": (lambda: ht.OrthogonalAdapter(nn.Linear(8, 8), 2), (2, 8)),
    "parametrized": (lambda: ht.orthogonal(nn.Linear(8, 8)), (2, 8)),
    "oplu": (lambda: ht.OPLU(), (2, 8)),
    "modrelu": (lambda: ht.ModReLU(4), (2, 8)),
}
layers = pytest.mark.parametrize("name", LAYERS)
native = pytest.mark.parametrize("name", [name for name in LAYERS if name not in ("oplu", "modrelu")])


@layers
def test_fx_records_a_call_of_the_layer(name):
    make, shape = LAYERS[name]
    model, x = nn.Sequential(nn.Identity(), make()), torch.randn(shape)
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["0", "1"]
    torch.testing.assert_close(traced(x), model(x))


@layers
def test_script_is_refused_in_one_line(name):
    with pytest.raises(RuntimeError, match=r"^torch\.jit\.script does not take \w+: torch\.compile and .* do$"):
        torch.jit.script(nn.Sequential(LAYERS[name][0]()))


@pytest.mark.parametrize("rule", [ht.linear_attention, lambda *t: ht.delta_rule(*t, beta=t[2][..., 0])])
def test_a_traced_call_has_the_digits_of_an_eager_one(rule):
    """Sizes are tensors there, and torch computes with them in single precision."""
    tensors = torch.randn(3, 1, 5, 2, 6, dtype=torch.float64).unbind()
    with torch.no_grad():
        traced = torch.jit.trace(lambda *t: rule(*t)[0], tensors)
        torch.testing.assert_close(traced(*tensors), rule(*tensors)[0], rtol=1e-14, atol=0)


@native
def test_trace_with_gradients_is_refused_in_one_line(name):
    make, shape = LAYERS[name]
    model, x = make(), torch.randn(shape)
    with pytest.raises(RuntimeError, match=r"^torch\.jit\.trace with gradients is not supported: use"):
        torch.jit.trace(model, x)
    with torch.no_grad():
        traced, other = torch.jit.trace(model, x), torch.randn(shape)
        torch.testing.assert_close(traced(other), model(other))
