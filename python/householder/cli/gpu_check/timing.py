"""Times of the CUDA path and of torch's alternatives for the same work, measured by CUDA events.

:func:`measure` times any calls; :func:`compare` does so for a case of ``householder gpu-check``. Every candidate's
result is first compared with double precision, computed on the CPU for ours. Times are of forward, and of forward plus
backward, with the gradients of all parameters and of initial states. Calls are eager and, if possible, a CUDA graph.
"""

from __future__ import annotations

import copy
import math
import os
import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

import householder.torch as ht
from householder._base import notices
from householder._cuda import instances
from householder.torch._base import expressions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from householder.cli.gpu_check.supervisor import Row

cuda: Any = torch.cuda

OURS = "householder"
TimedCall = Callable[[], Any]
"""A call to be timed."""

TORCH = "householder, torch operations"
"""The operations that replace kernels which cannot be used."""
FEWEST, REPLAYS = 5, 50
"""Rounds of a case, at least and at most."""
SECONDS = 8.0
"""Time after which no further round begins."""
WARM_UP = 3


class Timing(NamedTuple):
    """Milliseconds of one call."""

    median: float
    minimum: float


class Candidate(NamedTuple):
    """A rival: ``forward`` returns the result, ``leaves`` need gradients, ``exact`` returns both in float64."""

    name: str
    forward: Callable[[], Tensor]
    leaves: list[Tensor]
    grad: Tensor
    exact: Callable[[], list[Tensor]]

    def both(self) -> list[Tensor]:
        """Compute the result and the gradients."""
        return _both(self.forward, self.leaves, self.grad)


def _both(forward: Callable[[], Tensor], leaves: list[Tensor], grad: Tensor) -> list[Tensor]:
    value = forward()
    return [value.detach(), *torch.autograd.grad(value, leaves, grad)]


@dataclass(frozen=True)
class SequenceCase:
    """``h_t = tanh(W h_{t-1} + V x_t + b)`` for inputs of width 1, all gradients."""

    n: int
    m: int
    B: int
    T: int
    target: float
    """The ratio of our time to that of ``torch.nn.RNN`` that is aimed at."""
    dtype: torch.dtype = torch.float32
    """Type of inputs and states. With a half type, the rivals' parameters have it too; ours stay float32."""

    def __str__(self) -> str:
        kind = "" if self.dtype is torch.float32 else f" {self.dtype}".replace("torch.", "")
        return f"sequence n={self.n} m={self.m} B={self.B} T={self.T}{kind} (target: {self.target:.2f} of torch.nn.RNN)"

    @property
    def step(self) -> Row:
        """The numbers that a step reads, which decide between the general kernel and torch operations."""
        dense = instances.prefers_dense(self.n, self.m)
        dtype = str(self.dtype).removeprefix("torch.")
        steps = instances.prefers_steps(self.n, self.m, dtype, dense=dense)
        return {"numbers": instances.numbers_of_step(self.n, self.m, dense=dense), "prefers_steps": steps}

    def candidates(self, device: str) -> Iterator[Candidate]:
        """Ours, cuDNN's with and without TF32, and compiled torch operations, with equal weights."""
        torch.manual_seed(0)
        ours: Any = ht.OrthogonalRNN(1, self.n, num_reflections=self.m, nonlinearity="tanh")
        x, h0 = torch.randn(self.T, self.B, 1), torch.randn(1, self.B, self.n)
        grad = torch.randn(self.T, self.B, self.n)
        rnn: Any = nn.RNN(1, self.n)
        lstm = nn.LSTM(1, self.n)
        (cell,) = ours.cells
        with torch.no_grad():
            rnn.weight_ih_l0.copy_(cell.weight_ih)
            rnn.weight_hh_l0.copy_(cell.matrix())
            rnn.bias_ih_l0.copy_(cell.bias)
            rnn.bias_hh_l0.zero_()

        def work(
            module: Any, dtype: torch.dtype, device: str, step: Any = None
        ) -> tuple[Callable[[], Tensor], list[Tensor], Tensor]:
            narrow = module is ours and dtype in (torch.bfloat16, torch.float16)
            module = copy.deepcopy(module).to(device, torch.float32 if narrow else dtype)
            inputs, state, g = (t.to(device, dtype) for t in (x, h0, grad))
            state.requires_grad_()

            def forward() -> Tensor:
                if step is not None:
                    return _loop(module.cells[0], inputs, state[0], step)
                states = (state, state) if isinstance(module, nn.LSTM) else state
                output: Tensor = module(inputs, states)[0]
                return output

            return forward, [*module.parameters(), state], g

        def candidate(name: str, module: nn.Module, step: Any = None) -> Candidate:
            def exact() -> list[Tensor]:
                return _both(*work(module, torch.float64, "cpu" if module is ours else device))

            return Candidate(name, *work(module, self.dtype, device, step), exact)

        yield candidate(OURS, ours)
        yield candidate(TORCH, ours)
        yield candidate("torch.nn.RNN", rnn)
        if self.dtype is torch.float32:
            yield candidate("torch.nn.RNN, TF32", rnn)
        yield candidate("torch.nn.LSTM", lstm)
        if self.dtype is torch.float32:
            yield candidate("torch.nn.LSTM, TF32", lstm)
            yield candidate("loop of a compiled step", ours, torch.compile(_step))


