"""The tests of the CPU on a GPU: CuPy's backend in place of NumPy's, tensors on the device; left out without one."""

import pytest
import torch

import householder.torch as ht
from householder.cli.gpu_check.correctness import CHECKS
from tests.cases.torch import CASES, results
from tests.conftest import Backend, repeated
from tests.numpy import test_backward, test_batch, test_factor, test_forward, test_jvp, test_matrix, test_sequence

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:householder has no native kernel")]


@pytest.fixture(scope="module")
def backend():
    import cupy

    return Backend("cupy", cupy.asarray, cupy.asnumpy)


MODULES = (test_backward, test_batch, test_factor, test_forward, test_jvp, test_matrix, test_sequence)
globals().update(repeated("gpu", *MODULES))


@pytest.fixture
def case(request):
    """A function, and its inputs on the device."""
    function, inputs = CASES[request.param]
    return function, [t.detach().cuda().requires_grad_() for t in inputs]


each_case = pytest.mark.parametrize("case", CASES, indirect=True)


@each_case
def test_torch_results_and_gradients_are_those_of_the_cpu(case, request):
    found = results(*case)
    expected = results(*CASES[request.node.callspec.params["case"]])
    assert all(t.is_cuda for t in found)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-12, atol=1e-12)


@each_case
def test_torch_gradients_are_finite_differences(case):
    function, inputs = case
    assert torch.autograd.gradcheck(function, inputs)


@each_case
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex operators")
def test_torch_compiles_whole(case):
    torch.compiler.reset()
    function, inputs = case
    graph_breaks = function is CASES["rnn packed"][0]  # batch sizes are read
    value = torch.compile(function, fullgraph=not graph_breaks)(*inputs)
    value.abs().sum().backward()
    torch.testing.assert_close(value, function(*inputs))


@pytest.mark.parametrize("nonlinearity", ["tanh", "oplu"])
@pytest.mark.parametrize("m", [3, 8])
def test_operators_keep_torch_s_promises(nonlinearity, m):
    u, x = torch.randn(8, m, device="cuda"), torch.randn(5, 2, 8, device="cuda")
    inputs, options = (u, x, *[None] * 7), (nonlinearity, 0.1, False, False, "trapezoidal", "auto")
    torch.library.opcheck(torch.ops.householder.rnn, (*inputs, True, *options))
    torch.library.opcheck(torch.ops.householder.apply, (u, x.flatten(0, 1), None, False, False, "auto", "trapezoidal"))
    torch.library.opcheck(torch.ops.householder.matrix, (u, False))


@pytest.mark.parametrize("name", CHECKS)
def test_check(name):
    """What anybody's five-minute check asks, kernel by kernel; graph capture, streams and devices among it."""
    if detail := CHECKS[name]("cuda"):
        print(detail)


def test_mixed_devices_are_refused():
    with pytest.raises(TypeError, match="x is on cpu but u is on cuda:0"):
        ht.rnn(torch.randn(8, 3, device="cuda"), torch.randn(5, 2, 8))
