"""Checks of the CUDA path: every kind of call is compared with the CPU in double precision."""

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence

import householder.torch as ht
from householder import _cuda
from householder._base.spec import NONLINEARITIES
from householder._cuda import instances, kernels

cuda: Any = torch.cuda

EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}
ALLOWED = 2000
"""Largest allowed error, in units of rounding of the largest entry. Errors of sums grow with the number of terms."""


def largest_error(results: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Return the largest error of several results, each relative to its largest entry."""
    errors = (
        (a.cpu().to(b.dtype) - b).abs().max() / b.abs().max().clamp(min=1) for a, b in zip(results, exact, strict=True)
    )
    return max(error.item() for error in errors)


def error_of(function: Callable[..., Tensor], inputs: Sequence[Tensor], device: str) -> float:
    """Return the largest error of value and gradients on the device, relative to the CPU in double precision."""

    def results(*moved: Tensor) -> list[Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in moved]
        value = function(*leaves)
        grad = torch.cos(torch.arange(value.numel(), device=value.device, dtype=torch.float64))
        return [value, *torch.autograd.grad(value, leaves, grad.reshape(value.shape).to(value.dtype))]

    on_device = results(*(t.to(device) for t in inputs))
    exact = results(*(t.to(torch.complex128 if t.is_complex() else torch.float64) for t in inputs))
    return largest_error(on_device, exact)


def compare(function: Callable[..., Tensor], inputs: Sequence[Tensor], device: str) -> float:
    """Return the error in units of rounding.

    Raises
    ------
    AssertionError
        The error is larger than allowed.
    """
    error = error_of(function, inputs, device) / EPS[inputs[0].dtype.to_real()]
    assert error <= ALLOWED, f"differs by {error:.0f} units of rounding, allowed {ALLOWED}"
    return error


def _random(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes]


def _states(*, transpose: bool = False, **options: Any) -> Callable[..., Tensor]:
    """Make a function of u, x, h0 (and phases or modReLU's bias) that returns all states and the last ones."""

    def function(u: Tensor, x: Tensor, h0: Tensor, *rest: Tensor) -> Tensor:
        has_bias = NONLINEARITIES[options["nonlinearity"]].has_bias
        w = ht.Reflections(u, phases=rest[0] if rest and not has_bias else None)
        h, last = ht.rnn(w.H if transpose else w, x, h0, nonlinearity_bias=rest[0] if has_bias else None, **options)
        return torch.cat([h.flatten(), last.flatten()])

    return function


def _half_states(half: torch.dtype, nonlinearity: str) -> Callable[..., Tensor]:
    """Make a function that runs a sequence in a half type for float32 arguments, and in float64 for float64 ones."""

    def function(u: Tensor, x: Tensor, h0: Tensor) -> Tensor:
        kind = half if u.dtype is torch.float32 else u.dtype
        h, last = ht.rnn(u, x.to(kind), h0.to(kind), nonlinearity=nonlinearity)
        assert h.dtype == last.dtype == kind, f"states are {h.dtype}, expected {kind}"
        return torch.cat([h.flatten(), last.flatten()]).to(u.dtype)

    return function


@cache
def _bidirectional(device: torch.device) -> ht.OrthogonalRNN:
    return ht.OrthogonalRNN(64, 64, num_reflections=8, nonlinearity="tanh", bidirectional=True, device=device)


def _both_directions(u: Tensor, data: Tensor, v: Tensor) -> Tensor:
    """Return the states of a bidirectional layer over packed sequences."""
    packed = PackedSequence(data, torch.tensor([4, 4, 1]))
    parameters = {"cells.0.reflections": u, "cells.1.reflections": v}
    output, _ = functional_call(_bidirectional(data.device), parameters, (packed,))
    states: Tensor = output.data
    return states


def check_applications(device: str) -> str:
    """Products, gradients and matrices of every kind."""
    shapes = [((64, 8), (5, 64)), ((33, 33), (7, 33)), ((1, 1), (2, 1)), ((3, 16, 4), (3, 16)), ((2, 1, 9, 9), (4, 9))]
    shapes += [((512, 64), (100, 512)), ((256, 255), (300, 256)), ((500, 32, 16), (500, 32))]
    worst = 0.0
    for (u, h), dtype, transpose in product(shapes, EPS, (False, True)):
        inputs = _random(u, h, dtype=dtype)
        worst = max(worst, compare(lambda u, h: ht.apply(ht.Reflections(u).H if transpose else u, h), inputs, device))  # noqa: B023
        worst = max(worst, compare(ht.matrix, inputs[:1], device))
    for dtype in (torch.complex64, torch.complex128):
        worst = max(worst, compare(ht.apply, _random((40, 12), (6, 40), dtype=dtype), device))
    return f"largest error {worst:.1f} units of rounding"


def check_first(device: str) -> str:
    """One small sequence, forward and backward: the simplest case."""
    error = compare(_states(nonlinearity="tanh"), _random((64, 8), (6, 3, 64), (3, 64)), device)
    return f"error {error:.1f} units of rounding"


def check_comparison(device: str) -> str:
    """Plant an error of a thousandth and require that it is found, because otherwise the other checks prove nothing."""

    def planted(u: Tensor, h: Tensor) -> Tensor:
        return ht.apply(u, h) * (1.001 if h.dtype is torch.float32 else 1)

    try:
        compare(planted, _random((64, 8), (5, 64)), device)
    except AssertionError:
        return "noticed"
    raise AssertionError("an error of a thousandth was not noticed")


SHAPES = [(64, 8), (63, 7), (65, 9), (128, 16), (128, 64), (130, 65), (250, 32), (256, 128), (500, 64), (512, 300)]
SHAPES += [(1, 1), (20, 20), (128, 128), (256, 254), (512, 510), (700, 20), (1024, 128), (1024, 1024), (1500, 20)]
"""Sizes around the edges of the kernels' tiles."""


def _in_clusters(n: int, m: int, dtype: torch.dtype) -> bool:
    tile = instances.plan(n, m, str(dtype).removeprefix("torch."), instances.CLUSTER_CAPABILITY)[1]
    return tile is not None and tile.cluster > 1


def _check_shapes(device: str, *, in_clusters: bool) -> str:
    worst = 0.0
    for (n, m), dtype in product(SHAPES, EPS):
        if _in_clusters(n, m, dtype) is not in_clusters:
            continue
        inputs = _random((n, m), (6, 3, n), (3, n), dtype=dtype)
        try:
            worst = max(worst, compare(_states(nonlinearity="tanh"), inputs, device))
        except AssertionError as error:
            raise AssertionError(f"n = {n}, m = {m}, {dtype}: {error}") from None
    return f"largest error {worst:.1f} units of rounding"


def check_tiles(device: str) -> str:
    """Sequences whose matrices fit into one block, and those that the fallback kernel runs."""
    return _check_shapes(device, in_clusters=False)


def check_clusters(device: str) -> str:
    """Sequences whose matrices are split over a cluster of blocks, if the device has clusters."""
    return _check_shapes(device, in_clusters=True)


def check_equal_bits(device: str, repeats: int = 1000) -> str:
    """Repeat calls with one block and with a cluster of blocks: every call gives the same bits."""
    for n, m in ((64, 8), (512, 64)):
        u, x = (t.to(device).requires_grad_() for t in _random((n, m), (20, 5, n)))

        def results(u: Tensor = u, x: Tensor = x) -> list[Tensor]:
            return _value_and_gradients(lambda u, x: ht.rnn(u, x, nonlinearity="tanh")[0], (u, x))

        expected = results()
        for i in range(repeats):
            same = all(torch.equal(a, b) for a, b in zip(results(), expected, strict=True))
            assert same, f"n = {n}, m = {m}: repetition {i} differs"
    return f"{repeats} repetitions"


def check_company(device: str) -> str:
    """Run sequences while large products on another stream compete for multiprocessors."""
    u, x, a = (t.to(device) for t in _random((512, 64), (100, 64, 512), (4096, 4096)))
    expected = ht.rnn(u, x)[0]
    cuda.synchronize()
    other = cuda.Stream()
    for _ in range(5):
        with cuda.stream(other):
            for _ in range(10):
                a @ a
        result = ht.rnn(u, x)[0]
        cuda.synchronize()
        assert torch.equal(result, expected), "results differ"
    return "equal bits, five times"


def check_compilation(device: str) -> str:  # noqa: ARG001
    """Compile the kernels of a recurrence with an empty cache, and again from that cache."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CUPY_CACHE_DIR"] = folder
        times = []
        for _ in range(2):
            kernels._compiled.clear()
            begun = time.perf_counter()
            _cuda.warm_up(256, 32)
            times.append(time.perf_counter() - begun)
    return f"{times[0]:.2f} s cold, {times[1]:.2f} s from the cache, for {len(kernels.compiled())} kernels"


def check_nonlinearities(device: str) -> str:
    """Every nonlinearity, for real and complex sequences, with W and its adjoint, in low-rank and dense kernels."""
    worst = 0.0
    for phi, m, transpose, dtype in product(NONLINEARITIES.values(), (4, 30), (False, True), (*EPS, torch.complex64)):
        if not phi.acts_on(32, dtype.is_complex):
            continue
        inputs = _random((32, m), (7, 5, 32), (5, 32), dtype=dtype)
        if phi.has_bias:
            inputs += _random((phi.moduli(32, dtype.is_complex),), dtype=dtype.to_real())
        worst = max(worst, compare(_states(nonlinearity=phi.name, transpose=transpose), inputs, device))
    return f"largest error {worst:.1f} units of rounding"


def check_phases(device: str) -> str:
    """Complex sequences with phases."""
    inputs = _random((24, 6), (7, 5, 24), (5, 24), dtype=torch.complex64) + _random((24,))
    error = compare(_states(nonlinearity="leaky_relu"), inputs, device)
    return f"largest error {error:.1f} units of rounding"


def check_packed(device: str) -> str:
    """Sequences of different lengths."""
    worst = 0.0
    for m, sizes in product((8, 40), ([5, 5, 3, 1, 1], [4], [200, 150, 2])):
        inputs = _random((64, m), (sum(sizes), 64), (sizes[0], 64))
        function = _states(nonlinearity="tanh", batch_sizes=torch.tensor(sizes))
        worst = max(worst, compare(function, inputs, device))
    return f"largest error {worst:.1f} units of rounding"


def check_reverse(device: str) -> str:
    """Sequences from the last step to the first."""
    worst = 0.0
    for m, dtype in product((8, 40), EPS):
        inputs = _random((64, m), (7, 5, 64), (5, 64), dtype=dtype)
        worst = max(worst, compare(_states(nonlinearity="tanh", reverse=True), inputs, device))
    return f"largest error {worst:.1f} units of rounding"


def check_half(device: str) -> str:
    """Sequences of half types with parameters of float32."""
    worst = 0.0
    units = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
    for (half, unit), m, phi in product(units.items(), (8, 40), ("tanh", "leaky_relu")):
        inputs = [t.to(half).float() for t in _random((64, m), (7, 5, 64), (5, 64))]
        error = error_of(_half_states(half, phi), inputs, device) / unit
        assert error < 20, f"differs by {error:.1f} units of rounding of {half}"
        worst = max(worst, error)
    return f"largest error {worst:.1f} units of rounding"


def check_long(device: str) -> str:
    """States keep their norms for a thousand steps without input."""
    drift = 0.0
    for n, m in ((64, 8), (64, 64), (256, 32), (512, 64), (512, 510)):
        u, h0 = (t.to(device) for t in _random((n, m), (40, n)))
        if n == m:
            u[-1, -1] = -1
        _, last = ht.rnn(u, h0.new_zeros(1000, 40, n), h0, nonlinearity="identity")
        drift = max(drift, (last.norm(dim=-1) / h0.norm(dim=-1) - 1).abs().max().item())
    assert drift < 1e-3, f"norms drift by {drift:.2g} in 1000 steps"
    return f"norms drift by {drift:.2g}"


def check_layers(device: str) -> str:
    """Differentiate an orthogonal and a unitary layer under bfloat16 autocast."""
    x = _random((20, 8, 5))[0].to(device)
    for layer in (ht.OrthogonalRNN(5, 64, 2, bidirectional=True), ht.UnitaryRNN(5, 16)):
        layer.to(device)
        with torch.autocast(device, torch.bfloat16):
            output, _ = layer(x)
        gradients = torch.autograd.grad(output.abs().square().sum(), list(layer.parameters()))
        assert all(gradient.isfinite().all() for gradient in gradients), "gradients are not finite"
    return "all parameters have finite gradients"


def _paths() -> list[tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]]:
    """Functions and shapes of their arguments, one for each path through the code."""
    sequence, packed = ((9, 4, 64), (4, 64)), ((9, 64), (4, 64))
    return [
        (_states(nonlinearity="tanh"), ((64, 8), *sequence)),
        (_states(nonlinearity="tanh"), ((64, 60), *sequence)),
        (_states(nonlinearity="oplu", batch_sizes=torch.tensor([4, 4, 1])), ((64, 8), *packed)),
        (_half_states(torch.bfloat16, "tanh"), ((64, 8), *sequence)),
        (_both_directions, ((64, 8), (9, 64), (64, 8))),
        (ht.apply, ((100, 32, 16), (100, 32))),
        (ht.apply, ((300, 80), (200, 300))),
        (lambda u, h: ht.matrix(u) @ h, ((64, 8), (64,))),
    ]


def _value_and_gradients(function: Callable[..., Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    value = function(*leaves)
    return [value.detach(), *torch.autograd.grad(value.square().sum(), leaves)]


def check_no_waiting(device: str) -> str:
    """No call waits for the device, forward or backward."""
    for function, shapes in _paths():
        leaves = [t.to(device).requires_grad_() for t in _random(*shapes)]
        _value_and_gradients(function, leaves)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns that the mode is a prototype
                cuda.set_sync_debug_mode("error")
            _value_and_gradients(function, leaves)
        finally:
            cuda.set_sync_debug_mode("default")
    return "no synchronisation"


def check_graphs(device: str) -> str:
    """Capture a pass, forward and backward; a replay with other numbers equals an eager pass."""
    worst = 0.0
    for function, shapes in _paths():
        leaves = [t.to(device).requires_grad_() for t in _random(*shapes)]
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            _value_and_gradients(function, leaves)
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            captured = _value_and_gradients(function, leaves)
        with torch.no_grad():
            leaves[1].mul_(0.5)
        graph.replay()
        eager = [t.detach().cpu() for t in _value_and_gradients(function, leaves)]
        worst = max(worst, largest_error(captured, eager))
    assert worst < 1e-5, f"differs by {worst:.2g}"
    return "replays equal eager calls"


def check_streams(device: str) -> str:
    """Run on two streams at the same time: calls do not disturb each other."""
    u, x = (t.to(device) for t in _random((256, 32), (200, 8, 256)))
    expected = [ht.rnn(u, x * scale)[0] for scale in (1, 2)]
    cuda.synchronize()
    streams = [cuda.Stream(), cuda.Stream()]
    for _ in range(5):
        results = []
        for scale, stream in zip((1, 2), streams, strict=True):
            with cuda.stream(stream):
                results.append(ht.rnn(u, x * scale)[0])
        cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True)), "results differ"
    return "equal bits on two streams, five times"


def check_devices(device: str) -> str:  # noqa: ARG001
    """Every device computes correctly."""
    count = cuda.device_count()
    for index in range(count):
        compare(_states(nonlinearity="tanh"), _random((64, 8), (5, 3, 64), (3, 64)), f"cuda:{index}")
    return f"{count} device(s)"


def check_compile(device: str) -> str:
    """``torch.compile`` compiles the functions without graph breaks."""
    leaves = [t.to(device).requires_grad_() for t in _random((64, 8), (9, 4, 64), (4, 64))]
    for function in (_states(nonlinearity="tanh"), lambda u, x, h0: ht.apply(u, x) + ht.matrix(u)[0] + h0):
        compiled: Any = torch.compile(function, fullgraph=True)
        results, expected = (
            [f(*leaves), *torch.autograd.grad(f(*leaves).square().sum(), leaves)] for f in (compiled, function)
        )
        error = largest_error(results, [t.detach().cpu() for t in expected])
        assert error < 1e-5, f"differs by {error:.2g}"
    return "fullgraph, forward and backward"


CHECKS: dict[str, Callable[[str], str]] = {
    "compilation": check_compilation,
    "one sequence": check_first,
    "a planted error": check_comparison,
    "applications": check_applications,
    "tiles": check_tiles,
    "nonlinearities": check_nonlinearities,
    "phases": check_phases,
    "packed sequences": check_packed,
    "time backwards": check_reverse,
    "half types": check_half,
    "a thousand steps": check_long,
    "layers, autocast": check_layers,
    "no waiting": check_no_waiting,
    "CUDA graphs": check_graphs,
    "streams": check_streams,
    "devices": check_devices,
    "torch.compile": check_compile,
    "clusters": check_clusters,
    "equal bits": check_equal_bits,
    "company": check_company,
}
"""The checks, likeliest to pass first; clusters, which may hang, come last."""
NEED_A_DEVICE = ("compilation", "no waiting", "CUDA graphs", "streams", "devices", "torch.compile", "company")
"""Checks that cannot run on host memory."""
