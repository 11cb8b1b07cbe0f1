"""What an eager call on CUDA costs the host before its launches are queued, measured without a GPU.

    python -m benches.pages.gpu_host [--rounds 40]

CuPy is the real one, on the tests' driver, whose launches return at once. Tensors lie in host memory and say they are
on CUDA. So torch's own operations compute instead of being queued: shapes are small, and it is an estimate. The parts
are measured alone, in a loop that repeats nothing else: their sum is the least that such a call takes.
"""

import os
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.autograd import Function, grad

os.environ["CUPY_CACHE_IN_MEMORY"] = "1"  # kernels for a device that does not exist

import householder.torch as ht
from benches.measure import clock, heading, interleaved, options, row
from householder._cuda import kernels, verdicts
from householder._cuda.library import library_of
from householder.torch._ops import devices
from tests.cuda import cuda_standin
from tests.cuda.real_cupy import host_driver


class OnCuda(nn.Parameter):
    """A tensor of the host that takes the way of CUDA tensors, without ``__torch_function__``."""

    is_cpu, is_cuda = False, True


class Nothing(Function):
    @staticmethod
    def forward(ctx, u, h):
        ctx.save_for_backward(u, h)
        return h.detach()

    @staticmethod
    def backward(ctx, grad_c):
        u, _ = ctx.saved_tensors
        return u, grad_c


def load():
    """Load CuPy on the driver, and trust kernels, which compute nothing here."""
    host_driver.load()
    verdicts._verdicts = cuda_standin.Trusted()
    devices.kind_of = lambda _: "cuda"
    torch.cuda.current_stream = lambda _: SimpleNamespace(cuda_stream=0)
    torch.set_flush_denormal(True)  # memory that no kernel wrote may hold numbers that slow a CPU down


def drawn(*shape, needs_grad=False):
    return torch.randn(shape).as_subclass(OnCuda).requires_grad_(needs_grad)


def application(n, m, rows):
    u, h = drawn(n, m, needs_grad=True), drawn(rows, n, needs_grad=True)
    fixed, g = (u.detach().as_subclass(OnCuda), h.detach().as_subclass(OnCuda)), drawn(rows, n)
    return lambda: ht.apply(*fixed), lambda: grad(ht.apply(u, h), (u, h), g)


def recurrence(nonlinearity):
    layer = ht.OrthogonalRNN(2, 64, num_reflections=8, nonlinearity=nonlinearity)
    (cell,) = layer.cells
    for name, parameter in cell.named_parameters():
        setattr(cell, name, parameter.detach().as_subclass(OnCuda).requires_grad_())
    x, g, parameters = drawn(8, 2, 2), drawn(8, 2, 64), list(layer.parameters())

    def forward():
        with torch.no_grad():
            layer(x)

    return forward, lambda: grad(layer(x)[0], parameters, g)


def parts():
    u, x, h, g = drawn(64, 8, needs_grad=True), torch.randn(16, 64), drawn(16, 64, needs_grad=True), drawn(16, 64)
    library = library_of(u)
    kernel = next(kernel for (_, name), kernel in kernels._compiled.items() if "lowrank_forward" in name)
    arguments = (*[x.data_ptr()] * 5, np.float64(0.1), *[0] * 4, *map(np.int32, (64, 8, 8, 2)))

    def current():
        with library.current(u):
            pass

    return {
        "an autograd function that computes nothing, and torch.autograd.grad": lambda: grad(
            Nothing.apply(u, h), (u, h), g
        ),
        "a launch by CuPy": lambda: kernel((2,), (64,), arguments, shared_mem=1024),
        "CuPy's device and stream": current,
        "an allocation": lambda: x.new_empty((64, 8)),
        "a slice": lambda: x[:14],
        "a matrix product": lambda: x @ u,
        "a sum over rows": lambda: x.sum(axis=0),
        "an input projection": lambda: nn.functional.linear(x, h),
        "a copy of the last state": lambda: x[-1].clone(),
    }


def main() -> None:
    chosen = options(__doc__, threads=1, rounds=40)
    load()
    torch.manual_seed(0)
    works = {
        "`ht.apply`, (64, 8) of 8 vectors: one launch in each direction": application(64, 8, 8),
        "`ht.apply`, (128, 16) of 50 vectors: matrix products": application(128, 16, 50),
        "`ht.OrthogonalRNN` (64, 8), 8 steps of 2 sequences": recurrence("leaky_relu"),
        "the same, OPLU": recurrence("oplu"),
    }
    calls = {}
    for work, (forward, both) in works.items():
        calls |= {f"{work}; forward": forward, f"{work}; forward and backward": both}
    for call in calls.values():
        call()  # compiles the kernel of which a launch is timed
    heading(chosen.threads, "", "median, us", "min, us")
    times = interleaved(calls | parts(), chosen.rounds, budget=120.0, clock=clock(chosen.threads))
    for name, seconds in times.items():
        row(name, *(1e6 * s for s in seconds))


if __name__ == "__main__":
    main()
