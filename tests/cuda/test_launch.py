"""The CUDA path without a GPU: its Python side runs as it is, on host memory, and launches kernels in the emulator."""

import ctypes
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import householder as hh
from householder import _core, _cuda
from householder._base import cpu
from householder._cuda import device, factors, instances, kernels, recurrence, trials, verdicts
from householder._cuda.arrays import cupy_arrays
from householder._cuda.library import library_of
from householder._cuda.recurrence import candidates
from householder._functions import apply
from tests.conftest import NONLINEARITIES, Backend, assert_close, each_nonlinearity, of_arrays, problem, repeated
from tests.cuda import cuda_standin
from tests.numpy import test_backward, test_batch, test_forward, test_jvp, test_matrix, test_sequence
from tests.numpy.test_sequence import Case, assert_gradients

CUDA = Path(__file__).parents[2] / "cuda"
EVERY_TILE = instances.TILES

pytestmark = pytest.mark.skipif(not cuda_standin.HAS_COMPILER, reason="the emulator needs a C++ compiler")


@pytest.fixture(scope="module")
def standin():
    """A device of compute capability 9.0 for NumPy arrays."""
    with pytest.MonkeyPatch.context() as monkeypatch, np.errstate(all="ignore"):
        arrays = cuda_standin.install(monkeypatch)
        monkeypatch.setitem(apply._BACKENDS, np.ndarray, arrays)
        yield arrays


