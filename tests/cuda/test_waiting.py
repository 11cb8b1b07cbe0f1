"""No call waits for the device or copies between it and the host: every path runs with such operations refused."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import householder as hh
import householder.torch as ht
from householder._cuda.arrays import Arrays
from householder._functions import apply
from householder.torch._ops import devices, dispatcher, operator
from tests.cases.torch import CASES
from tests.conftest import Backend, of_arrays, problem
from tests.cuda import cuda_standin
from tests.cuda.test_launch_torch import on_cuda as on_cuda
from tests.numpy.test_sequence import Case

pytestmark = [
    pytest.mark.skipif(not cuda_standin.HAS_COMPILER, reason="the emulator needs a C++ compiler"),
    pytest.mark.filterwarnings("ignore:householder has no native kernel"),
]

WAITING = {
    "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2", "unique_dim",
    "unique_consecutive", "repeat_interleave", "bincount", "_linalg_check_errors", "allclose",
}  # fmt: skip
"""Operators whose result, or the shape of it, the host has to know."""

METHODS = ("cpu", "cuda", "tolist", "pin_memory", "__array__", "new_tensor")
FUNCTIONS = ("tensor", "as_tensor", "from_numpy")


class WaitError(AssertionError):
    pass


class NoWaiting(TorchDispatchMode):
    """Refuses to wait for tensors, but for those of a dtype that only the host has here."""

    def __init__(self, *of_host):
        super().__init__()
        self.of_host = of_host

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in WAITING and args[0].dtype not in self.of_host:
            raise WaitError(name)
        if name.startswith("index") and any(i.dtype in (torch.bool, torch.uint8) for i in _indices(args)):
            raise WaitError("an index that is a mask")
        return function(*args, **(kwargs or {}))


def _indices(args):
    return [i for i in args[1] if i is not None] if isinstance(args[1], (list, tuple)) else []


@contextmanager
def refused(monkeypatch, *of_host):
    """Inside, whatever waits or copies raises ``WaitError``; ``numpy()`` is for batch sizes, which are of the host."""

    def refuse(name):
        def call(*_, **__):
            raise WaitError(name)

        return call

    def of_batch_sizes(tensor, numpy=torch.Tensor.numpy):
        if tensor.dtype != torch.int64:
            raise WaitError("numpy")
        return numpy(tensor)

    with monkeypatch.context() as patch, NoWaiting(*of_host):
        for owner, names in ((torch.Tensor, METHODS), (torch, FUNCTIONS), (torch.cuda, ("synchronize",))):
            for name in names:
                patch.setattr(owner, name, refuse(name))
        patch.setattr(torch.Tensor, "numpy", of_batch_sizes)
        yield


@pytest.fixture
def _strictly(monkeypatch, request):
    """Below the door, where all tensors but batch sizes are the device's, nothing is excused."""
    request.getfixturevalue("on_cuda")

    def strict(*arguments):
        with NoWaiting():
            return devices.launch(*arguments)

    for module in (operator, dispatcher):
        monkeypatch.setattr(module, "launch", strict)


LARGE = torch.randn(40, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
READ_OFFSETS = "delta rule, packed", "linear attention, packed"
EVERY = {name: case for name, case in CASES.items() if name not in READ_OFFSETS} | {
    "apply by matrix products": (lambda u: ht.apply(u, u.mT), [LARGE]),
    "matrix by matrix products": (ht.matrix, [LARGE]),
    "rnn of half types": (
        lambda u, x: ht.rnn(u.float(), x.bfloat16(), nonlinearity="tanh", negative_slope=0.1)[0].double(),
        CASES["rnn, bare"][1],
    ),
}


@pytest.mark.usefixtures("_strictly")
@pytest.mark.parametrize("name", EVERY)
def test_functions_and_their_gradients_never_wait(monkeypatch, name):
    function, inputs = EVERY[name]
    value = function(*inputs)  # as a warm-up compiles kernels
    grad = torch.ones_like(value)
    with refused(monkeypatch, torch.int64, torch.bool):
        torch.autograd.grad(function(*inputs), inputs, grad)


@pytest.mark.usefixtures("_strictly")
def test_layers_never_wait(monkeypatch):
    layer = ht.OrthogonalRNN(3, 8, 2, num_reflections=[3, 8], bidirectional=True, learn_h0=True, dtype=torch.float64)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    with refused(monkeypatch, torch.int64, torch.bool):
        output, last = layer(x)
        (output.square().sum() + last.sum()).backward()


@pytest.mark.parametrize(
    "wait",
    [
        lambda a: a.sum().item(),
        lambda a: bool(a[0] > 0),
        lambda a: a[a > 0],
        lambda a: a.nonzero(),
        lambda a: a.cpu(),
        lambda a: a.tolist(),
        lambda a: a.numpy(),
        lambda a: torch.linalg.inv(a.outer(a) + torch.eye(3)),
        lambda a: torch.tensor(1.0, device=a.device),
        lambda a: torch.repeat_interleave(a, torch.ones(3, dtype=torch.int64)),
    ],
)
def test_what_waits_is_refused(monkeypatch, wait):
    a = torch.ones(3)
    with refused(monkeypatch), pytest.raises(WaitError):
        wait(a)


def test_cupy_arrays_never_wait(monkeypatch, dtype):
    cuda_standin.install(monkeypatch)
    monkeypatch.setattr(apply, "_BACKENDS", {cuda_standin.CupyArray: Arrays(cuda_standin.cupy_module())})

    def refuse(*_):
        raise WaitError

    for name in ("get", "item", "tolist", "__bool__", "__float__", "__int__", "__complex__"):
        monkeypatch.setattr(cuda_standin.CupyArray, name, refuse, raising=False)
    cupy = Backend("cupy", lambda a: a.view(cuda_standin.CupyArray), lambda a: a)
    p = problem(9, 4, 6, dtype)
    for function, args in ((hh.forward, (p.u, p.h)), (hh.backward, (p.u, p.h, p.g)), (hh.matrix, (p.u,))):
        cupy(function, *args)
        cupy(of_arrays(function), *args, **p.options)
    for sizes in (None, [3, 2, 2]):
        case = Case(dtype, 8, 3, 3, 3, width=2, bias=True, sizes=sizes)
        case.forward(cupy)
        case.both(cupy)
    with pytest.raises(WaitError):
        bool(np.ones(1).view(cuda_standin.CupyArray))
