"""What the operators of torch do with CUDA tensors, without a GPU: on host memory, kernels in the emulator."""

import re
import sys
import warnings
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch._dynamo  # which torch.func imports for its first gradient: it would look at all modules, CuPy's too
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import householder as hh
import householder.torch as ht
from householder._base import notices
from householder._base.spec import METHODS
from householder._cuda import algebra, instances, kernels, library, verdicts
from householder.cli.gpu_check import command as gpu_check
from householder.cli.gpu_check import correctness as gpu_correctness
from householder.cli.gpu_check import timing as gpu_timing
from householder.torch import _ops
from householder.torch._ops import adapted, devices, operator
from householder.torch._ops.devices import are_plain
from householder.torch._ops.route import NATIVE, OBSERVED, route
from householder.torch.functions import rnn
from tests.cases.torch import CASES, results
from tests.conftest import of_arrays
from tests.cuda import cuda_standin

pytestmark = pytest.mark.skipif(not cuda_standin.HAS_COMPILER, reason="the emulator needs a C++ compiler")

F64 = torch.float64
CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
WITH_KERNELS = "apply", "apply_backward", "matrix", "matrix_backward", "rnn", "rnn_backward"
TILES = instances.TILES


EXPECTED = {name: results(*case) for name, case in CASES.items()}


def assert_as_on_the_cpu(name, inputs=None):
    function, of_case = CASES[name]
    for found, expected in zip(results(function, inputs or of_case), EXPECTED[name], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.fixture
def on_cuda(monkeypatch):
    """CPU tensors take the way of CUDA tensors, on a device of compute capability 9.0 whose stream is number 42."""
    cuda_standin.install(monkeypatch)
    monkeypatch.setattr(instances, "TILES", ())  # few kernels to compile
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=42))
    monkeypatch.setattr(rnn, "reads_halves", lambda _: True)
    monkeypatch.setattr(devices, "kind_of", lambda _: "cuda")
    ask_the_dispatcher(monkeypatch, True)
    library = torch.library.Library("householder", "IMPL")
    for name in WITH_KERNELS:
        kernel = partial(getattr(torch.ops.householder, name).default.redispatch, CUDA)
        library.impl(name, kernel, "CPU", allow_override=True)
    yield
    library._destroy()


def ask_the_dispatcher(monkeypatch, always):
    for module in (operator, adapted):
        monkeypatch.setattr(module, "route", _observed if always else route)


def _observed():
    return OBSERVED if route() in NATIVE else route()


@pytest.mark.filterwarnings("ignore:householder has no native kernel")
@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_the_cpu(name):
    with np.errstate(all="raise"):
        assert_as_on_the_cpu(name)


class OnCuda(torch.Tensor):
    """A tensor on the CPU that says it is on CUDA."""

    is_cpu, is_cuda = False, True


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(12, 9), (2, 9, 9)], ids=str)
def test_apply_forms_the_factors_once_for_both_passes(monkeypatch, shape, method):
    ask_the_dispatcher(monkeypatch, False)
    formed, form = [], algebra.form
    monkeypatch.setattr(algebra, "form", lambda *arguments: formed.append(arguments) or form(*arguments))
    generator = torch.Generator().manual_seed(0)
    u, h = (torch.randn(s, dtype=F64, generator=generator) for s in (shape, (*shape[:-2], 300, shape[-2])))
    on_device = [t.as_subclass(OnCuda).requires_grad_() for t in (u, h)]

    def product(u, h):
        options = _ops.apply.ApplyOptions(False, method, "trapezoidal")
        return _ops.apply.operator(_ops.apply.ApplyInputs(u, h, None), options)

    found = results(product, on_device)
    assert len(formed) == 1
    expected = results(product, [t.requires_grad_() for t in (u, h)])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.as_subclass(torch.Tensor), b, rtol=1e-12, atol=1e-12)