@dataclass(frozen=True)
class ApplicationsCase:
    """``c = W h`` for many matrices, one vector each."""

    count: int
    n: int
    m: int
    target: float
    step: ClassVar[None] = None

    def __str__(self) -> str:
        return f"{self.count} matrices n={self.n} m={self.m} (target: {self.target:.2f} of householder_product)"

    def candidates(self, device: str) -> Iterator[Candidate]:
        """Ours, ``householder_product``, and the compact WY form by autograd."""
        torch.manual_seed(0)
        tensors = [torch.randn(self.count, self.n, self.m).tril(), *torch.randn(2, self.count, self.n)]
        u64, h64, grad64 = (t.double() for t in tensors)

        def exact() -> list[Tensor]:
            leaves = [u64.requires_grad_(), h64.requires_grad_()]
            return _both(lambda: ht.apply(u64, h64), leaves, grad64)

        def by_householder_product(u: Tensor, h: Tensor) -> Tensor:
            v = u / u.diagonal(dim1=1, dim2=2).unsqueeze(1)
            w: Tensor = torch.linalg.householder_product(pad(v, (0, self.n - self.m)), 2 / v.square().sum(1))
            return (w @ h.unsqueeze(2)).squeeze(2)

        def by_autograd(u: Tensor, h: Tensor) -> Tensor:
            c: Tensor = expressions.apply(u, h, False)
            return c

        functions: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
            OURS: ht.apply,
            TORCH: ht.apply,
            "torch.linalg.householder_product": by_householder_product,
            "compact WY by autograd": by_autograd,
            "compact WY by autograd, compiled": torch.compile(by_autograd),
        }
        for name, function in functions.items():
            u, h, grad = (t.to(device) for t in tensors)
            leaves = [u.requires_grad_(), h.requires_grad_()]
            yield Candidate(name, partial(function, *leaves), leaves, grad, exact)


CASES: list[SequenceCase | ApplicationsCase] = [
    SequenceCase(128, 16, 50, 400, 1.0),
    *(SequenceCase(128, 16, batch, 100, 1.0) for batch in (1, 64, 256, 1024)),
    SequenceCase(256, 32, 50, 784, 1 / 3),
    SequenceCase(512, 64, 64, 512, 1 / 6),
    SequenceCase(512, 510, 1, 300, 1 / 6),
    *(SequenceCase(n, m, 64, 50, 1.0) for n, m in ((600, 50), (600, 300), (1024, 1024))),  # kernel or steps
    SequenceCase(512, 64, 64, 512, 1.0, torch.float16),
    ApplicationsCase(8192, 32, 16, 1 / 20),
]
QUICK: list[SequenceCase | ApplicationsCase] = [
    SequenceCase(64, 8, 4, 20, 1.0),
    SequenceCase(64, 8, 4, 20, 1.0, torch.bfloat16),
    ApplicationsCase(16, 8, 4, 1.0),
]