@pytest.fixture(scope="module")
def without_tiles():
    """All shapes take the fallback: few kernels to compile for many tests."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(instances, "TILES", ())
        yield


@pytest.fixture(scope="module")
def backend(standin, without_tiles):  # noqa: ARG001
    return Backend("emulated", np.asarray, np.asarray)


globals().update(repeated("cuda", test_backward, test_batch, test_forward, test_jvp, test_matrix, test_sequence))


def check(dtype, *sizes, method="auto", **options):
    """States and gradients of a sequence against the step-by-step reference."""
    case, every = Case(np.dtype(dtype), *sizes, **options), Backend("emulated", np.asarray, np.asarray)
    states, found = case.both(every, method=method)
    h, grads = case.expected(states)
    assert_close(states, h, dtype, factor=1000)
    assert_gradients(found, grads, dtype)


TILES = {
    "low rank, full tile": (64, 8),
    "low rank, padded": (50, 5),
    "low rank, one more": (65, 9),
    "low rank, cluster": (200, 65),
    "dense, full tile": (64, 33),
    "dense, padded": (37, 37),
    "dense, cluster": (130, 128),
    "one number": (1, 1),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "m"), TILES.values(), ids=list(TILES))
def test_tiles_compute_what_the_reference_does(standin, dtype, n, m):  # noqa: ARG001
    check(dtype, n, m, 3, 5, width=2, bias=True, nonlinearity="tanh")


@each_nonlinearity("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("transpose", [False, True])
def test_every_nonlinearity_in_a_tile(standin, dtype, nonlinearity, transpose):  # noqa: ARG001
    n = 64 if dtype == "float32" else 32  # the same kernels
    check(dtype, n, n // 8, 4, 3, nonlinearity=nonlinearity, transpose=transpose)


@pytest.mark.parametrize("m", [8, 40])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("h0", ["batch", "shared", "none"])
def test_packed_sequences_in_a_tile(standin, m, transpose, h0):  # noqa: ARG001
    check("float32", 64, m, sizes=[6, 6, 3, 1, 1], batch=6, transpose=transpose, h0=h0)


def test_u_1_is_one_more_column_of_low_rank(standin):  # noqa: ARG001
    check("float32", 16, 16, method="wy")
    check("float32", 16, 16, method="wy", transpose=True)


def test_calls_of_the_same_shapes_share_a_plan_and_others_do_not(monkeypatch):
    sequences = [(64, 8, 2, 2), (64, 8, 3, 2), (64, 8, 2, 3), (64, 7, 2, 2)]
    with np.errstate(all="ignore"):
        monkeypatch.setitem(apply._BACKENDS, np.ndarray, cuda_standin.install(monkeypatch))
        for sizes, transpose in product(2 * sequences, (False, True)):
            check("float32", *sizes, transpose=transpose)
    found = recurrence._plan.cache_info(), factors._plan.cache_info()
    assert [plans.misses for plans in found] == [2 * len(sequences), 2 * len({8, 7})]
    assert all(plans.hits > plans.misses for plans in found)


def test_a_device_without_clusters_takes_other_kernels(monkeypatch):
    with np.errstate(all="ignore"):
        arrays = cuda_standin.install(monkeypatch, capability=75)
        monkeypatch.setitem(apply._BACKENDS, np.ndarray, arrays)
        check("float32", 200, 65, 2, 2)
    assert {name.partition("_")[0] for _, name in kernels._compiled} == {"householder::fallback"}


def test_a_device_that_refuses_clusters_takes_other_kernels(monkeypatch):
    cuda_standin.install(monkeypatch)
    monkeypatch.setattr(instances, "TILES", EVERY_TILE)
    monkeypatch.setattr(cuda_standin.Device, "refuses_clusters", True)
    with pytest.warns(UserWarning, match="device 0 refuses clusters of blocks"):
        found = candidates(kernels.device_of(0), 512, 64, "float32", "tanh")
    assert all(instance.tile is None or instance.tile.cluster == 1 for instance in found)
    monkeypatch.setattr(cuda_standin.Device, "refuses_clusters", False)
    assert candidates(kernels.device_of(1), 512, 64, "float32", "tanh")[0].tile.cluster > 1


def check_shared_memory(number):
    """On a device that has no clusters, a kernel of one block may have the shared memory that it needs."""
    _cuda.warm_up(500, 60, nonlinearity="tanh", device=number)
    first, last = candidates(kernels.device_of(number), 500, 60, "float32", "tanh")
    assert first.tile.shared_bytes > instances.DEFAULT_SHARED_BYTES
    for direction in ("forward", "backward"):
        kernel = kernels._compiled[number, first.names[direction][1]]
        with device.cupy().cuda.Device(number):
            assert kernel.max_dynamic_shared_size_bytes == first.tile.shared_bytes
    assert last.tile is None


def test_one_block_without_clusters_asks_for_shared_memory(monkeypatch):
    cuda_standin.install(monkeypatch, capability=86)
    monkeypatch.setattr(instances, "TILES", EVERY_TILE)
    check_shared_memory(0)


def test_half_types_are_warmed_up_with_single_precision_parameters(monkeypatch):
    cuda_standin.install(monkeypatch)
    _cuda.warm_up(64, 8, "bfloat16")
    assert [name for _, name in kernels._compiled if "factors" in name] == [
        instances.square_name("factors", instances.FACTOR_COLUMNS["float32"][0], "float32")
    ]


class Derived(np.ndarray):
    """As users derive arrays and tensors."""


def test_arrays_of_a_derived_type_belong_to_the_library_of_their_base():
    assert library_of(np.zeros(1).view(Derived)) is library_of(np.zeros(1))


def test_sources_in_the_core_are_the_files():
    files = {path.name: path.read_text() for path in CUDA.glob("*.cu*")}
    assert _core.cuda_sources() == files
    assert {name for names in instances.SOURCES.values() for name in names} == set(files)


class TestKernelsOnDemand:
    @pytest.fixture(autouse=True)
    def _standin(self, monkeypatch):
        cuda_standin.install(monkeypatch)
        monkeypatch.setattr(cuda_standin.RawModule, "made", 0)

    def test_are_compiled_once_for_each_instance_by_any_number_of_threads(self):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: _cuda.warm_up(64, 8), range(8)))
        assert cuda_standin.RawModule.made == 4  # forward, backward, factors, gradients
        _cuda.warm_up(64, 7)  # the same tile
        assert cuda_standin.RawModule.made == 4
        _cuda.warm_up(64, 8, device=1)
        assert cuda_standin.RawModule.made == 8
        assert len(kernels.compiled()) == 8
        _cuda.warm_up(64, 8, packed=True)
        assert cuda_standin.RawModule.made == 10

    def test_are_refused_while_a_graph_is_captured_unless_warmed_up(self, monkeypatch):
        monkeypatch.setattr(cuda_standin.Stream, "capturing", True)
        with pytest.raises(RuntimeError, match=r"not compiled yet, and a CUDA graph is being captured.*warm_up"):
            _cuda.warm_up(64, 8)
        monkeypatch.setattr(cuda_standin.Stream, "capturing", False)
        _cuda.warm_up(64, 8)
        monkeypatch.setattr(cuda_standin.Stream, "capturing", True)
        _cuda.warm_up(64, 8)

    def test_phases_need_w(self):
        device = kernels.device_of(0)
        assert all(found.dense for found in candidates(device, 32, 2, "complex64", "tanh", phases=True))
        assert not candidates(device, 32, 2, "complex64", "tanh")[0].dense


class TestWhatIsFound:
    def test_no_cupy(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "cupy", None)
        with pytest.raises(ImportError, match=r"need CuPy: pip install 'cupy-cuda1[23]x\[ctk\]>="):
            cupy_arrays()
        found = _cuda.describe()
        assert list(found) == ["CUDA"]
        assert re.match(r"unavailable: .*pip install 'cupy-cuda1[23]x\[ctk\]>=", found["CUDA"])

    @pytest.mark.parametrize(("devices", "reason"), [("no driver", "no driver"), (0, "the driver reports none")])
    def test_no_device(self, monkeypatch, devices, reason):
        monkeypatch.setitem(sys.modules, "cupy", cuda_standin.cupy_module(devices))
        with pytest.raises(RuntimeError, match=f"no CUDA device can be used: {reason}"):
            cupy_arrays()
        found = _cuda.describe()
        assert found["CUDA"] == f"unavailable: no CUDA device can be used: {reason}"
        assert found["CUDA runtime of CuPy"] == "13.2"

    def test_devices(self, monkeypatch):
        cuda_standin.install(monkeypatch)
        assert _cuda.describe()["kernels in use"] == "none so far"
        _cuda.warm_up(64, 8, device=1)
        found = _cuda.describe()
        assert found["CUDA"] == "available"
        assert found["device 1"] == "Emulated, compute capability 9.0, 3 multiprocessors, 2 GiB"
        assert "on device 1, 64 registers" in found["kernels in use"]


class TestCupyArrays:
    """The type of u leads to the backend of CuPy, whose arrays are NumPy's here, with CuPy's attributes."""

    @pytest.fixture
    def cupy(self, monkeypatch, without_tiles):  # noqa: ARG002
        cuda_standin.install(monkeypatch)
        monkeypatch.setattr(apply, "_BACKENDS", dict(apply._BACKENDS))
        monkeypatch.setitem(apply._BACKENDS, np.ndarray, cpu)

        def view(a):
            return a.view(cuda_standin.CupyArray)

        return Backend("cupy", view, lambda a: a.get())

    def test_go_in_and_come_out(self, cupy, dtype):
        p, case = problem(9, 4, 6, dtype), Case(dtype, 8, 3, width=2, bias=True)
        calls = [
            (hh.forward, (p.u, p.h), p.options),
            (hh.backward, (p.u, p.h, p.g), p.options),
            (hh.matrix, (p.u,), p.options),
            (hh.wy, (p.u,), {}),
            (hh.jvp, (p.u, p.h, p.u, p.h), {}),
            (hh.rnn, (case.u, case.x, case.h0), case.arrays | case.options),
        ]
        for function, args, options in calls:
            of_w = of_arrays(function) if options else function
            found, expected = cupy(of_w, *args, **options), of_w(*args, **options)
            found, expected = (a if isinstance(a, tuple) else (a,) for a in (found, expected))
            for a, b in zip(found, expected, strict=True):
                assert_close(a, b, factor=1000)

    def test_at_odd_addresses_reach_kernels_aligned(self, cupy, monkeypatch):  # noqa: ARG002
        """A kernel loads a complex number at once, from a multiple of its 16 bytes; a view may begin at half of one."""

        def shifted(a):
            memory = np.empty(a.nbytes + 24, np.uint8)
            start = -memory.ctypes.data % 16 + 8
            view = memory[start : start + a.nbytes].view(a.dtype).reshape(a.shape).view(cuda_standin.CupyArray)
            view[...] = a
            return view

        pointers = cuda_standin.note_pointers(monkeypatch)
        p, case = problem(9, 4, 6, np.dtype("complex128")), Case(np.dtype("complex128"), 8, 3)
        few = p.h[:2], p.g[:2]  # fewer take the kernel of applications
        calls = [
            (hh.forward, (p.u, few[0])),
            (hh.backward, (p.u, *few)),
            (hh.matrix, (p.u,)),
            (partial(hh.rnn, nonlinearity="tanh"), (case.u, case.x, case.h0)),
        ]
        for function, arrays in calls:
            found, expected = function(*map(shifted, arrays)), function(*arrays)
            found, expected = (a if isinstance(a, tuple) else (a,) for a in (found, expected))
            for a, b in zip(found, expected, strict=True):
                assert b is None or np.abs(a.get() - b).max() < 1e-12 * np.abs(b).max()
        assert len(pointers) > 20
        assert [pointer for pointer in pointers if pointer % 16] == []

    def test_are_factored(self, cupy, double):
        w = hh.matrix(hh.haar(6, 5, rng=0, dtype=double))
        found = hh.factor(cupy.from_numpy(w))
        u, phases = found if double.kind == "c" else (found, None)
        assert isinstance(u, cuda_standin.CupyArray)
        assert_close(cupy.to_numpy(hh.matrix(hh.Reflections(u, phases=phases))), w, factor=1000)

    def test_stay_with_their_like(self, cupy):
        u, h = cupy.from_numpy(np.ones((4, 2))), cupy.from_numpy(np.ones(4))
        with pytest.raises(TypeError, match=r"h is a numpy\.ndarray, expected a cupy\.ndarray like the other"):
            hh.forward(u, np.ones(4))
        h.number = 1
        with pytest.raises(TypeError, match="h is on device 1 but u is on device 0"):
            hh.forward(u, h)


class TestFloat16:
    """States, inputs and their gradients of half the size; CuPy has no bfloat16."""

    @pytest.mark.parametrize(("n", "m"), [(64, 8), (50, 50), (50, 5)])
    def test_goes_in_and_out(self, standin, n, m):  # noqa: ARG002
        case = Case(np.dtype("float64"), n, m, 4, 3, width=2, bias=True, nonlinearity="tanh")
        narrow = {name: np.float16(getattr(case, name)) for name in ("x", "h0")}
        given = {name: a.astype(np.float32) for name, a in case.arrays.items()}
        u = case.u.astype(np.float32)
        (h, _), vjp = of_arrays(hh.rnn_vjp)(u, **narrow, **given, **case.options)
        grads = vjp((h * 2).astype(np.float16))
        assert {name: a.dtype for name, a in grads._asdict().items() if a is not None} == {
            "u": np.float32, "x": np.float16, "h0": np.float16, "input_weight": np.float32, "bias": np.float32,
        }  # fmt: skip
        wide = (u.astype(np.float64), *(a.astype(np.float64) for a in narrow.values()))
        given = {name: a.astype(np.float64) for name, a in given.items()}
        (exact_h, _), vjp = of_arrays(hh.rnn_vjp)(*wide, **given, **case.options)
        exact = vjp(2 * exact_h)
        for found, expected in zip((h, *grads), (exact_h, *exact), strict=True):
            if found is not None:
                assert np.abs(found - expected).max() < 12 * 2.0**-11 * np.abs(expected).max()

    def test_is_for_sequences_beside_a_float32_u(self, standin):  # noqa: ARG002
        u, x = np.ones((4, 2), np.float32), np.ones((3, 2, 4), np.float16)
        with pytest.raises(TypeError, match="h0 has dtype float32 but x has dtype float16"):
            hh.rnn(u, x, np.ones((2, 4), np.float32))[0]
        with pytest.raises(TypeError, match="x has dtype float16 but u has dtype float64"):
            hh.rnn(u.astype(np.float64), x)[0]
        with pytest.raises(TypeError, match="h has dtype float16, expected one of float32"):
            hh.forward(u, x)


def test_arrays_of_other_libraries_are_refused(standin):  # noqa: ARG001
    torch = pytest.importorskip("torch")
    u = np.ones((4, 2))
    with pytest.raises(TypeError, match=r"h is a torch\.Tensor, expected a numpy\.ndarray"):
        hh.forward(u, torch.ones(4))
    with pytest.raises(TypeError, match="h has dtype int64"):
        hh.forward(u, np.ones(4, int))
    with pytest.raises(TypeError, match="h has dtype float32 but u has dtype float64"):
        hh.forward(u, np.ones(4, np.float32))


class Names(list):
    """Names of kernels, and parts of the names of those that fail."""

    refused = wrong = "no kernel"
    output = 7  # h, among the arguments of a recurrence


TRIED = {
    "low rank": {"n": 64, "m": 8, "dtype": "float32"},
    "dense": {"n": 64, "m": 40, "dtype": "float64"},
    "cluster": {"n": 130, "m": 128, "dtype": "float32"},
    "complex": {"n": 30, "m": 4, "dtype": "complex64", "nonlinearity": "modrelu"},
    "oplu": {"n": 64, "m": 8, "dtype": "float32", "nonlinearity": "oplu"},
    "general": {"n": 600, "m": 300, "dtype": "float64", "batch": 1, "steps": 1},
    "packed": {"n": 64, "m": 8, "dtype": "float32", "sizes": [3, 2, 2], "batch": 3, "steps": 3},
}


class TestTrials:
    """The first use of a kernel on a device compares it with the core; one that fails is not used again."""

    @pytest.fixture
    def arrays(self, monkeypatch):
        arrays = cuda_standin.install(monkeypatch, trials=True)
        monkeypatch.setattr(instances, "TILES", EVERY_TILE)
        monkeypatch.setitem(apply._BACKENDS, np.ndarray, arrays)
        return arrays

    @pytest.fixture
    def launched(self, monkeypatch):
        """Names of the kernels that are launched; those of ``launched.wrong`` write zeros in place of an output."""
        names, call = Names(), cuda_standin.Function.__call__

        def launch(self, grid, block, args, **options):
            names.append(self.name)
            if names.refused in self.name:
                raise cuda_standin.DriverError("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
            call(self, grid, block, args, **options)
            if names.wrong in self.name:
                address, size = args[names.output], 4
                ctypes.memset(int(address), 0, size)

        monkeypatch.setattr(cuda_standin.Function, "__call__", launch)
        return names

    @pytest.mark.usefixtures("arrays")
    @pytest.mark.parametrize("name", TRIED)
    def test_right_kernels_pass_theirs(self, launched, name):
        options = {"batch": 2, "steps": 2, "nonlinearity": "tanh"} | TRIED[name]
        sizes = [options.pop(size) for size in ("dtype", "n", "m", "steps", "batch")]
        check(*sizes, **options)
        first = len(launched)
        assert set(verdicts._verdicts.values()) == {""}
        check(*sizes, **options)
        assert len(launched) - first < first  # the second time nothing is tried

    @pytest.mark.usefixtures("arrays")
    def test_the_loop_over_packed_sequences_has_a_trial_of_its_own(self, launched):
        sizes = {"sizes": [3, 2, 2], "batch": 3, "steps": 3}
        check("float32", 64, 8, 3, 3)
        tried = set(verdicts._verdicts)
        check("float32", 64, 8, **sizes)
        assert {name for _, name in set(verdicts._verdicts) - tried if "packed" in name}
        launched.wrong, verdicts._verdicts = "lowrank_forward", {}
        with pytest.warns(UserWarning, match="lowrank_forward.*packed gives wrong results"):
            check("float32", 64, 8, **sizes)

    @pytest.mark.usefixtures("arrays")
    def test_a_wrong_kernel_is_reported_once_and_another_one_used(self, launched):
        launched.wrong = "lowrank_forward"
        with pytest.warns(UserWarning, match=r"lowrank_forward<float.*gives wrong results \(an error of .*report this"):
            check("float32", 64, 8, 2, 2)
        launched.clear()
        check("float32", 64, 8, 2, 2)
        assert [name.partition("<")[0].partition("::")[2] for name in launched] == [
            "factors_form", "fallback_forward", "fallback_backward", "gradients_form"
        ]  # fmt: skip

    @pytest.mark.usefixtures("arrays")
    @pytest.mark.parametrize("kernel", ["factors", "gradients", "application_forward", "packing", "lowrank"])
    def test_a_kernel_that_does_not_launch_is_done_without(self, launched, kernel):
        launched.refused = kernel
        h = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
        u = h[:2].T.copy()
        warned = pytest.warns(UserWarning, match="a kernel cannot be used: DriverError: CUDA_ERROR_LAUNCH_OUT_OF")
        if kernel == "application_forward":
            u, h = u[:30].copy(), h[:, :30].copy()
            with warned:
                assert_close(hh.forward(u, h), h @ cpu.matrix(u, None).T, factor=1000)
        elif kernel == "packing":
            with warned, pytest.raises(verdicts.UnusableError):
                hh.rnn(u, h, h[:2], batch_sizes=np.array([2, 1]))[0]
        else:
            with warned:
                check("float32", 64, 8, 2, 2)

    @pytest.mark.usefixtures("arrays")
    def test_a_context_that_is_lost_is_no_verdict(self, monkeypatch):
        error = cuda_standin.DriverError("CUDA_ERROR_ILLEGAL_ADDRESS")
        error.status = 700

        def launch(*_, **__):
            raise error

        monkeypatch.setattr(cuda_standin.Function, "__call__", launch)
        with pytest.raises(cuda_standin.DriverError):
            hh.forward(np.ones((4, 2)), np.ones((1, 4)))
        assert not verdicts._verdicts

    @pytest.mark.usefixtures("arrays")
    def test_another_thread_waits_for_the_verdict(self):
        """It must not take a kernel for usable because its trial has begun."""
        found, trials = [], []
        other = threading.Thread(target=lambda: found.append(verdicts.usable(0, "kernel", trial)))

        def trial():
            trials.append(1)
            other.start()
            other.join(0.3)  # ends at once only if the other thread does not wait
            raise verdicts.WrongError("an error of 1")

        with pytest.warns(UserWarning, match="kernel gives wrong results"):
            found.append(verdicts.usable(0, "kernel", trial))
        other.join(60)
        assert found == [False, False]
        assert len(trials) == 1

    @pytest.mark.usefixtures("arrays")
    def test_nothing_is_tried_while_a_graph_is_captured(self, monkeypatch):
        monkeypatch.setattr(cuda_standin.Stream, "capturing", True)
        with pytest.raises(kernels.CaptureError, match="a CUDA graph is being captured"):
            hh.forward(np.ones((4, 2)), np.ones((1, 4)))
        assert not verdicts._verdicts

    @pytest.mark.parametrize(
        ("dtype", "nonlinearity"),
        [
            (dtype, phi)
            for dtype in ("float32", "complex64", "bfloat16")
            for phi in NONLINEARITIES["fc"[dtype[0] == "c"]]
        ],
    )
    @pytest.mark.parametrize("packed", [False, True])
    def test_trials_stay_away_from_where_nonlinearities_bend(self, dtype, nonlinearity, packed):
        case = trials.TrialSequence(10, 3, 4, dtype, nonlinearity, "wy", packed=packed)
        h, grads = case.expected()
        case.sequence = case.sequence._replace(x=case.sequence.x * (1 + 2.0**-10))
        nearly_h, nearly = case.expected()
        assert np.abs(nearly_h - h).max() < 0.02 * np.abs(h).max()
        assert np.abs(nearly.x - grads.x).max() < 0.05 * np.abs(grads.x).max()