def test_tensors_with_their_own_way_of_dispatch_are_not_plain():
    t = torch.ones(2)
    assert are_plain(t, torch.nn.Parameter(t), t.as_subclass(OnCuda))
    assert not are_plain(t, TwoTensor(t, t))
    leaked = []
    torch.func.grad(lambda t: leaked.append(t) or t.sum())(t)
    assert not are_plain(*leaked)


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("nonlinearity", ["tanh", "oplu"])
def test_layers_train(nonlinearity):
    layer = ht.OrthogonalRNN(3, 8, 2, nonlinearity=nonlinearity, bidirectional=True, dtype=F64)
    x = torch.randn(6, 4, 3, dtype=F64)
    lengths = torch.tensor([6, 2, 5, 1])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    h, last = layer(packed)
    (h.data.square().sum() + last.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


HALVES = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Half types and their units of rounding."""


def sequence_gradients(types, n, m, nonlinearity="tanh", **options):
    """States and gradients of everything, the arguments rounded to a half type and then converted to ``types``."""
    generator = torch.Generator().manual_seed(n)
    sizes = {"u": (n, m), "x": (9, 3, 5), "h0": (3, n), "input_weight": (n, 5), "bias": (n,)}
    if "batch_sizes" in options:
        sizes["x"] = (int(options["batch_sizes"].sum()), 5)
    if nonlinearity == "modrelu":
        sizes["nonlinearity_bias"] = (n // 2,)
    drawn = {name: torch.randn(size, generator=generator) for name, size in sizes.items()}
    drawn["input_weight"] /= 3
    given = {name: a.to(options["half"]).to(types[name in ("x", "h0")]).requires_grad_() for name, a in drawn.items()}
    del options["half"]
    h, last = of_arrays(ht.rnn)(nonlinearity=nonlinearity, **given, **options)
    grads = torch.autograd.grad([h.double().square().sum(), last.double().sum()], list(given.values()))
    return {"h": h.detach(), "last": last.detach()} | dict(zip(given, grads, strict=True))


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(
    "case",
    [
        {"n": 8, "m": 3},
        {"n": 8, "m": 8, "nonlinearity": "leaky_relu"},
        {"n": 8, "m": 3, "transpose": True, "nonlinearity": "modrelu"},
        {"n": 8, "m": 3, "batch_sizes": torch.tensor([3, 3, 2, 1])},
        {"n": 64, "m": 8, "tiles": True},
        {"n": 50, "m": 50, "tiles": True},
    ],
    ids=str,
)
def test_kernels_read_and_write_half_types(monkeypatch, half, case):
    """Inputs, states and their gradients are of the half type, parameters and their gradients of float32."""
    case = case | {"half": half}
    if case.pop("tiles", False):
        monkeypatch.setattr(instances, "TILES", TILES)
    found = sequence_gradients((torch.float32, half), **case)
    kinds = {name: half if name in ("h", "last", "x", "h0") else torch.float32 for name in found}
    assert {name: a.dtype for name, a in found.items()} == kinds
    launched = {name for _, name in kernels._compiled if "ward<" in name}
    assert len(launched) == 2
    assert all(instances.STORED[str(half).removeprefix("torch.")] in name for name in launched)
    for name, exact in sequence_gradients((torch.float64, torch.float64), **case).items():
        error = (found[name].double() - exact).abs().max() / exact.abs().max()
        assert error < 12 * HALVES[half], name


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("half", HALVES)
def test_states_of_half_types_are_float32_from_step_to_step(half):
    """A hundred steps without input round once, not a hundred times."""
    u, h0 = torch.randn(8, 3), torch.randn(2, 8).to(half)
    last = ht.rnn(u, h0.new_zeros(100, 2, 8), h0, nonlinearity="identity")[1]
    exact = ht.rnn(u.double(), torch.zeros(100, 2, 8, dtype=F64), h0.double(), nonlinearity="identity")[1]
    assert ((last - exact).abs() <= HALVES[half] * exact.abs() + 1e-5).all()


@pytest.mark.usefixtures("on_cuda")
def test_half_types_have_second_derivatives_and_a_forward_mode():
    u, x, tangent = torch.randn(8, 3, requires_grad=True), torch.randn(4, 2, 8).bfloat16(), torch.randn(8, 3)
    x.requires_grad_()

    def square(u, x):
        return ht.rnn(u, x, nonlinearity="tanh")[0].float().square().sum()

    def curvature(u, x):
        (grad,) = torch.autograd.grad(square(u, x), u, create_graph=True)
        return torch.autograd.grad((grad * tangent.to(u.dtype)).sum(), (u, x))

    for found, exact in zip(curvature(u, x), curvature(u.double(), x.double()), strict=True):
        assert (found - exact).abs().max() < 0.1 * exact.abs().max()

    def slope(u, x):
        return torch.func.jvp(lambda u: ht.rnn(u, x)[0], (u,), (tangent.to(u.dtype),))[1]

    found, exact = slope(u.detach(), x.detach()), slope(u.detach().double(), x.detach().double())
    assert found.dtype == torch.bfloat16
    assert (found - exact).abs().max() < 0.05 * exact.abs().max()


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("half", HALVES)
def test_layers_under_autocast_give_what_they_are_given(half):
    with torch.autocast("cpu", half):
        assert ht.apply(torch.randn(64, 8), torch.randn(5, 64)).dtype == torch.float32
    model = torch.nn.Sequential(torch.nn.Linear(3, 6), ht.OrthogonalRNN(6, 8, num_layers=2, learn_h0=True))
    with torch.autocast("cpu", half):
        output, last = model(torch.randn(5, 2, 3))
        loss = output.float().square().sum()
    assert output.dtype == last.dtype == half
    loss.backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.usefixtures("on_cuda")
def test_a_device_without_the_preferred_kernel_takes_another(monkeypatch):
    """Low rank by shape, but no tile holds it without clusters: the tape has no room for the W that is formed."""
    monkeypatch.setattr(instances, "TILES", TILES)
    monkeypatch.setattr(cuda_standin.Device, "compute_capability", "80")
    u, x = torch.randn(100, 45, dtype=F64, requires_grad=True), torch.randn(4, 3, 100, dtype=F64, requires_grad=True)
    h, _ = ht.rnn(u, x, nonlinearity="tanh")
    grads = torch.autograd.grad(h.square().sum(), (u, x))
    assert all("dense" in name for _, name in kernels._compiled)
    arrays = (u.detach().numpy(), x.detach().numpy(), None)
    (states, _), vjp = hh.rnn_vjp(*arrays, nonlinearity="tanh")
    expected = vjp(2 * states)
    for found, exact in zip((h.detach(), *grads), (states, expected.u, expected.x), strict=True):
        torch.testing.assert_close(found, torch.tensor(exact), rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("batch", [0, 2])
def test_nothing_to_do(steps, batch):
    u, x = torch.randn(6, 2, requires_grad=True), torch.randn(steps, batch, 6, requires_grad=True)
    h0 = torch.randn(batch, 6, requires_grad=True)
    h, last = ht.rnn(u, x, h0)
    assert h.shape == (steps, batch, 6)
    (h.sum() + last.sum()).backward()
    if not steps:
        torch.testing.assert_close(last, h0)
        torch.testing.assert_close(h0.grad, torch.ones_like(h0))
    assert ht.apply(u, x).shape == x.shape


@pytest.fixture
def said(monkeypatch):
    """No notice has been given yet."""
    monkeypatch.setattr(notices, "_said", {})


def without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)


def without_nvrtc(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("CuPy failed to load libnvrtc.so.13: cannot open shared object file")

    monkeypatch.setattr(cuda_standin.RawModule, "get_function", refuse)


def with_cupy_for_rocm(monkeypatch):
    monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "is_hip", True, raising=False)


def with_torch_for_rocm(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "7.1")


@pytest.mark.usefixtures("on_cuda", "said")
@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (without_cupy, r"the kernels need CuPy: pip install 'cupy-cuda1[23]x\[ctk\]>="),
        (without_nvrtc, "a kernel cannot be used: RuntimeError: CuPy failed to load libnvrtc"),
        (with_cupy_for_rocm, "this CuPy is built for ROCm"),
        (with_torch_for_rocm, "there are kernels for CUDA but not for ROCm"),
    ],
)
@pytest.mark.parametrize("name", ["apply", "apply many", "matrix", "rnn", "rnn packed", "rnn, oplu", "rnn, complex"])
def test_where_kernels_cannot_be_used_torch_operations_are(monkeypatch, broken, reason, name):
    broken(monkeypatch)
    monkeypatch.setattr(verdicts, "_verdicts", {})
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for _ in range(2):
            assert_as_on_the_cpu(name)
    assert len(given) == 1
    assert re.search(reason, str(given[0].message))
    monkeypatch.setenv("HOUSEHOLDER_KERNELS", "require")
    if broken is not without_nvrtc:  # the verdict is in
        with pytest.raises(RuntimeError, match="HOUSEHOLDER_KERNELS is 'require'"):
            CASES[name][0](*CASES[name][1])


COLUMNS = {
    "full columns": lambda u, x: (
        ht.apply(ht.Reflections(u, columns="full"), x),
        ht.matrix(ht.Reflections(u, columns="full")),
    ),
    "tau": lambda u, x: (
        ht.apply(ht.Reflections(u, u[0]), x),
        ht.rnn(ht.Reflections(u, u[0]), x, nonlinearity="tanh")[0],
    ),
}


@pytest.mark.filterwarnings("default:householder has no native kernel")
@pytest.mark.usefixtures("on_cuda", "said")
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_that_kernels_do_not_take_are_torch_operations_with_a_notice(monkeypatch, name):
    u, x = (t.detach() for t in CASES["rnn, bare"][1])
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        COLUMNS[name](u, x)
    assert len(given) == 1
    assert "on cpu (kernels take trapezoidal columns without tau)" in str(given[0].message)
    monkeypatch.setenv("HOUSEHOLDER_KERNELS", "require")
    with pytest.raises(RuntimeError, match="'require', but on cpu kernels take trapezoidal columns without tau"):
        COLUMNS[name](u, x)
    monkeypatch.setenv("HOUSEHOLDER_KERNELS", "off")
    monkeypatch.setattr(notices, "_said", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        COLUMNS[name](u, x)


@pytest.mark.usefixtures("on_cuda")
def test_tensors_at_odd_addresses_reach_kernels_aligned(monkeypatch):
    """A view of another library's memory may begin at half of a complex number."""

    def shifted(t):
        memory = torch.empty(16 * t.numel() + 16, dtype=torch.uint8).numpy()
        view = torch.frombuffer(memory, dtype=t.dtype, count=t.numel(), offset=8).view_as(t).copy_(t)
        assert view.data_ptr() % 16 == 8
        return view.requires_grad_()

    pointers = cuda_standin.note_pointers(monkeypatch)
    for name in ("apply, complex", "rnn, complex"):
        assert_as_on_the_cpu(name, [shifted(t.detach()) if t.is_complex() else t for t in CASES[name][1]])
    assert len(pointers) > 20
    assert [pointer for pointer in pointers if pointer % 16] == []


@pytest.mark.usefixtures("on_cuda")
def test_kernels_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("HOUSEHOLDER_KERNELS", "off")
    for name in ("apply", "rnn packed"):
        assert_as_on_the_cpu(name)
    assert not kernels._compiled


@pytest.mark.usefixtures("on_cuda")
def test_large_steps_are_torch_operations_unless_kernels_are_required(monkeypatch):
    monkeypatch.setattr(instances, "STEPWISE_FROM", {"float": 1 << 17, "double": 2 * 8 * 3})
    ht.rnn(*(t.detach() for t in CASES["rnn, bare"][1]))  # n = 4, m = 2
    assert any("fallback" in kernel for _, kernel in kernels._compiled)
    u, x = torch.randn(8, 3, dtype=F64), torch.randn(2, 1, 8, dtype=F64)
    for asked, launched in (("", False), ("require", True)):
        kernels._compiled.clear()
        monkeypatch.setenv("HOUSEHOLDER_KERNELS", asked)
        ht.rnn(u, x)
        assert any("fallback" in kernel for _, kernel in kernels._compiled) is launched


def test_large_triangular_systems_are_halved(monkeypatch):
    monkeypatch.setattr(library, "LARGEST_SOLVE", 4)
    t = torch.randn(2, 23, 23, dtype=F64) / 5
    inverse = library.library_of(t).inverse(t)
    eye = torch.eye(23, dtype=F64)
    torch.testing.assert_close(inverse @ (t.triu(1) + eye), eye.expand(2, 23, 23))


def test_cuda_tensors_pass_the_door():
    with FakeTensorMode():
        u, x = torch.randn(8, 3, device="cuda"), torch.randn(5, 2, 8, device="cuda")
        results = [ht.apply(u, x), ht.matrix(u), *ht.rnn(u, x)]
        assert all(result.is_cuda for result in results)
        with pytest.raises(TypeError, match="x is on cpu but u is on cuda:0"):
            ht.rnn(u, torch.randn(5, 2, 8))


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps", [0, 5])
def test_tapes_have_the_size_that_fake_tensors_promise(dtype, steps):
    options = True, "oplu", 0.1, False, False, "trapezoidal", "auto"
    shapes = []
    for mode, device in ((FakeTensorMode(), "cuda"), (nullcontext(), "cpu")):
        with mode:
            u, x = torch.randn(8, 3, device=device), torch.randn(steps, 2, 8, device=device, dtype=dtype)
            shapes.append([t.shape for t in torch.ops.householder.rnn(u, x, *[None] * 7, *options)])
    assert shapes[0] == shapes[1]


EMULATED = sorted(
    gpu_correctness.CHECKS.keys()
    - {*gpu_correctness.NEED_A_DEVICE, "a thousand steps", "tiles", "clusters", "equal bits"}  # hours, minutes
)


@pytest.mark.usefixtures("on_cuda")
@pytest.mark.parametrize("name", EMULATED)
def test_the_gpu_check_passes_in_the_emulator(name):
    assert gpu_correctness.CHECKS[name]("cpu")


def test_the_gpu_check_finds_errors(monkeypatch):
    monkeypatch.setattr(gpu_correctness, "ALLOWED", 1e-9)
    with pytest.raises(AssertionError, match=r"differs by .* units of rounding, allowed 1e-09"):
        gpu_correctness.check_phases("cpu")


class Stream(nullcontext):
    def wait_stream(self, other):
        assert isinstance(other, Stream)


class Event:
    """An event; time passes by a millisecond from one to the next."""

    clock = 0

    def __init__(self, *, enable_timing):
        assert enable_timing

    def record(self):
        Event.clock += 1
        self.at = Event.clock

    def elapsed_time(self, end):
        return end.at - self.at


class Graph:
    """A graph that recalls the call it captured; every second one refuses."""

    made = 0

    def __init__(self):
        Graph.made += 1

    def __enter__(self):
        if Graph.made % 2:
            raise RuntimeError("operation not permitted when stream is capturing")

    def __exit__(self, *_):
        pass

    def replay(self):
        pass


@pytest.fixture
def timed(monkeypatch):
    """All but the device: graphs, events and streams are stand-ins, tensors are on the CPU."""
    names = {"Stream": Stream, "current_stream": Stream, "stream": lambda s: s, "Event": Event, "CUDAGraph": Graph}
    names |= {"graph": lambda g: g, "synchronize": lambda: None, "is_available": lambda: True}
    monkeypatch.setattr(gpu_timing, "cuda", SimpleNamespace(**names))
    monkeypatch.setattr(gpu_timing, "kernel_names", lambda call: [f"{len(call())} results"])
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setenv("HOUSEHOLDER_KERNELS", "require")
    return lambda i: gpu_timing.compare(gpu_timing.cases(True)[i], quick=True, device="cpu")


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, gpu_timing.FEWEST), (60.0, 9)])
def test_rounds_end_with_their_number_or_with_the_time(monkeypatch, seconds, rounds):
    monkeypatch.setattr(gpu_timing, "SECONDS", seconds)
    calls = []
    assert gpu_timing.measure({"call": lambda: calls.append(1)}, 9)["call"] == (1, 1)
    assert len(calls) == rounds