def measure(runs: dict[str, TimedCall], replays: int = REPLAYS) -> dict[str, Timing]:
    """Time each call in turn, round after round, by events; all work belongs to the current device."""
    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in runs}
    until = time.monotonic() + SECONDS
    for replay in range(replays):
        if replay >= FEWEST and time.monotonic() > until:
            break
        for name, run in runs.items():
            start, end = (cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            events[name].append((start, end))
        cuda.synchronize()
    times = {name: [start.elapsed_time(end) for start, end in pairs] for name, pairs in events.items()}
    return {name: Timing(statistics.median(t), min(t)) for name, t in times.items()}


def modes_of(call: TimedCall) -> dict[str, TimedCall]:
    """Warm a call up; return it as ``"eager"`` and, if it can be captured, as a CUDA graph, ``"graph"``."""
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(WARM_UP):
            call()
    cuda.current_stream().wait_stream(side)
    cuda.synchronize()
    graph = cuda.CUDAGraph()
    try:
        with cuda.graph(graph):
            results = call()
    except RuntimeError:  # the call synchronises, or does something else that capture forbids
        cuda.synchronize()  # raises if the context is lost
        return {"eager": call}

    def replay(results: Any = results) -> Any:  # the graph's memory lives as long as its results
        graph.replay()
        return results

    return {"eager": call, "graph": replay}


def cases(quick: bool) -> list[SequenceCase | ApplicationsCase]:
    """Return the cases to be timed."""
    return QUICK if quick else CASES


def compare(case: SequenceCase | ApplicationsCase, *, quick: bool = False, device: str = "cuda") -> Row:
    """Check and time the candidates of a case; return rows for a report."""
    candidates, errors, failed = [], {}, {}
    calls: dict[str, TimedCall] = {}
    for candidate in case.candidates(device):
        passes = {"forward": candidate.forward, "forward+backward": candidate.both}
        try:
            with _settings(candidate.name):
                errors[candidate.name] = _error(candidate)
            runs = {
                f"{candidate.name}|{kind}|{mode}": run
                for kind, call in passes.items()
                for mode, run in modes_of(_settings(candidate.name)(call)).items()
            }
        except Exception as error:  # a rival lacks its compiler, or memory: time the others
            failed[candidate.name] = f"{type(error).__name__}: {error}".partition("\n")[0]
            cuda.synchronize()  # raises if the context is lost, and with it every other candidate
            continue
        candidates.append(candidate)
        calls |= runs
    timings = measure(calls, FEWEST if quick else REPLAYS)
    rows = []
    for key, timing in timings.items():
        name, kind, mode = key.split("|")
        ours = timings.get(f"{OURS}|{kind}|{mode}")
        rows.append(
            {
                "candidate": name,
                "pass": kind,
                "way": mode,
                "median_ms": timing.median,
                "minimum_ms": timing.minimum,
                "ratio": timing.median / ours.median if ours else math.nan,
                "error": errors[name],
            }
        )
    kernels = {}
    for candidate in candidates:
        try:
            kernels[candidate.name] = kernel_names(_settings(candidate.name)(candidate.both))
        except RuntimeError as error:  # the profiler lacks permissions
            cuda.synchronize()
            kernels[candidate.name] = [f"{error}".partition("\n")[0]]
    return {
        "case": str(case),
        "target": case.target,
        "step": case.step,
        "rows": rows,
        "kernels": kernels,
        "failed": failed,
        "faster": _faster(timings),
    }


def _faster(timings: dict[str, Timing]) -> list[Row]:
    """Say for each pass and mode which is faster, our kernels or the torch operations that would replace them."""
    verdicts = []
    for key, kernels in timings.items():
        name, kind, mode = key.split("|")
        steps = timings.get(f"{TORCH}|{kind}|{mode}")
        if name == OURS and steps is not None:
            pair = {"kernels": kernels.median, "torch operations": steps.median}
            winner, loser = sorted(pair, key=lambda side: pair[side])
            verdicts.append({"pass": kind, "way": mode, "winner": winner, "times": pair[loser] / pair[winner]})
    return verdicts


def kernel_names(call: TimedCall, most: int = 4) -> list[str]:
    """Name the kernels that take the most time according to torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    call()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()
        cuda.synchronize()
    averages: Any = profiler.key_averages()
    busy = [event for event in averages if event.self_device_time_total > 0]
    busy.sort(key=lambda event: -event.self_device_time_total)
    return [f"`{event.key[:90]}` {event.self_device_time_total / 1e3:.3f} ms" for event in busy[:most]]


def _error(candidate: Candidate) -> str:
    pairs = zip(candidate.both(), candidate.exact(), strict=True)
    errors = ((result.double().cpu() - exact.cpu()).abs().max() / exact.abs().max().cpu() for result, exact in pairs)
    return f"{max(error.item() for error in errors):.1e}"


@contextmanager
def _settings(name: str) -> Iterator[None]:
    """Allow TF32 only to candidates whose name ends in "TF32", and kernels to all but ``TORCH``."""
    backends: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [backend.allow_tf32 for backend in backends]
    asked = os.environ.get(notices.VARIABLE, "")
    try:
        for backend in backends:
            backend.allow_tf32 = name.endswith("TF32")
        if name == TORCH:
            os.environ[notices.VARIABLE] = "off"
        yield
    finally:
        os.environ[notices.VARIABLE] = asked
        for backend, allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = allowed


def _step(h: Tensor, w: Tensor, a: Tensor) -> Tensor:
    return torch.tanh(a + h @ w)


def _loop(cell: Any, x: Tensor, h: Tensor, step: Any) -> Tensor:
    """Run the recurrence of a cell in torch operations, W formed once."""
    w = expressions.matrix(cell.reflections).mT
    states = []
    for a in nn.functional.linear(x, cell.weight_ih, cell.bias):
        h = step(h, w, a)
        states.append(h)
    return torch.stack(states)