def test_times_of_every_candidate(timed):
    sequence, half, applications = map(timed, range(3))
    ours = ["householder", "householder, torch operations", "torch.nn.RNN"]
    names = [list(dict.fromkeys(row["candidate"] for row in case["rows"])) for case in (sequence, half)]
    assert names == [
        [*ours, "torch.nn.RNN, TF32", "torch.nn.LSTM", "torch.nn.LSTM, TF32", "loop of a compiled step"],
        [*ours, "torch.nn.LSTM"],
    ]
    assert half["case"].startswith("sequence n=64 m=8 B=4 T=20 bfloat16 ")
    assert all(float(row["error"]) < 0.05 for row in half["rows"])
    ways = {(row["pass"], row["way"]) for row in sequence["rows"]}
    assert {(kind, "eager") for kind in ("forward", "forward+backward")} < ways
    assert {way for _, way in ways} == {"eager", "graph"}  # every second graph refuses
    assert all(float(row["error"]) < 1e-4 for row in sequence["rows"] + applications["rows"])
    assert all(row["median_ms"] == 1 for row in sequence["rows"])
    assert sequence["kernels"]["householder"] == ["5 results"]  # states; gradients of 3 parameters and h0
    assert sequence["step"] == {"numbers": 2 * 64 * 8, "prefers_steps": False}
    assert applications["step"] is None
    assert all(("forward", "eager") in {(f["pass"], f["way"]) for f in case["faster"]} for case in (sequence, half))
    assert {(f["winner"], f["times"]) for f in sequence["faster"]} == {("kernels", 1)}  # a draw


def test_the_faster_side_is_that_of_the_smaller_median():
    ours, steps = (f"{name}|forward|graph" for name in (gpu_timing.OURS, gpu_timing.TORCH))
    times = {ours: gpu_timing.Timing(3.0, 1.0), steps: gpu_timing.Timing(2.0, 2.0)}
    (found,) = gpu_timing._faster(times)
    assert found == {"pass": "forward", "way": "graph", "winner": "torch operations", "times": 1.5}
    assert gpu_timing._faster({ours: times[ours]}) == []


def test_a_rival_that_fails_does_not_keep_the_others_from_being_timed(timed, monkeypatch):
    monkeypatch.setattr(gpu_timing, "_step", lambda *_: 1 / 0)  # that of the compiled loop
    case = timed(0)
    assert case["failed"] == {"loop of a compiled step": "ZeroDivisionError: division by zero"}
    assert case["rows"][0]["candidate"] == "householder"
    page = gpu_check.markdown(
        {"machine": {}, "rows": [{"check": "a", "verdict": "passed", "detail": "", "seconds": 1, "timing": case}]}
    )
    assert "| householder | forward | eager | 1.000 | 1.000 | 1.00 |" in page
    assert "* loop of a compiled step: failed, ZeroDivisionError: division by zero" in page
